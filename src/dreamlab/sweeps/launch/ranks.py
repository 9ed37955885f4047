"""One run on several processes and machines: the command that starts torchrun's elastic agent."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from dreamlab.sweeps.job import program


@dataclass(frozen=True)
class Ranks:
    """Who trains one run together, as one of its machines sees it."""

    nodes: int = 1
    processes: int = 1
    """On each node."""
    node: int = 0
    """Which of them this is; the first one writes down what becomes of the job."""
    address: str = ""
    """Where the nodes meet: host:port of the first."""
    id: str = "dreamlab"
    """What tells this meeting from others at the same address."""
    grace_s: float = 30.0
    """Seconds that the agent leaves its processes to save before it kills them."""

    @property
    def several(self) -> bool:
        """Whether there is more than one process."""
        return self.nodes * self.processes > 1

    def wrap(self, command: Sequence[str]) -> list[str]:
        """Return a command of ours as it is started on this machine."""
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
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={self.address}",
            f"--rdzv-id={self.id}",
            f"--rdzv-conf=is_host={int(self.node == 0)}",  # names of hosts do not always tell
            *shared,
        ]
