"""A run is a folder; everything about it is in it."""

from __future__ import annotations

import json
import os
import platform
import secrets
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from dreamlab.accel.before_torch import Mkl
from dreamlab.core.errors import LabError, unknown
from dreamlab.core.files import write_json
from dreamlab.core.names import check_tag, check_word
from dreamlab.core.readers import FileError, MissingFileError
from dreamlab.runs.git_state import git_state, project_state
from dreamlab.runs.index import Entry
from dreamlab.runs.locks import RETRY_S, acquire, held
from dreamlab.runs.readers import read_config_node, read_manifest, read_metrics
from dreamlab.runs.run_row import best_of, stamp_of, tags_of

PACKAGES = (
    "dreamlab",
    "torch",
    "numpy",
    "gymnasium",
    "hydra-core",
    "omegaconf",
    "ale-py",
    "mujoco",
    "dm-control",
)

GLANCE_S = 0.1
VANISHING_S = 5.0
"""Attempts to lock: a failed start elsewhere may remove the folder meanwhile."""
RETURNS = ("last_return", "last_eval", "last_success")


def new_folder(name: str, root: Path = Path("experiments")) -> Path:
    """Return a folder name that no other run has: name, time and a random id."""
    check_word(name, "name")
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return root / f"{name}_{stamp}_{secrets.token_hex(3)}"


