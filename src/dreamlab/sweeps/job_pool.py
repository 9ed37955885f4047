"""Several jobs at once: places for them, and what a Ctrl-C does to them."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dreamlab.sweeps.gpu_sharing import Mps
from dreamlab.sweeps.job import Job, Lock, Outcome
from dreamlab.sweeps.launch.local import Handle, Launcher, Local
from dreamlab.sweeps.launch.options import LauncherConfig, Limits, check_together
from dreamlab.sweeps.progress import SweepProgress

TICK_S = 0.1


def make_launcher(
    config: LauncherConfig,
    limits: Limits,
    slots: int,
    folder: Path,
    gpus: Sequence[str] = (),
    mps: Mps | None = None,
) -> Launcher:
    """Return the launcher that a configuration names; GPUs and MPS are for that of this machine."""
    check_together(config, limits)
    if config.name == "slurm":
        from dreamlab.sweeps.launch.slurm import Slurm

        return Slurm(config, limits, folder, folder.name)
    if config.name == "ray":
        from dreamlab.sweeps.launch.ray import Cluster

        return Cluster(config, limits)
    return Local(limits, slots, gpus, mps)


class OnDemand:
    """A launcher that is made when there is a job for it: a finished sweep needs no cluster."""

    def __init__(self, make: Callable[[], Launcher]) -> None:
        self.make = make

    @cached_property
    def made(self) -> Launcher:
        return self.make()

    def start(self, job: Job, slot: int) -> Handle | None:
        return self.made.start(job, slot)

    def close(self) -> None:
        if "made" in self.__dict__:
            self.made.close()


@dataclass
class _Busy:
    job: Job
    handle: Handle
    owner: Lock
    slot: int


class JobPool:
    """Up to `size` jobs on one launcher."""

    def __init__(self, launcher: Launcher, size: int) -> None:
        self.launcher, self.size = launcher, size
        self.busy: dict[str, _Busy] = {}
        self.interrupts = 0

    @property
    def stopping(self) -> bool:
        """Whether the user asked to stop."""
        return self.interrupts > 0

    @property
    def jobs(self) -> list[Job]:
        """The jobs in hand."""
        return [b.job for b in self.busy.values()]

    def start(self, job: Job) -> bool:
        """Start a job; False if another process has it in hand or it has ended."""
        owner = job.owner_lock
        if not owner.take():
            return False
        slot = min(set(range(self.size)) - {b.slot for b in self.busy.values()})
        handle = self.launcher.start(job, slot)
        if handle is None:
            owner.release()
            return False
        self.busy[job.name] = _Busy(job, handle, owner, slot)
        return True

    def poll(self) -> list[tuple[Job, Outcome]]:
        """Return the jobs that ended since the last call, and pass on a Ctrl-C."""
        for busy in self.busy.values():
            if self.interrupts == 1:
                busy.handle.interrupt()
            elif self.interrupts > 1:
                busy.handle.kill()
        ended: list[tuple[Job, Outcome]] = []
        for busy in list(self.busy.values()):
            if (outcome := busy.handle.poll()) is not None:
                busy.owner.release()
                del self.busy[busy.job.name]
                ended.append((busy.job, outcome))
        return ended

    def interrupt(self, job: Job) -> None:
        """Ask one job to save and stop."""
        if job.name in self.busy:
            self.busy[job.name].handle.interrupt()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Count Ctrl-C and SIGTERM instead of dying of them; close the launcher at the end."""

        def handle(number: int, frame: Any) -> None:
            self.interrupts += 1

        before = {n: signal.signal(n, handle) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, old in before.items():
                signal.signal(number, old)
            for busy in self.busy.values():  # only an error of ours leaves any: let them save
                busy.handle.interrupt()
            self.launcher.close()


def work(pool: JobPool, view: SweepProgress, tick: Callable[[], bool]) -> None:
    """Call `tick` until nothing is left to do; handle Ctrl-C."""
    view.start()
    told = False
    try:
        with pool.at_work():
            while tick():
                if pool.stopping and not told:
                    view.say("stopping: saving checkpoints (press again to kill the runs)")
                    told = True
                time.sleep(TICK_S)
    finally:
        view.close()
