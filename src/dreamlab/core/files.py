"""Atomic writes: write to a temporary name, flush to disk, rename. And where the cache is."""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from dreamlab.core.errors import LabError

REFUSALS = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO,
    errno.ENOTDIR, errno.EISDIR, errno.ELOOP,
)  # fmt: skip
BLOCK_BYTES = 2**20
CACHE = "DREAMLAB_CACHE"
"""The environment variable that sets the folder of files that can be computed again."""


def cache_folder() -> Path:
    """Return where files that can be computed again are kept."""
    if given := os.environ.get(CACHE):
        return Path(given)
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "dreamlab"


def write_atomic(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Call `write` with an open file that becomes `path` only once it is flushed to disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


class _Summed:
    """A sequentially written file that computes a checksum of its content."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.crc = file, 0

    def write(self, data: Any) -> int:
        self.crc = zlib.crc32(data, self.crc)
        return self.file.write(data)

    def flush(self) -> None:
        self.file.flush()


def write_summed(folder: Path, stem: str, suffix: str, write: Callable[[Any], Any]) -> Path:
    """Write a file whose name ends with the checksum of its content; return its path.

    The name and content appear atomically, unlike with a separate checksum file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{stem}{suffix}.{os.getpid()}.tmp"
    try:
        with temporary.open("wb") as file:
            write(summed := _Summed(file))
            file.flush()
            os.fsync(file.fileno())
        return temporary.replace(folder / f"{stem}_{summed.crc:08x}{suffix}")
    finally:
        temporary.unlink(missing_ok=True)


def checksum_of(path: Path) -> str:
    """Return the checksum of a file, as `write_summed` computes it."""
    crc = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            crc = zlib.crc32(block, crc)
    return f"{crc:08x}"


def write_json(path: Path, data: Any) -> None:
    """Write plain data as JSON, atomically."""
    text = json.dumps(data, indent=2, sort_keys=False) + "\n"
    write_atomic(path, lambda f: f.write(text.encode()))


def write_text(path: Path, text: str) -> None:
    """Write text, atomically."""
    write_atomic(path, lambda f: f.write(text.encode()))


@contextmanager
def disk_errors(advice: str = "", every: bool = False) -> Iterator[None]:
    """Turn a full or read-only disk into one error message with advice.

    `every` covers all other file errors too, except a closed pipe. torch hides errors of the file
    it writes to behind its own.
    """
    try:
        yield
    except BrokenPipeError:  # the reader is gone: left to `main`
        raise
    except (OSError, RuntimeError) as error:
        reason = error if isinstance(error, OSError) else error.__context__
        if not isinstance(reason, OSError) or not (every or reason.errno in REFUSALS):
            raise
        what = f"{reason.filename}: " if reason.filename else ""
        end = f". {advice}" if advice else ""
        raise LabError(f"{what}{reason.strerror or reason}{end}") from error
