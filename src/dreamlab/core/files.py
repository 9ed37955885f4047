"""Files that are whole or absent: written under a temporary name, flushed to the disk, renamed."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from dreamlab.core.errors import LabError

REFUSALS = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO,
    errno.ENOTDIR, errno.EISDIR, errno.ELOOP,
)  # fmt: skip


def write_atomic(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Call `write` with an open file that becomes `path` only when everything is on the disk."""
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


def write_json(path: Path, data: Any) -> None:
    """Write plain data as JSON, whole or not at all."""
    text = json.dumps(data, indent=2, sort_keys=False) + "\n"
    write_atomic(path, lambda f: f.write(text.encode()))


def write_text(path: Path, text: str) -> None:
    """Write text, whole or not at all."""
    write_atomic(path, lambda f: f.write(text.encode()))


@contextmanager
def told_plainly(advice: str) -> Iterator[None]:
    """Turn a disk that is full, or that cannot be written to, into one message with advice.

    torch hides the error of the file it writes to behind one of its own.
    """
    try:
        yield
    except (OSError, RuntimeError) as error:
        reason = error if isinstance(error, OSError) else error.__context__
        if not isinstance(reason, OSError) or reason.errno not in REFUSALS:
            raise
        what = f"{reason.filename}: " if reason.filename else ""
        raise LabError(f"{what}{reason.strerror}. {advice}") from error
