"""Writes frames as a video file, without a system ffmpeg."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np

from dreamlab.core.types import Array


def write_video(path: Path, frames: Sequence[Array], fps: int = 30) -> Path:
    """Write RGB frames [h, w, 3] as H.264; small ones are enlarged so that players show them."""
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    scale = max(1, 256 // max(frames[0].shape[:2]))
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


def _even(frame: Array, scale: int) -> Array:
    """Return a frame whose sides are even, as the codec wants them."""
    big = frame.repeat(scale, 0).repeat(scale, 1) if scale > 1 else frame
    if big.shape[-1] == 1:
        big = big.repeat(3, -1)
    return np.ascontiguousarray(
        big[: big.shape[0] // 2 * 2, : big.shape[1] // 2 * 2, :3].astype(np.uint8)
    )
