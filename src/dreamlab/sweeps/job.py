"""A job: one command line, the run directory it fills, and what is known of it, all in files."""

from __future__ import annotations

import hashlib
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from filelock import lock_descriptor

from dreamlab.core.clock import moment_of
from dreamlab.core.files import write_json
from dreamlab.core.readers import FileError, MissingFileError, is_number, read_json
from dreamlab.core.words import text_of as text_of
from dreamlab.runs.locks import RETRY_S, acquire
from dreamlab.runs.readers import problems, read_manifest
from dreamlab.runs.run_row import BROKEN

Status = Literal["waiting", "running", "interrupted", "failed", "pruned", "finished"]
Outcome = Literal["finished", "failed", "interrupted", "taken"]


class Lock:
    """A file that one process holds; a child that inherits it holds it on after our death."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: Any = None

    def take(self, wait: bool = False) -> bool:
        """Take the lock and return whether that worked; with `wait`, when it is free."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = self.path.open("a")
        try:
            taken = lock_descriptor(file.fileno(), blocking=wait, poll_interval=RETRY_S)
        except OSError:
            taken = False
        if taken:
            self.file = file
        else:
            file.close()
        return taken

    def release(self) -> None:
        """Let go; a child that inherited the lock keeps it."""
        if self.file is not None:
            self.file.close()
            self.file = None

    def held(self) -> bool:
        """Return whether anybody holds it, ourselves included."""
        if not self.path.exists():
            return False
        with self.path.open("a") as file:
            return not acquire(file.fileno(), 0, shared=True)


@dataclass(frozen=True)
class Job:
    """One training of a sweep; its name is a hash of what it overrides, and its seed."""

    root: Path
    """The sweep folder, with runs in `runs/`, logs and locks in `jobs/`."""
    overrides: tuple[str, ...]
    parameters: dict[str, Any]
    """The options that distinguish this job, for tables."""
    cwd: Path = field(default_factory=Path.cwd)

    @property
    def name(self) -> str:
        seed = [o for o in self.overrides if o.startswith("seed=")]
        rest = [o for o in self.overrides if not o.startswith("seed=")]
        digest = hashlib.sha256("\n".join(rest).encode()).hexdigest()[:10]
        return "_".join([digest, *(re.sub(r"[^\w-]", "", s) for s in seed)])

    @property
    def folder(self) -> Path:
        """Where its logs, its locks and what became of it are."""
        return self.root / "jobs" / self.name

    @property
    def run_folder(self) -> Path:
        return self.root / "runs" / self.name

    @property
    def label(self) -> str:
        """Its parameters in one line, without the groups they are in."""
        return " ".join(f"{k.split('.')[-1]}={text_of(v)}" for k, v in self.parameters.items())

    @property
    def run_lock(self) -> Lock:
        """Held while its training runs, by the training itself."""
        return Lock(self.folder / "run.lock")

    @property
    def owner_lock(self) -> Lock:
        """Held by the sweep that has it in hand, also while it waits in a queue."""
        return Lock(self.folder / "owner.lock")

    @property
    def stop_file(self) -> Path:
        """The file that makes a job on another machine save and stop."""
        return self.folder / "stop"

    def command(self, *options: str) -> list[str]:
        """Return what to run: `train`, or `resume` where the run has started."""
        if (self.run_folder / "config.yaml").exists():
            return [*program(), "resume", str(self.run_folder)]
        return self.train_command(*options)

    def train_command(self, *options: str) -> list[str]:
        """Return the `train` of this job, with options that a launcher adds; it goes on as well."""
        place = f"run.dir={text_of(str(self.run_folder))}"
        return [*program(), "train", *self.overrides, *options, place]

    def record(self) -> dict[str, Any]:
        """Return what was written down of earlier attempts; they failed if that is corrupted."""
        try:
            return _checked(read_json(self.folder / "job.json"))
        except MissingFileError:
            return {}
        except FileError as error:
            return {"status": "failed", "error": [str(error)]}

    def write(self, **data: Any) -> None:
        """Change fields of the record."""
        described = {"overrides": self.overrides, "parameters": self.parameters}
        write_json(self.folder / "job.json", {**described, **self.record(), **data})

    def error(self) -> list[str]:
        """Return the last words of a job that failed."""
        if self.manifest_status() == BROKEN:
            return list(problems(self.run_folder))[:1]
        return self.record().get("error", [])

    def manifest_status(self) -> str:
        """Return what the run says of itself; empty before it has begun, `broken` if damaged."""
        try:
            return read_manifest(self.run_folder).get("status", BROKEN)
        except MissingFileError:
            return ""
        except FileError:
            return BROKEN

    def status(self) -> Status:
        """Return how it stands, from its files alone."""
        if (seen := self.manifest_status()) == "finished":
            return "finished"
        if self.run_lock.held() or self.owner_lock.held():
            return "running"
        recorded = self.record().get("status")
        if recorded == "failed" or seen == BROKEN:
            return "failed"
        if recorded == "pruned":
            return "pruned"
        return "interrupted" if seen else "waiting"


@dataclass(frozen=True)
class SingleJob(Job):
    """One training outside of a sweep: `root` is its run folder; logs and locks are beside it."""

    @property
    def name(self) -> str:
        return self.root.name

    @property
    def folder(self) -> Path:
        return self.root.with_name(f"{self.root.name}.job")

    @property
    def run_folder(self) -> Path:
        return self.root


def _checked(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record without what cannot be counted with."""
    numbers = {k: v for k, v in record.items() if k not in ("attempts", "seconds") or is_number(v)}
    error = numbers.get("error", [])
    return {**numbers, "error": [str(e) for e in error] if isinstance(error, list) else []}


def program() -> list[str]:
    """Return the command that starts this lab with this Python."""
    script = Path(sys.executable).parent / "dreamlab"
    return [str(script)] if script.exists() else [sys.executable, "-m", "dreamlab"]


def shell(command: Sequence[str]) -> str:
    """Return a command as one would type it."""
    return shlex.join(["dreamlab", *command[len(program()) :]])


# -- what a run has reported ----------------------------------------------------------------------


def returns(records: Sequence[Mapping[str, Any]], key: str = "") -> list[tuple[int, float]]:
    """Return (moment, return) of every record; without a key evaluations, or else episodes."""
    for name in [key] if key else ["eval/return", "episode/return"]:
        found = [(moment_of(r), r[name]) for r in records if name in r]
        if numbers := [(frames, float(v)) for frames, v in found if isinstance(v, int | float)]:
            return numbers
    return []
