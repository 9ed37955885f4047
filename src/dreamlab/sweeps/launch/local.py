"""Jobs as processes on this machine."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

import psutil

from dreamlab.core.errors import LabError
from dreamlab.engine.processes import threads_each
from dreamlab.engine.signals import PREEMPTED
from dreamlab.sweeps.gpu_sharing import Mps
from dreamlab.sweeps.job import Job, Outcome
from dreamlab.sweeps.launch.options import Limits
from dreamlab.sweeps.launch.ranks import Ranks, Report, killed_by, limits_of

ERROR_LINES = 20
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
MEMORY_EVERY_S = 1.0  # interval of memory measurements if memory is limited
AGENT_FAILED = 1  # exit code of torchrun, however its processes failed
GRACE_S = 60.0  # time for a run beyond its limits to save
REPORT_S = 10.0  # how long to wait for the machine that says why a run of several failed
FILE_TIME_S = 1.0  # file systems may round the times of files
KILL = "kill"  # in the stop file: do not save


class Handle(Protocol):
    """A started job."""

    def poll(self) -> Outcome | None:
        """Return its outcome, or None while it is running."""
        ...

    def interrupt(self) -> None:
        """Ask it to save and stop; idempotent."""
        ...

    def kill(self) -> None:
        """Kill it at once."""
        ...


class Launcher(Protocol):
    """A way to start jobs."""

    def start(self, job: Job, slot: int) -> Handle | None:
        """Start a job in a slot; None if another process runs it."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class BufferContext:
    """Resources of this machine for a job."""

    limits: Limits = field(default_factory=Limits)
    cores: tuple[int, ...] = ()
    gpus: str | None = None
    """The GPUs visible to it, as in CUDA_VISIBLE_DEVICES."""
    mps: Mapping[str, str] = field(default_factory=dict)
    """The MPS pipe directory."""
    ranks: Ranks = field(default_factory=Ranks)
    deadline_s: float | None = None
    """Time limit in seconds to save after a stop request; None: no limit."""

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment variables, which libraries read before our code runs."""
        found: dict[str, str] = {}
        if self.limits.cpus:
            found |= dict.fromkeys(THREAD_VARIABLES, str(self.limits.cpus))
        elif self.ranks.several and "OMP_NUM_THREADS" not in os.environ:  # torchrun's default is 1
            found["OMP_NUM_THREADS"] = str(threads_each(self.ranks.processes))
        if self.gpus is not None:
            found["CUDA_VISIBLE_DEVICES"] = self.gpus
        return found | {**self.mps}

    def command(self, job: Job) -> list[str]:
        """Return the command that runs a job on this machine; options of the job itself stay."""
        added = {"threads": self.limits.cpus or None, "checkpoint.deadline_s": self.deadline_s}
        given = {o.lstrip("+").partition("=")[0] for o in job.overrides}
        options = [f"{k}={v:g}" for k, v in added.items() if v is not None and k not in given]
        # another node may have just created the folder: `train` works in both cases
        own = job.train_command if self.ranks.nodes > 1 else job.command
        return self.ranks.wrap(own(*options))


def place(limits: Limits, slot: int, slots: int, gpus: Sequence[str] = ()) -> BufferContext:
    """Return the resources of slot `slot` of `slots`; cores are assigned only if they suffice.

    All processes of a job share its cores.

    `gpus` lists the visible GPUs of each slot; without it the run decides.
    """
    shown = "" if limits.gpus == 0 else gpus[slot] if gpus else None
    cores: tuple[int, ...] = ()
    if limits.cpus and hasattr(os, "sched_getaffinity"):
        every = sorted(os.sched_getaffinity(0))
        own, first = limits.cpus * limits.processes_per_node, slot * (len(every) // slots)
        if slots * own <= len(every):  # a slot's part is its own, however many its job needs of it
            cores = tuple(every[first : first + own])
    return BufferContext(limits, cores, shown)


@contextmanager
def _unblocked(*signals: signal.Signals) -> Iterator[None]:
    """Unblock signals inside the block: children inherit the mask, and Ray blocks SIGINT."""
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def spawn(job: Job, where: BufferContext, pass_fds: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """Start this machine's part of a job, in its own session so that Ctrl-C does not reach it."""
    node = f"_node{where.ranks.node}" if where.ranks.node else ""
    with (
        (job.folder / f"stdout{node}.log").open("ab") as out,
        (job.folder / f"stderr{node}.log").open("wb") as err,
    ):
        return subprocess.Popen(
            where.command(job),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            cwd=job.cwd,
            env={**os.environ, **where.variables},
            pass_fds=tuple(pass_fds),
            start_new_session=True,
        )


