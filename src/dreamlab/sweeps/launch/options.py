"""Resources of a job and where it runs: two sections shared by `sweep`, `tune` and `train`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from dreamlab.core.errors import ConfigError
from dreamlab.core.limits import NonNegative, Positive, PositiveInt, Range

SAVE_SHARE = 0.8
"""Share of `launcher.grace_s` for a run to save; the rest is for shutting down."""


@dataclass(frozen=True)
class Limits:
    """Resources of one job."""

    cpus: Annotated[int, Range(0, 1_024)] = 0
    """CPU cores and threads per process; 0: decided by the run."""
    gpus: NonNegative | None = None
    """GPUs per job (and node), 0.5 for two jobs per GPU; 0 hides them. None: locally as many jobs
    share a GPU as fit in its memory, elsewhere decided by the run."""
    nodes: PositiveInt = 1
    """Nodes per job."""
    processes_per_node: PositiveInt = 1
    """Processes per node that train one run; usually one per GPU. 1: those of
    `distributed.processes` or `devices` of the run."""
    gpu_memory_gib: Positive | None = None
    """GPU memory per job, which decides how many share a GPU; None: measured as by `plan`."""
    memory_gb: Positive | None = None
    """Memory limit per job and node over all its processes; beyond it the job saves and fails."""
    time_min: Positive | None = None
    """Time limit per attempt in minutes, after which the job saves and fails; SLURM requeues it
    instead."""

    def __post_init__(self) -> None:
        if (self.gpus or 0) > 1 and (self.gpus or 0) % 1:
            raise ValueError("gpus: values above 1 must be integers")
        if self.processes > 1 and (self.gpus or 0) % 1:
            raise ValueError("gpus: the processes of one run need whole GPUs")

    @property
    def processes(self) -> int:
        """Return the number of processes that train one run, on all nodes."""
        return self.nodes * self.processes_per_node

    def with_processes(self, processes: int) -> Limits:
        """Return the same limits for so many processes on one node."""
        if processes > 1 and (self.gpus or 0) % 1:
            raise ConfigError("limits.gpus: the processes of one run need whole GPUs")
        return replace(self, processes_per_node=processes)


@dataclass(frozen=True)
class LauncherConfig:
    """Where the jobs run."""

    name: Literal["local", "slurm", "ray"] = "local"
    cluster: str | None = None
    """Ray: address of the cluster. SLURM: `local` runs submitit without SLURM."""
    partition: str | None = None
    """SLURM: the partition, as in `sbatch --partition`."""
    account: str | None = None
    """SLURM: the account, as in `sbatch --account`."""
    qos: str | None = None
    """SLURM: the quality of service, as in `sbatch --qos`."""
    grace_s: Positive = 90.0
    """Seconds between the signal and the end of a job that is preempted or out of time."""
    retries: Annotated[int, Range(0, 10_000)] = 100
    """Maximum restarts of a job that was preempted or lost its machine."""
    options: dict[str, Any] = field(default_factory=dict)
    """Passed to submitit (`slurm_constraint: a100`) or `ray.init` (`num_cpus: 2`)."""
    mps: bool = True
    """Local: start NVIDIA MPS if it is installed and jobs share a GPU."""

    def __post_init__(self) -> None:
        own = {"partition": self.partition, "account": self.account, "qos": self.qos}
        for key, value in own.items():
            if value is not None and self.name != "slurm":
                raise ConfigError(f"launcher.{key}: it is SLURM's: launcher.name is {self.name!r}")
            if value is not None and f"slurm_{key}" in self.options:
                raise ConfigError(f"launcher.options.slurm_{key}: launcher.{key} is given too")
        if self.name == "local" and (self.options or self.cluster is not None):
            key = "options" if self.options else "cluster"
            raise ConfigError(f"launcher.{key}: the processes of this machine have none")

    @property
    def deadline_s(self) -> float:
        """Return the time limit in seconds for a run to save."""
        return SAVE_SHARE * self.grace_s


def check_together(launcher: LauncherConfig, limits: Limits) -> None:
    """Raise if the two sections do not fit together."""
    if limits.nodes > 1 and (launcher.name == "local" or launcher.cluster == "local"):
        raise ConfigError(
            f"limits.nodes: {limits.nodes}: this machine is one; use launcher.name=slurm or ray"
        )
    if launcher.name == "slurm" and limits.gpus is not None and limits.gpus % 1:
        raise ConfigError("limits.gpus: SLURM hands out whole GPUs")
    if launcher.name != "local" and limits.gpu_memory_gib is not None:
        raise ConfigError("limits.gpu_memory_gib: it is for the GPUs of this machine")
