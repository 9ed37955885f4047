"""Jobs in a SLURM queue, through submitit."""

from __future__ import annotations

import time
from math import ceil
from pathlib import Path
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

DAY_MIN = 24 * 60  # the time limit if none was given: submitit's own is five minutes
MOST_LIMITS = 100  # how often a job may run out of time before that is a failure


class Errand:
    """What a node does: one job. At the time limit it saves and asks to be put back."""

    def __init__(self, job: Job, limits: Limits) -> None:
        self.job, self.limits = job, limits

    def __call__(self) -> Outcome:
        self.attempt = Attempt(
            self.job, BufferContext(Limits(cpus=self.limits.cpus))
        )  # SLURM holds it to the rest
        return carry_out(self.job, self.attempt)

    def checkpoint(self) -> Any:
        """Stop the run so that it saves; submitit calls this shortly before the time is up."""
        submitit = require("submitit", "slurm")
        if self.attempt.child is not None:
            self.attempt.interrupt()
            while self.attempt.poll() is None:
                time.sleep(0.2)
        return submitit.helpers.DelayedSubmission(Errand(self.job, self.limits))


class Queued:
    """A job that was handed to the queue."""

    def __init__(self, job: Job, submitted: Any) -> None:
        self.job, self.submitted = job, submitted

    def poll(self) -> Outcome | None:
        if not self.submitted.done():
            return None
        failure = self.submitted.exception()
        if failure is None:
            return self.submitted.result()
        if self.job.stop_file.exists():
            return "interrupted"
        self.job.write(status="failed", error=str(failure).splitlines()[-20:])
        return "failed"

    def interrupt(self) -> None:
        self.job.stop_file.touch()
        if self.submitted.state == "PENDING":
            self.submitted.cancel()

    def kill(self) -> None:
        self.interrupt()
        self.submitted.cancel()


class Slurm:
    """Submits jobs with the limits as SLURM's own."""

    def __init__(self, config: LauncherConfig, limits: Limits, folder: Path) -> None:
        submitit = require("submitit", "slurm")
        asked = {
            "cpus_per_task": limits.cpus or None,
            "gpus_per_node": int(limits.gpus) if limits.gpus else None,
            "mem_gb": limits.memory_gb,
            "timeout_min": ceil(limits.time_min or DAY_MIN),
            "name": folder.name,
        }
        self.limits = limits
        self.executor = submitit.AutoExecutor(
            folder / "submitit", cluster=config.cluster, slurm_max_num_timeout=MOST_LIMITS
        )
        given = {k: v for k, v in asked.items() if v is not None}
        self.executor.update_parameters(**given, **config.options)

    def start(self, job: Job, slot: int) -> Handle | None:
        """Submit a job; one that another process runs ends there at once, as taken."""
        job.stop_file.unlink(missing_ok=True)
        submitted = self.executor.submit(Errand(job, self.limits))
        job.write(status="submitted", queue_id=str(submitted.job_id))
        return Queued(job, submitted)

    def close(self) -> None: ...
