"""Pictures and films of a run, as trackers get them."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dreamlab.core.errors import require
from dreamlab.core.types import Array

STAMP = re.compile(r"(_\d{12})+$")
MOST_FRAMES = 120
MOST_PIXELS = 320
"""A GIF is much larger than a film: this wide at most, and so many frames."""


@dataclass(frozen=True)
class Media:
    """A file to show: a film (`.mp4`) or a picture (`.png`)."""

    path: Path
    at: int
    """The run's clock when it was made."""

    @property
    def name(self) -> str:
        """What it shows, the same every time: `videos/eval`, `report/openloop_state`."""
        stem = self.path.name.removesuffix(self.path.suffix).removesuffix(".frames")
        return f"{self.path.parent.name}/{STAMP.sub('', stem)}"

    @property
    def kind(self) -> Literal["video", "image", "other"]:
        kinds: dict[str, Literal["video", "image"]] = {".mp4": "video", ".png": "image"}
        return kinds.get(self.path.suffix, "other")


def read_film(path: Path) -> tuple[list[Array], float]:
    """Return the frames [h, w, 3] of a film and how many there are in a second."""
    av: Any = require("av", "data")
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        frames = [f.to_ndarray(format="rgb24") for f in container.decode(stream)]
        return frames, float(stream.average_rate or 30)


def gif(frames: Sequence[Array], fps: float) -> tuple[bytes, int, int]:
    """Return frames as an animated GIF with its height and width, thinned out if too large."""
    from PIL import Image

    skip = -(-len(frames) // MOST_FRAMES)
    thin = -(-max(frames[0].shape[:2]) // MOST_PIXELS)
    small = [np.ascontiguousarray(f[::thin, ::thin]) for f in frames[::skip]]
    pictures = [Image.fromarray(f) for f in small]
    file = io.BytesIO()
    pictures[0].save(
        file, format="GIF", save_all=True, append_images=pictures[1:],
        duration=max(20, round(1000 * skip / fps)), loop=0,
    )  # fmt: skip
    return file.getvalue(), *small[0].shape[:2]
