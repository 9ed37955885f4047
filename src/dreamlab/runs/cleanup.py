"""Gives disk space back: removes what can be made again, keeps what says what a run was.

Removed are checkpoints, replay buffers and videos, each only by the names that a run gives them.
Configs, metrics, chains, manifests, events and reports stay, and whatever else is there. A run that
is cleaned is marked before anything is lost, and marked without needing space: on a full disk
nothing new can be written, but a file can be renamed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from dreamlab.core.errors import LabError
from dreamlab.core.files import write_json
from dreamlab.core.readers import FileError, read_json
from dreamlab.runs.find import runs_under
from dreamlab.runs.locks import is_writing
from dreamlab.runs.readers import read_config_node, read_manifest
from dreamlab.runs.run import FolderLock
from dreamlab.runs.run_row import BROKEN, heard_of, last_heard, row_of

TEMPORARY = r"\..+\.\d+\.tmp(\.mp4)?"
STEPS = r"(steps|patch)_\d+_\d+(_[0-9a-f]{8})?\.pt"
KINDS = {
    "checkpoints": rf"(damaged_|undone_)?\d+(_\d+)*|latest|best|\.[\d_]+\.old|{TEMPORARY}",
    "buffers": rf"[^/]+/(spec\.json|{STEPS}|map_.+\.bin|{TEMPORARY})",
    "videos": rf"eval_.+\.(mp4|frames\.(png|npy))|{TEMPORARY}",
}
"""The folders that are emptied, and the names of a run's files in them."""
OURS = ("id", "name", "seed", "created", "status")
"""Required keys of a run's manifest; other programs also write a manifest.json."""
MARK = "cleaned"  # the loader of checkpoints knows this name
PATIENCE_S = 3600.0
"""A run with status running, updated more recently than this, may be on another machine."""
KEEP = "keep"
TRUSTED = ("status", "heartbeat", "created", "tags")
"""Manifest keys that decide whether a run is cleaned."""


@dataclass
class Candidate:
    """One run: what could be freed, and why it is kept if it is."""

    folder: Path
    name: str = ""
    created: str = ""
    score: float | None = None
    sizes: dict[str, int] = field(default_factory=dict)
    kept: str | None = None
    heard: float | None = None
    """Time of the last update, in seconds since 1970."""
    half_done: bool = False
    """A cleanup was interrupted before it updated the manifest."""

    @property
    def total(self) -> int:
        return sum(self.sizes.values())

    @property
    def due(self) -> bool:
        """Return whether there is something to do for this run."""
        return self.kept is None and (bool(self.sizes) or self.half_done)


def survey(
    root: Path, keep_best: int, keep_recent: int, older_than_s: float = 0.0
) -> list[Candidate]:
    """Return every run below `root`, newest first, each with its size and why it is kept.

    Kept are the `keep_best` best of each experiment, the `keep_recent` newest of all, those that
    said anything within `older_than_s`, those with the tag `keep`, those that are running, and
    those that cannot be read or are not a run's.
    """
    found = sorted((_look(f) for f in runs_under(root)), key=lambda c: c.created, reverse=True)
    for number, run in enumerate(found):
        if run.kept is None and number < keep_recent:
            run.kept = "recent"
    for name in {run.name for run in found}:
        rated = [run for run in found if run.name == name and run.score is not None]
        for run in sorted(rated, key=lambda c: c.score or 0.0, reverse=True)[:keep_best]:
            run.kept = run.kept or "best"
    since = time.time() - older_than_s
    for run in found if older_than_s else ():
        if run.heard is None or run.heard > since:
            run.kept = run.kept or "young"
    return found


