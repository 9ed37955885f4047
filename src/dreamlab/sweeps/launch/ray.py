"""Jobs on a Ray cluster."""

from __future__ import annotations

from typing import Any

from dreamlab.core.errors import require
from dreamlab.sweeps.job import Job, Outcome
from dreamlab.sweeps.launch.local import (
    Attempt,
    BufferContext,
    Handle,
    LauncherConfig,
    Limits,
    carry_out,
)


def _task(job: Job, limits: Limits) -> Outcome:
    """Run one job on whatever machine Ray chose; Ray has set which GPUs are visible."""
    return carry_out(job, Attempt(job, BufferContext(limits)))


class Sent:
    """A job that was handed to the cluster."""

    def __init__(self, ray: Any, job: Job, reference: Any) -> None:
        self.ray, self.job, self.reference = ray, job, reference

    def poll(self) -> Outcome | None:
        ready, _ = self.ray.wait([self.reference], timeout=0)
        if not ready:
            return None
        try:
            return self.ray.get(self.reference)
        except self.ray.exceptions.RayError as error:
            if self.job.stop_file.exists():
                return "interrupted"
            self.job.write(status="failed", error=str(error).splitlines()[-20:])
            return "failed"

    def interrupt(self) -> None:
        self.job.stop_file.touch()

    def kill(self) -> None:
        self.interrupt()
        self.ray.cancel(self.reference, force=True)


class Cluster:
    """Sends jobs to a Ray cluster: the one at `cluster`, or one of this machine's own cores."""

    def __init__(self, config: LauncherConfig, limits: Limits) -> None:
        self.ray: Any = require("ray", "ray")
        self.started = not self.ray.is_initialized()
        if self.started:
            options = {"log_to_driver": False, **config.options}
            self.ray.init(address=config.cluster, **options)
        self.limits = limits
        # a lost machine's jobs are sent once more, and continue from their checkpoints
        self.task = self.ray.remote(_task).options(
            num_cpus=limits.cpus or 1,
            num_gpus=limits.gpus or 0,
            memory=int(limits.memory_gb * 1e9) if limits.memory_gb else None,
            max_retries=3,
        )

    def start(self, job: Job, slot: int) -> Handle | None:
        job.stop_file.unlink(missing_ok=True)
        return Sent(self.ray, job, self.task.remote(job, self.limits))

    def close(self) -> None:
        if self.started:
            self.ray.shutdown()
