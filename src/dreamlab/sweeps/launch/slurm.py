"""Jobs in a SLURM queue, through submitit."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from math import ceil
from pathlib import Path
from typing import Any

from dreamlab.core.errors import ConfigError, LabError, require
from dreamlab.sweeps.job import Job, Outcome
from dreamlab.sweeps.launch.local import (
    Attempt,
    BufferContext,
    Handle,
    accompany,
    carry_out,
)
from dreamlab.sweeps.launch.options import LauncherConfig, Limits
from dreamlab.sweeps.launch.ranks import Ranks, limits_of

DAY_MIN = 24 * 60  # default time limit: submitit's is five minutes
END_SHARE = 0.9  # share of the grace after which an unsaved run is killed, to be requeued
FIRST_PORT, PORTS = 20_000, 10_000


class Errand:
    """A node's work: one job. Before it is ended it saves and is requeued."""

    def __init__(self, job: Job, limits: Limits, config: LauncherConfig) -> None:
        self.job, self.limits, self.config = job, limits, config

    def __call__(self) -> Outcome:
        ranks = self._ranks()
        own = Limits(cpus=self.limits.cpus)  # SLURM enforces the other limits
        where = BufferContext(own, ranks=ranks, deadline_s=self.config.deadline_s)
        if ranks.node:
            for number in (signal.SIGTERM, signal.SIGUSR1):  # its processes are signaled elsewhere
                signal.signal(number, signal.SIG_IGN)
            return accompany(self.job, where)
        self.attempt = Attempt(self.job, where)
        self._listen()
        return carry_out(self.job, self.attempt)

    def _ranks(self) -> Ranks:
        """Return this node's rank among those of the job."""
        here = require("submitit", "slurm").JobEnvironment()
        number = int("".join(c for c in here.raw_job_id if c.isdigit()))
        address = f"{here.hostnames[0]}:{FIRST_PORT + number % PORTS}"
        processes, grace = self.limits.processes_per_node, self.config.grace_s
        return Ranks(here.num_nodes, processes, here.node, address, here.job_id, grace)

    def _listen(self) -> None:
        """Save on SIGTERM and SIGUSR1 too; submitit ignores the first and dies of the second.

        After SIGUSR1 the job is requeued as at the time limit. SIGTERM is sent by SLURM, which
        requeues preempted jobs itself, or by `scancel`.
        """
        environment = require("submitit", "slurm").JobEnvironment
        signal.signal(signal.SIGUSR1, signal.getsignal(environment._usr_sig()))

        def leave(number: int, frame: Any) -> None:
            self._save()
            sys.exit(-1)

        signal.signal(signal.SIGTERM, leave)

    def checkpoint(self) -> Any:
        """Stop the run so that it saves; submitit calls this shortly before the time limit."""
        self._save()
        submitit = require("submitit", "slurm")
        return submitit.helpers.DelayedSubmission(Errand(self.job, self.limits, self.config))

    def _save(self) -> None:
        if self.attempt.child is None:
            return
        self.attempt.interrupt(signal.SIGUSR1)
        until = time.monotonic() + END_SHARE * self.config.grace_s
        while self.attempt.poll() is None:
            if time.monotonic() > until:
                self.attempt.kill()
            time.sleep(0.1)


class Queued:
    """A job submitted to the queue."""

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
    """Submits jobs with their limits as SLURM limits."""

    def __init__(self, config: LauncherConfig, limits: Limits, folder: Path, name: str) -> None:
        submitit = require("submitit", "slurm")
        if config.cluster != "local" and shutil.which("srun") is None:
            raise LabError(
                "launcher.name=slurm: srun was not found, so this is not a SLURM cluster. "
                "launcher.cluster=local runs submitit's processes on this machine."
            )
        self.config, self.limits = config, limits
        self.executor = submitit.AutoExecutor(
            folder / "submitit",
            cluster=config.cluster or "slurm",
            slurm_max_num_timeout=config.retries,
        )
        self.name = name
        self._request(limits)

    def _request(self, limits: Limits) -> None:
        """Set what the next job requests."""
        given = {**parameters(self.config, limits), "name": self.name}
        try:
            self.executor.update_parameters(**{k: v for k, v in given.items() if v})
        except (NameError, ValueError, TypeError) as error:
            raise ConfigError(f"launcher.options: {error}") from None

    def start(self, job: Job, slot: int) -> Handle | None:
        """Submit a job; if another process runs it, it ends there at once, as taken."""
        job.stop_file.unlink(missing_ok=True)
        submitit, limits = require("submitit", "slurm"), limits_of(job, self.limits)
        self._request(limits)
        try:
            submitted = self.executor.submit(Errand(job, limits, self.config))
        except (submitit.core.utils.FailedJobError, OSError) as error:
            raise LabError(f"launcher.name=slurm: {error}") from None
        job.write(status="submitted", queue_id=str(submitted.job_id))
        return Queued(job, submitted)

    def close(self) -> None: ...


def parameters(config: LauncherConfig, limits: Limits) -> dict[str, Any]:
    """Return the parameters of submitit: one task per node, which starts the processes."""
    more = {"requeue": True, **config.options.get("slurm_additional_parameters", {})}
    return {
        "nodes": limits.nodes,
        "tasks_per_node": 1,
        "cpus_per_task": limits.cpus * limits.processes_per_node or None,
        "gpus_per_node": int(limits.gpus) if limits.gpus else None,
        "mem_gb": limits.memory_gb,
        "timeout_min": ceil(limits.time_min or DAY_MIN),
        "slurm_partition": config.partition,
        "slurm_account": config.account,
        "slurm_qos": config.qos,
        "slurm_signal_delay_s": ceil(config.grace_s),
        **config.options,
        "slurm_additional_parameters": more,
    }
