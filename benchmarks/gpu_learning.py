"""Learning on a GPU, beside the published curves: one command that can be stopped and run again.

    python benchmarks/gpu_learning.py FOLDER --minutes 25 --together 4
    python benchmarks/gpu_learning.py FOLDER --minutes 9 --only walker_walk --seeds 1
    python benchmarks/gpu_learning.py FOLDER --minutes 0 --record
    python benchmarks/gpu_learning.py FOLDER --minutes 9 --together 8 --only walker_walk/tdmpc2
        --variant small:walker_walk:dreamer_walker:workflow.size=1m --pack runs.tar.xz

Works through a list of tasks (`--list`), the first seeds of all before the second ones. Each is an
ordinary run in FOLDER/TASK/NAME/seed_N, trained by `dreamlab train` in a process of its own. When
the minutes are over, all save and stop; the same command goes on from there. At the end (with
`--minutes 0` it is all that happens) FOLDER/record gets figures, a table and raw numbers;
`--record` copies them into benchmarks/results. A variant is NAME:TASK:EXPERIMENT[:OPTION,OPTION];
variants are trained beside what `--only` names, without it they alone. `--pack` writes one file of
all that a later record needs.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_learning_list import Entry, choose, installed, variant
from gpu_learning_pack import pack
from gpu_learning_record import publish, write_record

from dreamlab.core.readers import FileError
from dreamlab.core.text import print
from dreamlab.runs.live import Watcher
from dreamlab.runs.locks import is_writing
from dreamlab.runs.readers import read_config_node, read_manifest
from dreamlab.sweeps.gpu_sharing import Mps, cores_each
from dreamlab.sweeps.launch.local import THREAD_VARIABLES

RESULTS = Path(__file__).resolve().parent / "results"
RECORD_S = 20.0
"""Seconds of the time given that are kept for saving and for the record."""
GRACE_S = 60.0
"""How long a run may take to save before it is killed; its last checkpoint stays."""
TELL_S = 60.0
LINUX = sys.platform == "linux"
LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Job:
    """One seed of an entry."""

    entry: Entry
    seed: int
    folder: Path
    options: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"{self.entry.task}/{self.entry.name}/seed_{self.seed}"

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def command(self) -> list[str]:
        """Return what trains it, or goes on with it."""
        here = f"run.dir={self.folder}"
        return [sys.executable, "-m", "dreamlab", "train", *self.options, here]

    def finished(self) -> bool:
        """Tell whether it came to the end that it is to have now."""
        try:
            done = read_manifest(self.folder).get("status") == "finished"
            training: Any = read_config_node(self.folder).get("training", {})
        except FileError:
            return False
        return done and (training.get("total_frames") or 0) >= self.entry.frames


def make_jobs(folder: Path, entries: Sequence[Entry], extra: Sequence[str]) -> list[Job]:
    """Return every seed of every entry: the first seeds of all, then the second ones."""
    most = max((e.seeds for e in entries), default=0)
    chosen = [(e, seed) for seed in range(1, most + 1) for e in entries if seed <= e.seeds]
    usual = ("eval.video=false", "log.terminal=plain", "checkpoint.every_s=120")
    return [
        Job(
            e, seed, folder / e.task / e.name / f"seed_{seed}",
            (*e.options, f"name={e.name}", f"seed={seed}", f"training.total_frames={e.frames}",
             *usual, *extra),
        )
        for e, seed in chosen
    ]  # fmt: skip


# -- processes ------------------------------------------------------------------------------------


def _end_with_parent() -> None:
    """Let this process be told to save and stop when the command that started it is killed."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@dataclass
class Crew:
    """The runs in training, and what became of those that ended."""

    together: int
    environment: dict[str, str]
    running: dict[Job, subprocess.Popen[bytes]] = field(default_factory=dict)
    failed: list[Job] = field(default_factory=list)

    def start(self, job: Job) -> None:
        """Train a job in a process, and session, of its own."""
        job.folder.parent.mkdir(parents=True, exist_ok=True)
        with job.log.open("ab") as log:
            self.running[job] = subprocess.Popen(
                job.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=self.environment, start_new_session=True,
                preexec_fn=_end_with_parent if LINUX else None,  # noqa: PLW1509 (one thread)
            )  # fmt: skip
        print(f"started {job.label}", flush=True)

    def look(self) -> None:
        """Take note of those that ended."""
        for job, process in list(self.running.items()):
            if (code := process.poll()) is None:
                continue
            del self.running[job]
            if job.finished():
                print(f"finished {job.label}", flush=True)
            elif code in (130, -signal.SIGTERM):
                print(f"stopped {job.label}", flush=True)
            else:
                self.failed.append(job)
                print(f"FAILED {job.label} (exit code {code}), {job.log} ends with", flush=True)
                print("\n".join(_last_lines(job.log)), flush=True)

    def ask(self) -> None:
        """Let all save and end."""
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)

    def wait(self, patience_s: float) -> None:
        """Wait until all have ended, or for so long."""
        until = time.monotonic() + patience_s
        while self.running and time.monotonic() < until:
            self.look()
            time.sleep(0.1)

    def kill(self) -> None:
        """End what did not stop."""
        for job, process in self.running.items():
            print(f"killed {job.label}: it did not stop; its last checkpoint stays", flush=True)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.running.clear()


def _last_lines(path: Path, number: int = 15) -> list[str]:
    return [f"  {line}" for line in path.read_text(errors="replace").splitlines()[-number:]]