def _look(folder: Path, ours: bool = False) -> Candidate:
    """Return one run as it is on the disk; a corrupted one says nothing that can be trusted.

    With `ours` the folder's lock is held by ourselves.
    """
    try:
        written, manifest = read_json(folder / "manifest.json"), read_manifest(folder)
        row = row_of(manifest, read_config_node(folder))
    except FileError:
        return Candidate(folder, kept="unreadable")
    if row["status"] == BROKEN or any(k in written and k not in manifest for k in TRUSTED):
        return Candidate(folder, kept="unreadable")
    if not (folder / "config.yaml").exists() or not {*OURS} <= {*manifest}:
        return Candidate(folder, kept="unreadable")
    sizes = {kind: sum(map(size, _contents(folder / kind))) for kind in KINDS}
    sizes = {k: v for k, v in sizes.items() if v}
    out = Candidate(folder, row["name"], row["created"] or "", row["return"], sizes)
    out.heard = last_heard(row)
    out.half_done = (folder / "checkpoints" / MARK).exists() and "cleaned" not in manifest
    if heard_of(row, time.time(), PATIENCE_S) or (not ours and is_writing(folder)):
        out.kept = "live"
    elif KEEP in json.loads(row["tags"]):
        out.kept = "tagged"
    return out


def size(path: Path) -> int:
    """Return the bytes of a file, or of a folder, the mark of a cleaned run apart."""
    if path.is_symlink() or path.is_file():
        return path.lstat().st_size
    total = 0
    for folder, _, names in os.walk(path):
        files = (Path(folder) / n for n in names if not (n == MARK and Path(folder) == path))
        total += sum(f.lstat().st_size for f in files)
    return total


def clean(run: Candidate) -> int:
    """Remove what is large in one run and return the bytes freed; doing it again changes nothing.

    latest ─▶ cleaned     renamed first: from here on nothing is loaded from this run
    manifest              says what was removed, once there is space again
    """
    try:
        with FolderLock(run.folder):
            if run.kept is not None or _look(run.folder, ours=True).kept:
                raise LabError(f"{run.folder}: this run is in use or kept; it was not cleaned")
            if "checkpoints" in run.sizes:
                _mark(run.folder / "checkpoints")
            for kind in run.sizes:
                for path in list(_contents(run.folder / kind)):
                    _remove(path)
            _remove_empty(run.folder / "buffers")
            _record(run)
    except OSError as error:
        raise LabError(
            f"{run.folder}: {error.strerror or error} ({error.filename}). Progress is recorded; "
            f"the next cleanup continues from here."
        ) from error
    return run.total


def _mark(folder: Path) -> None:
    """Rename the pointer to the latest checkpoint into the mark."""
    mark, pointer = folder / MARK, folder / "latest"
    if mark.exists():
        return
    if pointer.exists():
        pointer.rename(mark)
    else:
        mark.touch()


def _contents(folder: Path) -> Iterator[Path]:
    """Yield what is to be removed from one of the folders."""
    for path in sorted(folder.glob("*/*" if folder.name == "buffers" else "*")):
        if re.fullmatch(KINDS[folder.name], path.relative_to(folder).as_posix()):
            yield path


def _remove_empty(folder: Path) -> None:
    for path in folder.glob("*"):
        with suppress(OSError):  # it is not empty: the user keeps something there
            path.rmdir()


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _record(run: Candidate) -> None:
    """Write into the manifest when and what was removed; the heartbeat stays what it was."""
    manifest = read_manifest(run.folder)
    before = manifest.get("cleaned") or {}
    marked = ["checkpoints"] if (run.folder / "checkpoints" / MARK).exists() else []
    kinds = sorted({*before.get("kinds", ()), *run.sizes, *marked})
    freed = int(before.get("freed_bytes", 0)) + run.total
    when = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    manifest["cleaned"] = {"time": when, "kinds": kinds, "freed_bytes": freed}
    write_json(run.folder / "manifest.json", manifest)


def totals(runs: Iterable[Candidate]) -> dict[str, int]:
    """Return the bytes of each kind, over these runs."""
    chosen = list(runs)
    return {kind: sum(run.sizes.get(kind, 0) for run in chosen) for kind in KINDS}
