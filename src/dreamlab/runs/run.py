"""A run is a folder; the folder is the truth."""

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

from dreamlab.core.errors import LabError, unknown
from dreamlab.core.files import write_json
from dreamlab.core.names import check_tag, check_word
from dreamlab.runs.code import git_state, project_state
from dreamlab.runs.index import Entry
from dreamlab.runs.locks import acquire, held
from dreamlab.runs.rows import best_of, read_config, stamp_of, tags_of

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
RETURNS = ("last_return", "last_eval")


def new_folder(name: str, root: Path = Path("experiments")) -> Path:
    """Return a folder name that no other run has: name, time and a random id."""
    check_word(name, "name")
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return root / f"{name}_{stamp}_{secrets.token_hex(3)}"


class Run:
    """One run's folder: config, manifest, metrics, events, checkpoints, videos."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest: dict[str, Any] = {}
        if self.manifest_path.exists():
            self.manifest = read_json(self.manifest_path)
        self.entry = Entry(folder)
        self.began: float | None = None
        self.stamp = ""

    @property
    def manifest_path(self) -> Path:
        return self.folder / "manifest.json"

    @property
    def config_path(self) -> Path:
        return self.folder / "config.yaml"

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
            "versions": versions(),
            "hardware": hardware(),
            "git": git_state(),
        }
        if project := project_state():
            self.manifest["project"] = project
        write_json(self.manifest_path, self.manifest)

    def update(self, **data: Any) -> None:
        """Change fields of the manifest; this is also the heartbeat that the index hears."""
        with held(self.folder):
            self._take_tags()
            self.manifest.update(self._with_scores(data), heartbeat=time.time())
            write_json(self.manifest_path, self.manifest)
            self.stamp = stamp_of(self.manifest_path)
        if problem := self.entry.write(self.manifest):
            with suppress(OSError):
                self.event("message", text=f"the index is left alone for now: {problem}")

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
        with suppress(OSError, ValueError):
            found = json.loads(self.manifest_path.read_text())
            self.manifest |= {k: v for k, v in found.items() if k == "tags"}

    def tag(self, add: Sequence[str] = (), remove: Sequence[str] = ()) -> list[str]:
        """Give and take tags; return those the run has then. It may be in training."""
        for name in add:
            check_tag(name, "tag")
        with held(self.folder):
            self.manifest = read_json(self.manifest_path)
            tags = tags_of(self.manifest, read_config(self.folder))
            for name in remove:
                if name not in tags:
                    raise LabError(unknown("tag", name, tags, str(self.folder)))
            kept = [t for t in tags if t not in remove]
            self.manifest["tags"] = list(dict.fromkeys([*kept, *add]))
            write_json(self.manifest_path, self.manifest)
        self.entry.write(self.manifest)
        return self.manifest["tags"]

    def event(self, kind: str, **data: Any) -> None:
        """Append one line to events.jsonl."""
        line = json.dumps({"time": time.time(), "event": kind, **data})
        with (self.folder / "events.jsonl").open("a") as file:
            file.write(line + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """Return every record of metrics.jsonl; a last line cut short by a crash is left out."""
        path = self.folder / "metrics.jsonl"
        if not path.exists():
            return []
        records: list[dict[str, Any]] = []
        for line in path.read_text().splitlines():
            try:
                records.append(json.loads(line))
            except ValueError:
                break
        return records


class FolderLock:
    """Keeps two processes from writing into one run folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / ".lock"
        self.file: Any = None

    def __enter__(self) -> FolderLock:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.file = self.path.open("a+")
        # whoever looks whether a run is alive holds this lock for a moment
        if not acquire(self.file.fileno(), GLANCE_S):
            self.file.close()
            raise LabError(f"{self.path.parent}: another process is writing into this run folder")
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON file's content, or say which file is broken."""
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise LabError(f"{path} is not valid JSON: {error}") from None


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
    """Return the processor and accelerator."""
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {"machine": platform.machine(), "cpus": os.cpu_count(), "cpu": _cpu_name(), "gpus": gpus}


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
    return [Path(sys.argv[0]).name, *sys.argv[1:]]
