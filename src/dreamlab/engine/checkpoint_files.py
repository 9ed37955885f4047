"""The files of one checkpoint: written with a checksum, and verified when read."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dreamlab.core.errors import CheckpointError
from dreamlab.core.files import write_json
from dreamlab.core.readers import FileError, read_json

FORMAT = 1
State = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """The part of a checkpoint written by one process."""

    sha256: str
    marks: dict[str, Any]


def part_name(rank: int) -> str:
    """Return the file name of a process's part of a checkpoint; rank 0's is the state."""
    return f"state_rank{rank}.pt" if rank else "state.pt"


def processes_of(path: Path) -> int:
    """Return the number of processes that saved a checkpoint."""
    return 1 + len((read_meta(path) or {}).get("ranks", []))


def load_part(path: Path, name: str, sha256: str, device: str) -> State:
    """Load a file of a checkpoint and verify its checksum."""
    what = f"checkpoint {path.name}" if name == "state.pt" else f"checkpoint {path.name} ({name})"
    try:
        damaged = _hash(path / name) != sha256
    except OSError:  # missing, a folder, or a broken link
        raise CheckpointError(f"{what} is incomplete") from None
    if damaged:
        raise CheckpointError(f"{what} is corrupted (checksum mismatch)")
    try:
        return torch.load(path / name, map_location=device, weights_only=True)
    except Exception as error:
        raise CheckpointError(f"{what} cannot be read: {error}") from error


def write_part(path: Path, state: Any) -> str:
    """Write a state to disk and return its checksum."""
    with path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    return _hash(path)


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def replace_folder(source: Path, target: Path) -> None:
    """Rename a folder, replacing one of that name (the same frames saved twice)."""
    if target.exists():
        old = target.with_name(f".{target.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
        source.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    else:
        source.rename(target)


def read_meta(path: Path) -> dict[str, Any] | None:
    """Return the metadata of a checkpoint; None if the file is missing or damaged."""
    try:
        meta = read_json(path / "meta.json")
    except FileError:
        return None
    if not isinstance(meta.get("format"), int):
        return None
    known, check = {k: v for k, v in meta.items() if k != "check"}, meta.get("check")
    if meta["format"] <= FORMAT and check not in (None, _check(known)):
        return None
    kinds = {"sha256": str, "marks": dict, "score": float | int | None}
    sound = all(isinstance(known.get(k), kind) for k, kind in kinds.items())
    sound = sound and isinstance(known.get("ranks", []), list)
    return known if sound or known["format"] > FORMAT else None


def write_meta(path: Path, meta: dict[str, Any]) -> None:
    """Write the metadata of a checkpoint, with a checksum."""
    write_json(path / "meta.json", {**meta, "check": _check(meta)})


def _check(meta: dict[str, Any]) -> str:
    """Return the checksum of metadata."""
    return f"{zlib.crc32(json.dumps(meta, sort_keys=True).encode()):08x}"
