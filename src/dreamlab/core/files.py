"""Files that are whole or absent: written under a temporary name, flushed to the disk, renamed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any


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