class Attempt:
    """A job's training as a child process."""

    def __init__(self, job: Job, where: BufferContext) -> None:
        self.job, self.where = job, where
        self.lock = job.run_lock
        self.child: subprocess.Popen[bytes] | None = None
        self.asked = False
        self.began, self.measured, self.over_since = time.monotonic(), 0.0, 0.0
        self.start_time = time.time() - FILE_TIME_S
        self.over = ""  # the exceeded limit
        self.outcome: Outcome | None = None

    def start(self) -> bool:
        """Start it; return False if another process runs it or it has ended."""
        if not self.lock.take():
            return False
        job = self.job
        if job.manifest_status() == "finished":
            self.lock.release()
            return False
        tries = int(job.record().get("attempts", 0)) + 1
        job.write(status="running", attempts=tries, host=socket.gethostname(), error=[])
        with _unblocked(signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            self.child = spawn(job, self.where, (self.lock.file.fileno(),))
        if self.where.cores:
            os.sched_setaffinity(self.child.pid, self.where.cores)
        return True

    def poll(self) -> Outcome | None:
        assert self.child is not None, self.job.name
        code = self.child.poll()
        if code is None:
            self._hold_to_limits(time.monotonic())
            return None
        self.outcome = self.outcome or self._ended(code)
        return self.outcome

    def _ended(self, code: int) -> Outcome:
        seen = self.job.manifest_status()
        outcome: Outcome = "failed"
        if seen == "finished":
            outcome = "finished"
        elif not self.over and (self.asked or self._saved(code, seen)):
            outcome = "interrupted"
        error = self._last_words(code) if outcome == "failed" else []
        spent = float(self.job.record().get("seconds", 0.0)) + time.monotonic() - self.began
        self.job.write(status=outcome, returncode=code, error=error, seconds=spent)
        self.lock.release()
        return outcome

    def _saved(self, code: int, seen: str) -> bool:
        """Return whether a run saved and ended resumably, after a signal from elsewhere."""
        ended = (130, AGENT_FAILED) if self.where.ranks.several else (130,)
        if code in ended and seen == "interrupted":
            return True
        if code != AGENT_FAILED or not self.where.ranks.several:
            return code == PREEMPTED
        return self.report.out_of_time

    @cached_property
    def report(self) -> Report:
        """What torchrun reports of the processes of all nodes, once they have ended."""
        until = time.monotonic() + (REPORT_S if self.where.ranks.nodes > 1 else 0)
        while True:
            report = Report.of(self._said())
            if report.causes or time.monotonic() >= until:
                return report
            time.sleep(0.2)

    def _said(self) -> Iterator[str]:
        """Yield the stderr of every node, but not of earlier attempts."""
        yield (self.job.folder / "stderr.log").read_text(errors="replace")
        for node in range(1, self.where.ranks.nodes):
            file = self.job.folder / f"stderr_node{node}.log"
            with suppress(FileNotFoundError):
                if file.stat().st_mtime >= self.start_time:
                    yield file.read_text(errors="replace")

    def _hold_to_limits(self, now: float) -> None:
        """Ask a run beyond its limits to save and end; kill it if it does not."""
        if self.over and now - self.over_since > GRACE_S:
            self.kill()
        elif not self.asked and (reason := self._beyond(now)):
            self.over, self.over_since = reason, now
            self.interrupt()

    def _beyond(self, now: float) -> str:
        """Return the exceeded limit; empty if none."""
        assert self.child is not None, self.job.name
        most_min, most_gb = self.where.limits.time_min, self.where.limits.memory_gb
        if most_min is not None and now - self.began > 60 * most_min:
            return f"limits.time_min: exceeded {most_min:g} min"
        if most_gb is None or now - self.measured < MEMORY_EVERY_S:
            return ""
        sessions = [self.child.pid, *(children(self.child.pid) if self.where.ranks.several else ())]
        self.measured, used = now, sum(map(memory_bytes, sessions)) / 1e9
        return f"limits.memory_gb: used {used:.2f} GB of {most_gb:g}" if used > most_gb else ""

    def _last_words(self, code: int) -> list[str]:
        if self.over:
            saved = self.job.manifest_status() == "interrupted"
            rest = "saved; a retry resumes from there" if saved else "was killed"
            return [f"{self.over}, {rest}"]
        if self.where.ranks.several and code > 0:
            lines = self.report.lines()[-ERROR_LINES:]
        else:
            text = (self.job.folder / "stderr.log").read_text(errors="replace")
            lines = text.splitlines()[-ERROR_LINES:]
        if code < 0:
            lines.append(f"the run {killed_by(-code)}")
        return lines or [f"exit code {code}, nothing on stderr"]

    def interrupt(self, by: signal.Signals = signal.SIGINT) -> None:
        assert self.child is not None, self.job.name
        if self.asked:
            return
        self.asked = True
        # before training there is nothing to save, and an import may swallow an interrupt
        training = self.job.manifest_status() == "running"
        self.send(by if training else signal.SIGTERM)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to each process of the run; an agent would just end them."""
        assert self.child is not None, self.job.name
        for pid in (self.where.ranks.several and children(self.child.pid)) or [self.child.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        assert self.child is not None, self.job.name
        self.asked = True
        if self.child.poll() is None:  # including its child processes
            groups = children(self.child.pid) if self.where.ranks.several else []
            for group in (self.child.pid, *groups):
                with suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)


def children(pid: int) -> list[int]:
    """Return the live child processes of a process."""
    try:
        return [c.pid for c in psutil.Process(pid).children()]
    except psutil.Error:  # it has ended meanwhile
        return []


def memory_bytes(session: int) -> int:
    """Return the memory of all processes of a session, with shared memory counted once.

    Pages of mapped files are not counted: the system can reclaim them. Systems other than Linux do
    not distinguish them, and count shared memory for each process.
    """
    total = 0
    for pid in psutil.pids():
        with suppress(OSError, psutil.Error):  # it has ended meanwhile
            if os.getsid(pid) == session:
                total += _own_bytes(pid)
    return total


def _own_bytes(pid: int) -> int:
    """Return the memory added by a process."""
    if not sys.platform.startswith("linux"):
        return int(psutil.Process(pid).memory_info().rss)
    # psutil's PSS includes pages of mapped files, such as a replay on disk
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = re.findall(r"^Pss_(?:Anon|Shmem): *(\d+) kB", rollup, re.MULTILINE)
    return 1024 * sum(map(int, found))


def carry_out(job: Job, attempt: Attempt) -> Outcome:
    """Run a job to its end, or until its stop file appears, on a cluster node."""
    if not attempt.start():
        return "finished" if job.manifest_status() == "finished" else "taken"
    try:
        while (outcome := attempt.poll()) is None:
            _heed(job.stop_file, attempt)
            time.sleep(0.2)
    except BaseException:  # this process is being ended: let the run save first
        attempt.interrupt()
        until = time.monotonic() + attempt.where.ranks.grace_s
        while attempt.poll() is None:
            if time.monotonic() > until:  # it may wait for a machine that is gone
                attempt.kill()
            time.sleep(0.05)
        raise
    return outcome


def _heed(stop: Path, attempt: Attempt) -> None:
    """Do what a stop file says, if there is one."""
    with suppress(FileNotFoundError):
        attempt.kill() if stop.read_text() == KILL else attempt.interrupt()


def accompany(job: Job, where: BufferContext) -> Outcome:
    """Run another node's part of a job; the first node records the outcome."""
    child = spawn(job, where)
    try:
        while (code := child.poll()) is None:  # an interrupt does not reach a process that waits
            time.sleep(0.2)
        return "finished" if code == 0 else "interrupted"
    finally:
        if child.poll() is None:
            child.terminate()


class Local:
    """Starts jobs as child processes; `gpus` lists the visible GPUs of each slot."""

    def __init__(
        self, limits: Limits, slots: int, gpus: Sequence[str] = (), mps: Mps | None = None
    ) -> None:
        if sys.platform == "win32":  # a job needs its own session and inherits a locked file
            raise LabError("sweeps need Linux or macOS: on Windows run them in WSL")
        self.limits, self.slots, self.gpus, self.mps = limits, slots, gpus, mps

    @cached_property
    def variables(self) -> dict[str, str]:
        """Return the variables of MPS, which is started for the first job."""
        return self.mps.start() if self.mps else {}

    def start(self, job: Job, slot: int) -> Handle | None:
        limits = limits_of(job, self.limits)
        where = place(limits, slot, self.slots, self.gpus)
        ranks = Ranks(processes=limits.processes_per_node, grace_s=GRACE_S)
        attempt = Attempt(job, replace(where, mps=self.variables, ranks=ranks))
        return attempt if attempt.start() else None

    def close(self) -> None:
        if self.mps:
            self.mps.stop()