class Clock:
    """When to stop: the time is up, or somebody asked."""

    def __init__(self, seconds: float) -> None:
        self.until = time.monotonic() + max(seconds - RECORD_S, seconds / 2)
        self.asked = False

    @property
    def over(self) -> bool:
        return self.asked or time.monotonic() >= self.until

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take Ctrl-C and SIGTERM for the end of the time."""

        def ask(number: int, frame: Any) -> None:
            self.asked = True

        before = {n: signal.signal(n, ask) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def work(crew: Crew, jobs: Sequence[Job], clock: Clock, watcher: Watcher) -> None:
    """Train jobs, a few at a time, until all are done or the time is up."""
    waiting = [job for job in jobs if not job.finished()]
    told = time.monotonic()
    while (waiting or crew.running) and not clock.over:
        crew.look()
        while len(crew.running) < crew.together and (job := _next_free(waiting)):
            waiting.remove(job)
            crew.start(job)
        if time.monotonic() - told > TELL_S:
            told = time.monotonic()
            tell(watcher)
        time.sleep(0.2)


def stop(crew: Crew, folder: Path, into: Path | None = None) -> None:
    """Let all save and end; kill those that do not. The record does not wait for the slow ones."""
    crew.ask()
    crew.wait(RECORD_S / 2)
    if crew.running:
        write_record(folder)
        if into is not None:
            print(pack(folder, into), flush=True)
        crew.wait(GRACE_S)
    crew.kill()


def _next_free(waiting: Sequence[Job]) -> Job | None:
    """Return the first job that no process is writing: one may still be saving after a kill."""
    return next((job for job in waiting if not is_writing(job.folder)), None)


def tell(watcher: Watcher) -> None:
    """Print how far the runs in training are."""
    for view in watcher.look():
        task, name, seed = view.folder.parts[-3:]
        score = f", return {view.last:.1f}" if view.last is not None else ""
        speed = f", {view.speed:.0f}/s" if view.speed else ""
        print(f"  {task}/{name}/{seed}: {view.frames:,} frames{speed}{score}", flush=True)


# -- several on one GPU ---------------------------------------------------------------------------


def share(together: int) -> dict[str, str]:
    """Return the environment of one of several runs: a share of the cores as its threads."""
    every = dict(os.environ)
    every.setdefault("MUJOCO_GL", "disable")  # nothing is rendered
    if together > 1:
        every |= dict.fromkeys(THREAD_VARIABLES, str(cores_each(together)))
    return every


@contextmanager
def mps(folder: Path, together: int) -> Iterator[dict[str, str]]:
    """Give NVIDIA's MPS to several runs on one GPU where it is there; yield their variables."""
    daemon = Mps(folder, lambda text: print(text, flush=True))
    try:
        variables = daemon.start() if together > 1 else {}
        if variables:
            print("MPS shares the GPU", flush=True)
        yield variables
    finally:
        daemon.stop()


# -- the command ----------------------------------------------------------------------------------


def train(options: argparse.Namespace, entries: Sequence[Entry]) -> int:
    """Train what time allows; return 1 if a run failed."""
    folder, clock = options.folder, Clock(60 * options.minutes)
    jobs = make_jobs(folder, installed(entries), options.extra)
    folder.mkdir(parents=True, exist_ok=True)
    with clock.listening(), mps(folder, options.together) as variables:
        crew = Crew(options.together, share(options.together) | variables)
        try:
            work(crew, jobs, clock, Watcher([folder]))
        finally:
            stop(crew, folder, options.pack)
    left = [job.label for job in jobs if not job.finished()]
    print(f"{len(jobs) - len(left)} of {len(jobs)} runs are finished", flush=True)
    return int(bool(crew.failed))


def _show(entries: Sequence[Entry]) -> None:
    for e in entries:
        line = f"{e.task}/{e.name}: {e.frames:,} frames, {e.seeds} seed{'s' * (e.seeds > 1)}"
        print(f"{line}: {' '.join(e.options)}")


def arguments() -> argparse.Namespace:
    """Return what was asked for."""
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=0.0, help="0 writes the record only")
    parser.add_argument("--together", type=int, default=1, metavar="K", help="runs at once")
    parser.add_argument("--only", default="", help="tasks or task/name, with commas between")
    parser.add_argument("--seeds", type=int, help="how many of each")
    parser.add_argument("--frames", type=int, help="env frames of each run")
    parser.add_argument("--extra", action="append", default=[], help="one more option of dreamlab")
    parser.add_argument("--variant", action="append", default=[], help="one more entry")
    parser.add_argument("--pack", type=Path, metavar="FILE.tar.xz", help="for a record elsewhere")
    parser.add_argument("--list", action="store_true", help="show the entries and end")
    parser.add_argument("--record", action="store_true", help="copy into benchmarks/results")
    options = parser.parse_args()
    for name in ("together", "seeds", "frames"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            parser.error(f"--{name}: at least 1")
    options.folder = options.folder.absolute()
    return options


def main() -> int:
    options = arguments()
    only = [w for w in options.only.split(",") if w]
    variants = [variant(text) for text in options.variant]
    entries = choose(only, options.seeds, options.frames, variants)
    if options.list:
        _show(entries)
        return 0
    failed = train(options, entries) if options.minutes > 0 else 0
    print(write_record(options.folder))
    print(f"written to {options.folder / 'record'}")
    if options.pack is not None:
        print(pack(options.folder, options.pack))
    if options.record:
        print("\n".join(map(str, publish(options.folder, RESULTS))))
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