class Run:
    """One run directory: config, manifest, metrics, events, checkpoints, videos."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = folder = Path(folder)
        self.manifest: dict[str, Any] = {}
        with suppress(MissingFileError):
            self.manifest = read_manifest(folder)
        self.entry = Entry(folder)
        self.began: float | None = None
        self.stamp = ""

    @property
    def manifest_path(self) -> Path:
        return self.folder / "manifest.json"

    @property
    def config_path(self) -> Path:
        return self.folder / "config.yaml"

    @property
    def saved(self) -> bool:
        """Return whether a checkpoint was ever saved; older runs record it only at their end."""
        ended = self.manifest.get("status") in ("finished", "interrupted", "imported")
        return self.manifest.get("saved_frames", 0 if ended else None) is not None

    def create(self, name: str, seed: int, command: list[str]) -> None:
        """Make the folder and write who ran what, where, from which code."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.manifest = {
            "id": secrets.token_hex(8),
            "name": name,
            "seed": seed,
            "command": command,
            "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "status": "created",
            "saved_frames": None,
            "versions": versions(),
            "hardware": hardware(),
            "git": git_state(),
        }
        if project := project_state():
            self.manifest["project"] = project
        write_json(self.manifest_path, self.manifest)

    def update(self, **data: Any) -> None:
        """Change fields of the manifest; this is also the heartbeat for the index."""
        with held(self.folder):
            self._take_tags()
            self.manifest.update(self._with_scores(data), heartbeat=time.time())
            write_json(self.manifest_path, self.manifest)
            self.stamp = stamp_of(self.manifest_path)
        if problem := self.entry.write(self.manifest):
            with suppress(OSError):
                self.event("message", text=f"the index is not updated for now: {problem}")

    def _with_scores(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return new fields with the best return and the seconds spent; a return stays known."""
        if data.get("status") == "running":
            self.began = time.monotonic() - self.manifest.get("wall_s", 0.0)
        if self.began is not None:
            data["wall_s"] = time.monotonic() - self.began
        known = {k: v for k, v in data.items() if v is not None or k not in RETURNS}
        final = (known.get("final_eval") or {}).get("eval/return")
        for best, *now in (
            ("best_return", known.get("last_return")),
            ("best_eval", known.get("last_eval"), final),
        ):
            if (value := best_of(self.manifest.get(best), *now)) is not None:
                known[best] = value
        return known

    def _take_tags(self) -> None:
        """Take over the tags that another process gave this run."""
        if stamp_of(self.manifest_path) in ("", self.stamp):
            return
        with suppress(FileError):
            found = read_manifest(self.folder)
            self.manifest |= {k: v for k, v in found.items() if k == "tags"}

    def tag(self, add: Sequence[str] = (), remove: Sequence[str] = ()) -> list[str]:
        """Give and take tags; return those the run has then. It may be in training."""
        for name in add:
            check_tag(name, "tag")
        with held(self.folder):
            self.manifest = read_manifest(self.folder)
            tags = self.tags()
            for name in remove:
                if name not in tags:
                    raise LabError(unknown("tag", name, tags, str(self.folder)))
            kept = [t for t in tags if t not in remove]
            self.manifest["tags"] = list(dict.fromkeys([*kept, *add]))
            write_json(self.manifest_path, self.manifest)
        self.entry.write(self.manifest)
        return self.manifest["tags"]

    def tags(self) -> list[str]:
        """Return the run's tags: those of its manifest, or those it was started with."""
        config: dict[str, Any] = {}
        with suppress(MissingFileError):
            config = {} if "tags" in self.manifest else read_config_node(self.folder)
        return tags_of(self.manifest, config)

    def event(self, kind: str, **data: Any) -> None:
        """Append one line to events.jsonl."""
        line = json.dumps({"time": time.time(), "event": kind, **data})
        with (self.folder / "events.jsonl").open("a") as file:
            file.write(line + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """Return every record of metrics.jsonl; corrupted lines are left out."""
        return read_metrics(self.folder).records


class FollowedRun(Run):
    """The folder of a run as the processes see it that do not write there: all but rank 0."""

    def __init__(self, folder: Path, saved: bool) -> None:
        super().__init__(folder)
        self.was_saved = saved

    @property
    def saved(self) -> bool:
        """Tell what rank 0 has read."""
        return self.was_saved

    def update(self, **data: Any) -> None:
        """Know the new fields; rank 0 writes them."""
        self.manifest.update(data)

    def event(self, kind: str, **data: Any) -> None:
        """Leave it to rank 0."""


class FolderLock:
    """Keep two processes from writing into one run directory; name the first to the second."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / ".lock"
        self.handle = -1
        self.made: list[Path] = []
        """Created paths: folders, the deepest last, and the file."""

    def __enter__(self) -> FolderLock:
        until = time.monotonic() + VANISHING_S
        while not self._take():
            if time.monotonic() > until:
                raise LabError(f"{self.path.parent}: another process keeps removing this folder")
            time.sleep(RETRY_S)
        since = time.strftime("%Y-%m-%d %H:%M:%S %Z")
        self._sign({"pid": os.getpid(), "host": platform.node(), "since": since})
        return self

    def __exit__(self, *_: object) -> None:
        self._sign({})
        os.close(self.handle)

    def _take(self) -> bool:
        """Take the lock; return False if its former holder has just removed the file."""
        try:
            self.made += make_folders(self.path.parent)
            handle = self._open()
        except FileNotFoundError:
            return False
        # a check whether a run is alive holds this lock for a moment
        if not acquire(handle, GLANCE_S):
            holder = _holder(handle)
            os.close(handle)
            raise LabError(
                f"{self.path.parent}: another process is using this run directory{holder}"
            )
        if os.fstat(handle).st_nlink == 0:
            os.close(handle)
            return False
        self.handle = handle
        return True

    def _open(self) -> int:
        try:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            return os.open(self.path, os.O_RDWR)
        self.made.append(self.path)
        return handle

    def _sign(self, about: dict[str, Any]) -> None:
        with suppress(OSError):  # a full disk must not keep anybody from cleaning up
            os.ftruncate(self.handle, 0)
            os.lseek(self.handle, 0, os.SEEK_SET)
            os.write(self.handle, json.dumps(about).encode())

    def undo(self) -> None:
        """Remove the file and the folders that were made for it, as far as they are empty."""
        with suppress(OSError):  # another process has put something there
            for path in reversed(self.made):
                path.unlink() if path == self.path else path.rmdir()


def make_folders(folder: Path) -> list[Path]:
    """Make a folder and those above it; return which were not there, the deepest last."""
    missing = [p for p in (folder, *folder.parents) if not p.exists()]
    made: list[Path] = []
    for path in reversed(missing):
        if path.is_symlink():
            raise LabError(f"{path} is a broken symlink")
        with suppress(FileExistsError):  # another process was faster
            path.mkdir()
            made.append(path)
    return made


def _holder(handle: int) -> str:
    """Return what a process wrote about itself when it took a lock."""
    try:
        about = json.loads(os.read(handle, 4096))
        return f" (process {about['pid']} on {about['host']}, since {about['since']})"
    except (OSError, ValueError, KeyError, TypeError):  # Windows keeps a locked file to its holder
        return ""


def versions() -> dict[str, str]:
    """Return the versions of what the numbers depend on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def hardware() -> dict[str, Any]:
    """Return the processor and accelerator, and whether MKL was told to use AVX-512."""
    import torch

    return {
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "cpu": _cpu_name(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "mkl_avx512": Mkl.active,
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), ""
    )


def command_line() -> list[str]:
    """Return the command that started this process, without the interpreter's path."""
    program = Path(sys.argv[0])
    of_ours = program.name == "__main__.py" and program.parent.name == "dreamlab"
    return ["dreamlab" if of_ours else program.name, *sys.argv[1:]]
