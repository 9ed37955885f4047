"""Sweeps that take seconds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from dreamlab.sweeps import gpu_sharing
from dreamlab.sweeps.job import Job

QUICK = (
    "tiny=true", "training.total_frames=300", "eval.episodes=1", "eval.every_frames=0",
    "eval.video=false", "log.every_frames=100", "device=cpu",
)  # fmt: skip
LONG = ("training.total_frames=1_000_000", "checkpoint.every_frames=500", "checkpoint.every_s=0")


def write_sweep(folder: Path, *overrides: str, **options: Any) -> str:
    """Write a sweep's file of quick jobs and return its path."""
    node = {
        "experiment": "ppo_cartpole",
        "overrides": [*QUICK, *overrides],
        "dir": str(folder / "s"),
        "limits": {"cpus": 1},
        **options,
    }
    (folder / "s.yaml").write_text(yaml.safe_dump(node))
    return str(folder / "s.yaml")


def overrides_of(path: str) -> tuple[str, ...]:
    """Return what a sweep's file gives to all jobs."""
    return tuple(yaml.safe_load(Path(path).read_text())["overrides"])


class Script(Job):
    """A job that runs its first override as a program: it begins at once."""

    def command(self, *options: str) -> list[str]:
        return [sys.executable, "-c", self.overrides[0]]


@contextmanager
def begun(verb: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start the command; it does not outlive the test."""
    command = [sys.executable, "-m", "dreamlab", verb, *arguments]
    started = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        yield started
    finally:
        if started.poll() is None:
            started.terminate()
            started.communicate(timeout=30)


def mps_stand_in(folder: Path, monkeypatch: Any, code: int = 0) -> Callable[[], list[str]]:
    """Put a program on PATH that is called like MPS's; return how to see what it was asked.

    It answers in a folder where it was started; `code` is what starting it ends with.
    """
    home = folder / "mps_home"
    (home / "tmp").mkdir(parents=True)
    script = home / "nvidia-cuda-mps-control"
    script.write_text(f"""#!/bin/sh
up="${{CUDA_MPS_PIPE_DIRECTORY:-{home}}}/up"
if [ "$1" = -d ]; then line=start; else read line; fi
echo "$line ${{CUDA_MPS_PIPE_DIRECTORY:-default}} gpus=$CUDA_VISIBLE_DEVICES" >> {home}/asked
[ $line = start ] && [ {code} = 0 ] && touch "$up"
[ $line = start ] && exit {code}
[ -e "$up" ] || exit 1
[ $line = quit ] && rm "$up"
exit 0
""")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{home}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(home / "tmp"))
    monkeypatch.setattr(gpu_sharing, "LONGEST_PIPE", 500)  # a test's folder may have a long name
    log = home / "asked"
    return lambda: log.read_text().splitlines() if log.exists() else []


def wait_for(condition: Callable[[], Any], seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.02)


def saved(folder: Path) -> list[Path]:
    """Return the checkpoints of all runs of a sweep."""
    return list(folder.glob("runs/*/checkpoints/[0-9]*"))


def kill_all(sweep: subprocess.Popen[str], jobs: list[Job]) -> None:
    """Kill a sweep and then its children, each in a session of its own, as a power cut would."""
    sweep.kill()
    sweep.wait()
    for job in jobs:
        for pid in holders(job.folder / "run.lock"):
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not any(j.run_lock.held() for j in jobs))


def holders(path: Path) -> list[int]:
    """Return the processes that have a file open."""
    found = []
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if os.readlink(link) == str(path):
                found.append(int(link.parts[2]))
        except OSError:
            continue
    return sorted(set(found))


def members(session: int) -> list[int]:
    """Return the processes of a session that live."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, own, *_ = stat.read_text().rpartition(")")[2].split()
            if int(own) == session and state != "Z":
                found.append(int(stat.parts[2]))
    return found
