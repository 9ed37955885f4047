"""What a job may use, and where it runs: the same two sections for `sweep`, `tune` and `train`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from dreamlab.core.errors import ConfigError
from dreamlab.core.limits import NonNegative, Positive, PositiveInt, Range

SAVE_SHARE = 0.8
"""Share of `launcher.grace_s` that a run has to save; the rest is for its end."""


@dataclass(frozen=True)
class Limits:
    """What one job may use."""

    cpus: Annotated[int, Range(0, 1_024)] = 0
    """Cores and threads of each process; 0 leaves both to the run."""
    gpus: NonNegative | None = None
    """GPUs (of each node), 0.5 for two jobs on each; 0 hides them. None: on this machine as many
    jobs share one as its memory holds, elsewhere it is left to the run."""
    nodes: PositiveInt = 1
    """Machines that one job runs on together."""
    processes_per_node: PositiveInt = 1
    """Processes that train one run together on each machine: one for each GPU is usual."""
    gpu_memory_gib: Positive | None = None
    """GPU memory that one job needs, to tell how many share one; None: measured as by `plan`."""
    memory_gb: Positive | None = None
    """Memory of all its processes (of each node); beyond it a job saves, ends and counts as
    failed."""
    time_min: Positive | None = None
    """Minutes of one attempt, after which it does the same; SLURM queues it again instead."""

    def __post_init__(self) -> None:
        if (self.gpus or 0) > 1 and (self.gpus or 0) % 1:
            raise ValueError("gpus: above 1 only whole GPUs can be had")
        if self.processes > 1 and (self.gpus or 0) % 1:
            raise ValueError("gpus: the processes of one run need whole GPUs")

    @property
    def processes(self) -> int:
        """How many processes train one run, on all nodes."""
        return self.nodes * self.processes_per_node


@dataclass(frozen=True)
class LauncherConfig:
    """Where the jobs run."""

    name: Literal["local", "slurm", "ray"] = "local"
    cluster: str | None = None
    """Ray: the cluster's address. SLURM: `local` runs submitit without SLURM."""
    partition: str | None = None
    """SLURM: the partition, as in `sbatch --partition`."""
    account: str | None = None
    """SLURM: who pays, as in `sbatch --account`."""
    qos: str | None = None
    """SLURM: the quality of service, as in `sbatch --qos`."""
    grace_s: Positive = 90.0
    """Seconds between the signal and the end of a job that is preempted or out of time."""
    retries: Annotated[int, Range(0, 10_000)] = 100
    """How often a job that was preempted or lost its machine is started again."""
    options: dict[str, Any] = field(default_factory=dict)
    """Handed on: to submitit (`slurm_constraint: a100`) or to `ray.init` (`num_cpus: 2`)."""
    mps: bool = True
    """Local: start NVIDIA's MPS where it is installed and jobs share a GPU."""

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
        """Seconds that a run has to save once it is told to."""
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
