"""One file of what runs left behind but weights and replay buffers: to be recorded elsewhere.

`gpu_learning.py FOLDER --pack FILE.tar.xz` writes it; unpacked as a folder, `gpu_learning.py FOLDER
--minutes 0` makes the record from it, also together with runs that were made elsewhere.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

LEFT_OUT = ("checkpoints", "buffers", "videos", "report", "mps", "live")
"""Folders that are large, or that nothing but the run itself reads."""
KEPT = (".yaml", ".json", ".jsonl", ".md", ".png", ".log")
LONGEST_LOG = 200_000
"""Bytes of a run's output above which it stays behind."""


def files_of(folder: Path) -> Iterator[Path]:
    """Yield the files that belong into the pack."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if f not in LEFT_OUT)
        for path in (Path(place) / name for name in sorted(names)):
            if path.suffix == ".log" and path.stat().st_size > LONGEST_LOG:
                continue
            if path.suffix in KEPT and not path.is_symlink():
                yield path


def pack(folder: Path, file: Path) -> str:
    """Write the pack, whole or not at all, and return how large it became."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f"{file.name}.part")
    count = 0
    with tarfile.open(unfinished, "w:xz") as tar:
        for path in files_of(folder):
            tar.add(path, path.relative_to(folder))
            count += 1
    unfinished.replace(file)
    return f"packed {count} files into {file}: {file.stat().st_size / 1e6:.1f} MB"
