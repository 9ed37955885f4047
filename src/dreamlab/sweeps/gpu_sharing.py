"""Several jobs on one GPU: how many fit, which gets which, and NVIDIA's MPS between them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from dreamlab.core.errors import LabError
from dreamlab.sweeps.job import Lock

GIB = 2**30
USABLE = 0.9  # of a GPU's free memory; the rest is left to pieces too small to use
MPS = "nvidia-cuda-mps-control"
LONGEST_PIPE = 80
"""Maximum length of the MPS folder's path: a Unix socket path has at most 107 characters."""
MPS_ANSWER_S = 15.0
ASK_TORCH = """
import json, torch
gpus = range(torch.cuda.device_count())
print(json.dumps([torch.cuda.mem_get_info(i) for i in gpus]))
"""


# -- what there is --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gpu:
    """A GPU that jobs may be given."""

    name: str
    """As in CUDA_VISIBLE_DEVICES."""
    free_gib: float


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may hand out."""
    if (named := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name for name in named.split(",") if name]
    import torch

    return [str(i) for i in range(torch.cuda.device_count())]


def find_gpus() -> list[Gpu]:
    """Return the GPUs that answer, and what is free there; another process asks them.

    It leaves its memory behind when it ends; here it would be held as long as the jobs run.
    """
    if not (names := visible_gpus()):
        return []
    asked = subprocess.run(
        [sys.executable, "-c", ASK_TORCH], capture_output=True, text=True, check=False
    )
    if asked.returncode:
        last = asked.stderr.strip().splitlines()[-1:] or [f"exit code {asked.returncode}"]
        raise LabError(f"a GPU does not report its free memory: {last[0]}; limits.gpus=0 hides it")
    return gpus_of(names, asked.stdout)


def gpus_of(names: Sequence[str], answer: str) -> list[Gpu]:
    """Return GPUs from pairs of free and all bytes; names that no device belongs to go."""
    found: list[tuple[int, int]] = json.loads(answer.splitlines()[-1])
    return [Gpu(n, free / GIB) for n, (free, _) in zip(names, found, strict=False)]


def count_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cores_each(jobs: int) -> int:
    """Return a job's share of the cores, if so many run at once."""
    return max(count_cores() // jobs, 1)


# -- which job gets which -------------------------------------------------------------------------


@dataclass(frozen=True)
class Seats:
    """The GPUs of the jobs that run at once, one entry for each, and why there are so many."""

    gpus: tuple[str, ...]
    reason: str

    @property
    def shared(self) -> bool:
        """Whether two jobs have the same GPU."""
        return max(Counter(self.gpus).values(), default=0) > 1

    def __str__(self) -> str:
        first, *rest = Counter(self.gpus).items()
        head = f"{first[1]} job{'s' * (first[1] > 1)} on GPU {first[0]}"
        return ", ".join([head, *(f"{n} on GPU {g}" for g, n in rest)]) + f": {self.reason}"


def jobs_that_fit(free_gib: float, need_gib: float) -> int:
    """Return how many jobs a GPU has room for; one may fill it to the brim."""
    return int(USABLE * free_gib / need_gib) or int(need_gib <= free_gib)


def fill(room: Sequence[int], jobs: int) -> list[int]:
    """Return the GPU of each job, dealt in turn until there is no room or no job left."""
    deal = (i for turn in range(max(room, default=0)) for i, n in enumerate(room) if turn < n)
    return list(islice(deal, jobs))


def seat_by_memory(gpus: Sequence[Gpu], need_gib: float, jobs: int, cores: int) -> Seats:
    """Give GPUs to as many of the jobs as memory and cores allow."""
    order = fill([jobs_that_fit(g.free_gib, need_gib) for g in gpus], min(jobs, cores))
    most = max(g.free_gib for g in gpus)
    if not order:
        raise LabError(
            f"no GPU has enough memory for a job: it needs {need_gib:.3g} GiB, {most:.3g} are "
            "free. If it needs less, set limits.gpu_memory_gib, or one GPU per job: limits.gpus=1"
        )
    free = dict.fromkeys(f"{gpus[i].free_gib:.3g}" for i in order)
    reason = f"each needs {need_gib:.3g} of {' and '.join(free)} GiB free"
    if len(order) == cores < jobs:
        reason += f", and there are {cores} cores"
    return Seats(tuple(gpus[i].name for i in order), reason)


def seat_alone(gpus: Sequence[Gpu], jobs: int) -> Seats:
    """Give each of a few jobs its own GPU."""
    return Seats(tuple(g.name for g in gpus[:jobs]), "one each")


def seat_by_number(names: Sequence[str], number: float, jobs: int) -> Seats:
    """Give each job so many GPUs, or such a fraction of one, to as many jobs as that allows."""
    if not names:
        raise LabError("limits.gpus: no GPU is visible on this machine")
    if number > len(names):
        raise LabError(f"limits.gpus: {number:g} requested, {len(names)} visible")
    whole = max(int(number), 1)
    groups = [",".join(names[i : i + whole]) for i in range(0, len(names) - whole + 1, whole)]
    order = fill([int(1 / number + 1e-9) or 1] * len(groups), jobs)
    return Seats(tuple(groups[i] for i in order), f"limits.gpus={number:g}")


# -- MPS ------------------------------------------------------------------------------------------


def has_mps() -> bool:
    """Return whether MPS is installed."""
    return shutil.which(MPS) is not None


class Mps:
    """NVIDIA's MPS while jobs share a GPU: kernels of several processes run at the same time.

    A daemon that answers already is used and left alone. One of ours that a killed command left
    is taken over; of several commands in one folder the one with the lock stops it.
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        digest = hashlib.sha256(str(folder).encode()).hexdigest()[:12]
        self.pipe = Path(tempfile.gettempdir()) / f"dreamlab-mps-{os.getuid()}-{digest}"
        self.log, self.say = folder / "mps", say
        self.lock = Lock(self.log / "lock")
        self.variables: dict[str, str] = {}

    def start(self) -> dict[str, str]:
        """Start it where it is not there; return the variables of the jobs, none without it."""
        if not has_mps():
            self.say(f"no MPS: {MPS} is not installed")
        elif self._ask("get_server_list", {}) and not self._prepare():
            self._begin()
        return self.variables

    def stop(self) -> None:
        """Stop it if it is ours."""
        if self.lock.file is None:
            return
        if self.variables:
            self._ask("quit", self.variables)
            shutil.rmtree(self.pipe, ignore_errors=True)
        self.variables = {}
        self.lock.release()

    def _prepare(self) -> bool:
        """Make the folders; say what is wrong with them, and whether anything is."""
        self.log.mkdir(parents=True, exist_ok=True)
        self.pipe.mkdir(mode=0o700, exist_ok=True)
        wrong = ""
        if len(str(self.pipe)) > LONGEST_PIPE:
            wrong = "is too long for a socket path: set TMPDIR"
        elif self.pipe.stat().st_uid != os.getuid():
            wrong = "belongs to another user"
        if wrong:
            self.say(f"no MPS: {self.pipe} {wrong}")
        return bool(wrong)

    def _begin(self) -> None:
        ours = {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipe), "CUDA_MPS_LOG_DIRECTORY": str(self.log)}
        first = self.lock.take()
        if self._ask("get_server_list", ours) and (not first or self._launch(ours)):
            return
        self.variables = ours

    def _launch(self, ours: dict[str, str]) -> int:
        """Start the daemon; say why not, where it does not start."""
        done = subprocess.run(
            [MPS, "-d"], env=_environment(ours), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            check=False,
        )  # fmt: skip
        if done.returncode:
            self.say(f"no MPS: `{MPS} -d` ended with {done.returncode}")
        return done.returncode

    def _ask(self, line: str, ours: dict[str, str]) -> int:
        """Send a command to the daemon; return 0 on success."""
        try:
            return subprocess.run(
                [MPS], input=f"{line}\n", text=True, env=_environment(ours),
                timeout=MPS_ANSWER_S, capture_output=True, check=False,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            return 1


def _environment(ours: dict[str, str]) -> dict[str, str]:
    """Return a daemon's variables: it sees all GPUs, or its clients would count them again."""
    return {k: v for k, v in {**os.environ, **ours}.items() if k != "CUDA_VISIBLE_DEVICES"}
