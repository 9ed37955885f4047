"""Writes frames as a video file without a system ffmpeg, or as an image where that cannot be."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import IO, Protocol

import numpy as np

from dreamlab.core.files import write_atomic
from dreamlab.core.types import Array

SHEET_FRAMES = 25
SHEET_PIXELS = 1600
"""Approximate maximum width of a contact sheet, in pixels."""
GAP_PIXELS = 4


class Film(Protocol):
    """Writes frames under a path or beside it, and returns the file that it wrote."""

    def __call__(self, path: Path, frames: Sequence[Array], fps: int = 30) -> Path: ...


class Films:
    """Writes videos; says once, if it must, that they become images."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say, self.said = say, False

    def write(self, path: Path, frames: Sequence[Array], fps: int = 30) -> Path:
        written = write_video(path, frames, fps)
        if not self.said and (fault := no_films()):
            self.said = True
            self.say(fault)
        return written


def no_films() -> str | None:
    """Return why videos become images here, if they do."""
    try:
        import av  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        return f"writing image sheets instead of videos: av cannot be imported ({error})"
    return None


def write_video(path: Path, frames: Sequence[Array], fps: int = 30) -> Path:
    """Write RGB frames [h, w, 3] as H.264, or some of them as an image where `av` is missing.

    Small ones are enlarged so that players show them. Return the file, which for an image ends in
    `.frames.png` (without Pillow: `.frames.npy`).
    """
    scale = max(1, 256 // max(frames[0].shape[:2]))
    if no_films() is None:
        return _encode(path, frames, fps, scale)
    return _write_picture(path, contact_sheet([_even(f, scale) for f in _chosen(frames)]))


def _encode(path: Path, frames: Sequence[Array], fps: int, scale: int) -> Path:
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp.mp4")
    try:
        with av.open(str(temporary), "w") as container:
            stream = container.add_stream("libx264", rate=Fraction(fps))
            first = _even(frames[0], scale)
            stream.height, stream.width = first.shape[:2]
            stream.pix_fmt = "yuv420p"
            for frame in frames:
                picture = av.VideoFrame.from_ndarray(_even(frame, scale), format="rgb24")
                container.mux(stream.encode(picture))
            container.mux(stream.encode())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _chosen(frames: Sequence[Array]) -> list[Array]:
    """Return frames at even distances, the first and the last among them."""
    at = np.linspace(0, len(frames) - 1, min(SHEET_FRAMES, len(frames))).round().astype(int)
    return [frames[i] for i in at]


def contact_sheet(frames: Sequence[Array]) -> Array:
    """Return one image of all frames, in rows from the upper left, thinned out if too large."""
    columns = math.ceil(math.sqrt(len(frames)))
    thin = max(1, math.ceil(columns * frames[0].shape[1] / SHEET_PIXELS))
    small = [f[::thin, ::thin] for f in frames]
    high, wide = (n + GAP_PIXELS for n in small[0].shape[:2])
    sheet = np.full((math.ceil(len(small) / columns) * high, columns * wide, 3), 255, np.uint8)
    for i, frame in enumerate(small):
        top, left = i // columns * high, i % columns * wide
        sheet[top : top + frame.shape[0], left : left + frame.shape[1]] = frame
    return sheet


def _write_picture(path: Path, picture: Array) -> Path:
    try:
        from PIL import Image
    except ImportError:
        out = path.with_suffix(".frames.npy")
        write_atomic(out, lambda file: np.save(file, picture))
        return out

    def save(file: IO[bytes]) -> None:
        Image.fromarray(picture).save(file, format="PNG")

    write_atomic(out := path.with_suffix(".frames.png"), save)
    return out


def _even(frame: Array, scale: int) -> Array:
    """Return a frame whose sides are even, as the codec wants them."""
    big = frame.repeat(scale, 0).repeat(scale, 1) if scale > 1 else frame
    if big.shape[-1] == 1:
        big = big.repeat(3, -1)
    return np.ascontiguousarray(
        big[: big.shape[0] // 2 * 2, : big.shape[1] // 2 * 2, :3].astype(np.uint8)
    )
