"""Images decoded once, into a file that is mapped into memory and that later runs find again."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dreamlab.core.files import cache_folder, write_json
from dreamlab.core.readers import FileError, read_json
from dreamlab.core.types import Array
from dreamlab.data.datasets.table import Broken, Camera, Dataset

SUFFIX = ".frames"


@dataclass(frozen=True)
class Kept:
    """A camera ready to be read, what is broken in it, and what a user should know."""

    camera: Camera
    broken: Broken
    notes: list[str]


class Mapped:
    """Decoded images in a file, one for each row of the set."""

    def __init__(self, path: Path, num_rows: int, shape: tuple[int, int, int]) -> None:
        self.shape = shape
        self.data = np.memmap(path, np.uint8, "r", shape=(num_rows, *shape))

    def read(self, frames: Array) -> Array:
        """Copy the images out of the file."""
        return np.take(self.data, frames, axis=0)

    def in_order(self, put: Callable[[Array, Array], None]) -> Broken:
        """Give every image."""
        for row in range(len(self.data)):
            put(np.array([row]), self.data[row : row + 1])
        return {}


class Resized:
    """A camera whose images are given at another size, as an environment's are."""

    def __init__(self, camera: Camera, size: tuple[int, int]) -> None:
        self.camera = camera
        self.shape = (*size, camera.shape[2])

    def read(self, frames: Array) -> Array:
        """Read and resize."""
        return self._resize(self.camera.read(frames))

    def in_order(self, put: Callable[[Array, Array], None]) -> Broken:
        """Resize each image as it comes."""
        return self.camera.in_order(lambda rows, pictures: put(rows, self._resize(pictures)))

    def _resize(self, pictures: Array) -> Array:
        """Resize channel by channel: with four, PIL would take the last for transparency."""
        from PIL import Image

        height, width = self.shape[:2]
        out = np.zeros((len(pictures), *self.shape), np.uint8)
        for i, picture in enumerate(pictures):
            for c in range(self.shape[2]):
                plane = Image.fromarray(np.ascontiguousarray(picture[..., c]))
                small = plane.resize((width, height), Image.Resampling.BILINEAR)
                out[i, ..., c] = np.asarray(small)
        return out


def keep_frames(data: Dataset, key: str, size: tuple[int, int] | None, most_bytes: int) -> Kept:
    """Return a camera whose images are decoded once and kept, if there is room for them.

    Files of other sets that were not used for longest make room. Without room, images are
    decoded whenever they are required, and that is said.
    """
    camera = data.camera(key)
    if size is not None and size != camera.shape[:2]:
        camera = Resized(camera, size)
    height, width, channels = camera.shape
    name = f"{data.fingerprint}_{re.sub(r'[^A-Za-z0-9]', '-', key)}_{height}x{width}"
    path = cache_folder() / "frames" / f"{name}{SUFFIX}"
    need = data.num_rows * height * width * channels
    found = _find(path, need)
    if found is None:
        if fault := _no_room(path.parent, need, most_bytes):
            return Kept(
                camera,
                {},
                [f"{data.place}: {key} is decoded for every batch, without cache: {fault}"],
            )
        found = _decode(camera, path, data.num_rows)
    os.utime(path)
    return Kept(Mapped(path, data.num_rows, camera.shape), found, [])


def _find(path: Path, need: int) -> Broken | None:
    """Return what is broken in images that were decoded before; None if there are none."""
    try:
        about = read_json(path.with_suffix(".json"))
        whole = path.stat().st_size == need
    except (FileError, OSError):
        return None
    return {int(k): str(v) for k, v in about.get("broken", {}).items()} if whole else None


def _decode(camera: Camera, path: Path, num_rows: int) -> Broken:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        made = np.memmap(temporary, np.uint8, "w+", shape=(num_rows, *camera.shape))

        def put(rows: Array, pictures: Array) -> None:
            made[rows] = pictures

        broken = camera.in_order(put)
        made.flush()
        write_json(path.with_suffix(".json"), {"broken": broken})
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return broken


def _no_room(folder: Path, need: int, most_bytes: int) -> str | None:
    """Make room for images; return why there is none, if so."""
    gib = 2**30
    if need > most_bytes:
        most = f"cache_bytes allows {most_bytes / gib:.2f}"
        return f"its images take {need / gib:.2f} GiB, {most}"
    folder.mkdir(parents=True, exist_ok=True)
    kept = sorted(folder.glob(f"*{SUFFIX}"), key=lambda p: p.stat().st_mtime)
    used = sum(p.stat().st_size for p in kept)
    while kept and used + need > most_bytes:
        oldest = kept.pop(0)
        used -= oldest.stat().st_size
        oldest.unlink(missing_ok=True)
        oldest.with_suffix(".json").unlink(missing_ok=True)
    if (free := shutil.disk_usage(folder).free) < 1.1 * need:
        return f"its images take {need / gib:.2f} GiB, the disk has {free / gib:.2f} free"
    return None
