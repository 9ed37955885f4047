"""One run on several processes and machines: the command that starts torchrun, and its report."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dreamlab.config import compose, load_config
from dreamlab.core.errors import LabError
from dreamlab.engine.processes import PEER_LOST
from dreamlab.engine.signals import PREEMPTED
from dreamlab.interop.strangers import read_config
from dreamlab.sweeps.job import Job, program
from dreamlab.sweeps.launch.options import Limits

STOPPED = frozenset((PEER_LOST, -signal.SIGTERM))
"""Exit codes of processes that ended because another one did."""
JOIN_S = 600
"""How long the machines of a run wait for each other."""


@dataclass(frozen=True)
class Ranks:
    """The processes of one run, as seen by one of its machines."""

    nodes: int = 1
    processes: int = 1
    """Processes per node."""
    node: int = 0
    """Index of this node; the first one records the job's outcome."""
    address: str = ""
    """Rendezvous address: host:port of the first node."""
    id: str = "dreamlab"
    """Rendezvous id, unique at its address."""
    grace_s: float = 30.0
    """Seconds for processes to save before the agent kills them."""

    @property
    def several(self) -> bool:
        """Return whether there is more than one process."""
        return self.nodes * self.processes > 1

    def wrap(self, command: Sequence[str]) -> list[str]:
        """Return the command that starts `command` on this machine."""
        if not self.several:
            return list(command)
        own = list(command[len(program()) :])
        agent = [sys.executable, "-m", "torch.distributed.run", *self._options()]
        return [*agent, "-m", "dreamlab", *own]

    def _options(self) -> list[str]:
        shared = [f"--nproc-per-node={self.processes}", f"--shutdown-timeout={self.grace_s:.0f}"]
        if self.nodes == 1:
            return ["--standalone", *shared]
        return [
            f"--nnodes={self.nodes}",
            f"--node-rank={self.node}",
            "--rdzv-backend=static",  # rank 0 is on the first node, at this address
            f"--rdzv-endpoint={self.address}",
            f"--rdzv-id={self.id}",
            f"--rdzv-conf=timeout={JOIN_S}",
            *shared,
        ]


def limits_of(job: Job, limits: Limits) -> Limits:
    """Return a job's limits, with the processes of its own options if the limits start only one.

    A launcher must know of all processes: it counts their memory, gives them cores, and kills them.
    """
    return limits if limits.processes > 1 else limits.with_processes(_own_processes(job))


def _own_processes(job: Job) -> int:
    """Return how many processes train a job: by its run if that has begun, else by its options."""
    try:
        if (job.run_folder / "config.yaml").exists():
            return read_config(job.run_folder).processes
        return load_config(compose(job.overrides)).processes
    except LabError:  # its run says what is wrong
        return 1


CODE = re.compile(r"^\s*rank\s*: (\d+) .*\n\s*exitcode\s*: (-?\d+)", re.MULTILINE)
OF_TORCHRUN = re.compile(r"[EWI]\d{4} [\d:.]+ \d+ [^\]]*\btorch/distributed/")
"""A line of torch's log, whose file is named as seen from the working directory."""
TRACEBACK = "Traceback (most recent call last)"


@dataclass(frozen=True)
class Report:
    """What torchrun and the processes of a run wrote to stderr, on all of its machines."""

    codes: dict[int, int] = field(default_factory=dict)
    """The exit code of every rank that failed."""
    words: tuple[str, ...] = ()
    """What the processes said themselves."""

    @classmethod
    def of(cls, texts: Iterable[str]) -> Report:
        """Read the stderr of every machine."""
        codes: dict[int, int] = {}
        words: list[str] = []
        for text in texts:
            codes |= {int(rank): int(code) for rank, code in CODE.findall(text)}
            own, _, rest = text.rpartition(TRACEBACK)
            lines = (own if "ChildFailedError" in rest else text).splitlines()
            words += [x for x in lines if x.strip(" *") and not OF_TORCHRUN.match(x)]
        return cls(codes, tuple(dict.fromkeys(words)))  # all ranks may say the same

    @property
    def causes(self) -> dict[int, int]:
        """Return the ranks that ended by themselves, and how."""
        return {rank: code for rank, code in self.codes.items() if code not in STOPPED}

    @property
    def out_of_time(self) -> bool:
        """Return whether processes met their deadline, and none failed."""
        late = {PREEMPTED, -signal.SIGUSR1}
        return bool(self.causes) and {*self.causes.values()} <= late

    def lines(self) -> list[str]:
        """Return the reason of a failure: words of the processes, and which of them was killed."""
        killed = [f"rank {r} {killed_by(-c)}" for r, c in self.causes.items() if c < 0]
        own = [x for x in self.words if not (self.causes and x.startswith("PeerLostError"))]
        return [*own, *(f"{x}; the other processes were stopped" for x in killed)]


def killed_by(number: int) -> str:
    """Return the signal that killed a process, in words."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return f"was killed by {name}" + (" (out of memory?)" if number == signal.SIGKILL else "")
