"""Checkpoints: a folder each, whole or absent, verified before it is believed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dreamlab.core.errors import CheckpointError
from dreamlab.core.files import write_json, write_text
from dreamlab.core.readers import FileError, read_pointer
from dreamlab.core.tree import to_plain

FORMAT = 1
CLEANED = "cleaned"


@dataclass(frozen=True)
class CheckpointConfig:
    """How often a run is saved and how much of the past is kept."""

    every_frames: int = 50_000
    every_s: float = 600.0
    """Also save after this many seconds; 0 saves by frames only."""
    keep: int = 2
    """Latest checkpoints kept; at least 2, so that a damaged one has a predecessor."""
    keep_best: bool = True
    """Save when an evaluation is the best so far, and keep that (or the best training return)."""
    keep_every_frames: int = 0
    """Keep the first one after each multiple of this for good; 0 keeps none. Like the best, it can
    be evaluated, but a replay keeps only the steps that the latest ones need."""


class Checkpoints:
    """The folder `checkpoints/` of a run.

    000000050000/{state.pt, meta.json}   written under another name, then renamed
    latest                               the name of the newest
    best                                 the name of the best
    cleaned                              there instead of `latest` once they were removed for good
    """

    def __init__(self, folder: Path, config: CheckpointConfig, say: Callable[[str], None]) -> None:
        self.folder, self.config, self.say = folder, config, say

    def save(
        self, state: dict[str, Any], frames: int, score: float | None, marks: dict[str, Any]
    ) -> Path:
        """Write a checkpoint and make it the latest; drop those that are no longer kept.

        `marks` say, per buffer, how much of its files this checkpoint needs.
        """
        name = f"{frames:012d}"
        final, temporary = self.folder / name, self.folder / f".{name}.{os.getpid()}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            digest = _write_hashed(temporary / "state.pt", to_plain(state))
            meta = {
                "format": FORMAT,
                "env_frames": frames,
                "score": score,
                "sha256": digest,
                "marks": marks,
            }
            write_json(temporary / "meta.json", meta)
            _replace_folder(temporary, final)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        write_text(self.folder / "latest", name + "\n")
        if self.would_be_best(score):
            write_text(self.folder / "best", name + "\n")
        self._retain()
        return final

    def would_be_best(self, score: float | None) -> bool:
        """Tell whether a checkpoint with this score would be kept as the best."""
        best = self.named("best")
        if score is None or not self.config.keep_best:
            return False
        old = _read_meta(best) if best is not None else None
        return old is None or old.get("score") is None or score >= old["score"]

    def names(self) -> list[str]:
        """Return the names of all checkpoints, newest first."""
        if not self.folder.exists():
            return []
        return sorted(
            (p.name for p in self.folder.iterdir() if p.is_dir() and p.name.isdigit()), reverse=True
        )

    def named(self, pointer: str) -> Path | None:
        """Return the checkpoint that `latest` or `best` points to, if it is there."""
        try:
            name = read_pointer(self.folder / pointer)
        except FileError:
            return None
        return path if name and (path := self.folder / name).is_dir() else None

    def load(self, which: str = "latest", device: str = "cpu") -> dict[str, Any] | None:
        """Return the newest state that is whole, or the one asked for; None if there is none.

        A checkpoint that is damaged is passed over, with a message, for the one before it.
        """
        if (self.folder / CLEANED).exists():
            raise CheckpointError(
                f"{self.folder.parent}: `dreamlab cleanup` has removed the checkpoints of this "
                "run; its metrics are still there. To train it again use another run.dir."
            )
        if which != "latest":
            path = self.named(which) or self.folder / which
            if not path.is_dir():
                raise CheckpointError(
                    f"{self.folder}: there is no checkpoint {which!r}; there are {self.names()}"
                )
            return self._read(path, device)
        names = self.names()
        for name in names:
            try:
                return self._read(self.folder / name, device)
            except CheckpointError as error:
                self.say(f"{error}; using the checkpoint before it")
                (self.folder / name).rename(self.folder / f"damaged_{name}")
        if names:
            raise CheckpointError(f"{self.folder}: none of the checkpoints {names} is whole")
        return None

    def _read(self, path: Path, device: str) -> dict[str, Any]:
        meta, file = _read_meta(path), path / "state.pt"
        if meta is None or not file.exists():
            raise CheckpointError(f"checkpoint {path.name} is incomplete")
        if meta.get("format") != FORMAT:
            raise CheckpointError(
                f"checkpoint {path.name} has format {meta.get('format')}, not {FORMAT}"
            )
        if _hash(file) != meta["sha256"]:
            raise CheckpointError(f"checkpoint {path.name} is damaged (its checksum differs)")
        try:
            return torch.load(file, map_location=device, weights_only=True)
        except Exception as error:
            raise CheckpointError(f"checkpoint {path.name} cannot be read: {error}") from error

    def marks(self) -> list[dict[str, Any]]:
        """Return what the latest checkpoints need of the buffers' files."""
        metas = [
            _read_meta(self.folder / name) for name in self.names()[: max(2, self.config.keep)]
        ]
        return [meta["marks"] for meta in metas if meta is not None]

    def _retain(self) -> None:
        names, best = self.names(), self.named("best")
        kept = {*names[: max(2, self.config.keep)], *self._milestones(names)}
        for name in names:
            if name not in kept and (best is None or name != best.name):
                shutil.rmtree(self.folder / name, ignore_errors=True)

    def _milestones(self, names: list[str]) -> list[str]:
        """Return the first checkpoint after each multiple of `keep_every_frames`."""
        period, passed = self.config.keep_every_frames, 0
        out: list[str] = []
        for name in reversed(names) if period > 0 else ():
            if int(name) // period > passed:
                passed = int(name) // period
                out.append(name)
        return out


def _write_hashed(path: Path, state: Any) -> str:
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    return _hash(path)


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _replace_folder(source: Path, target: Path) -> None:
    """Rename a folder; one of that name (the same frames saved twice) makes way first."""
    if target.exists():
        old = target.with_name(f".{target.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
        source.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    else:
        source.rename(target)


def _read_meta(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads((path / "meta.json").read_text())
    except (OSError, ValueError):
        return None
