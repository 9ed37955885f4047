"""Captions for video frames: row and column labels, and the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dreamlab.core.types import Array

Color = tuple[int, int, int]
CONTEXT, IMAGINED = (0, 200, 0), (220, 0, 0)
"""Border colors of observed and of imagined steps."""
BACKGROUND, INK = (24, 24, 27), (235, 235, 235)
TILE_PIXELS = 96
"""Minimum height of a row; smaller ones are enlarged."""


@dataclass(frozen=True)
class Captions:
    """Labels of rows and columns, and a title for each frame."""

    heads: Sequence[tuple[str, Color]]
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()


def step_head(step: int, context: int, length: int) -> tuple[str, Color]:
    """Return the title of a step of an open-loop prediction, and its color."""
    where = f"step {step + 1} of {length}"
    if step < context:
        return f"{where}: context (the model sees it)", CONTEXT
    return f"{where}: imagined, {step - context + 1} ahead", IMAGINED


def captioned(frames: Array, captions: Captions) -> Array:
    """Add captions to frames [t, h, w, 3], enlarging small ones."""
    rows = max(1, len(captions.rows))
    scale = max(1, round(TILE_PIXELS * rows / frames.shape[1]))
    big = frames.repeat(scale, 1).repeat(scale, 2)
    height, width = big.shape[1:3]
    size = max(13, width // 50)
    left, top = (4 * size if captions.rows else 0), round(1.7 * size)
    above = top * (2 if captions.columns else 1)
    out = np.empty((len(big), above + height, left + width, 3), np.uint8)
    for i, (frame, (text, color)) in enumerate(zip(big, captions.heads, strict=True)):
        canvas = _words((left + width, above + height), size, text, color)
        for k, name in enumerate(captions.rows):
            canvas.text((size // 2, round(height * (k + 0.5) / rows) + above), name, anchor="lm")
        for k, name in enumerate(captions.columns):
            middle = left + round(width * (k + 0.5) / len(captions.columns))
            canvas.text((middle, round(1.5 * top)), name, anchor="mm")
        out[i] = canvas.pixels()
        out[i, above:, left:] = frame
    return out


class _Canvas:
    """A dark image with text in one font."""

    def __init__(self, shape: tuple[int, int], size: int) -> None:
        from PIL import Image, ImageDraw, ImageFont

        self.image = Image.new("RGB", shape, BACKGROUND)
        self.draw = ImageDraw.Draw(self.image)
        self.font: Any = ImageFont.load_default(size)

    def text(self, at: tuple[int, int], words: str, anchor: str, color: Color = INK) -> None:
        self.draw.text(at, words, fill=color, font=self.font, anchor=anchor)

    def pixels(self) -> Array:
        return np.asarray(self.image)


def _words(shape: tuple[int, int], size: int, text: str, color: Color) -> _Canvas:
    """Return a canvas with one line of text at its top."""
    canvas = _Canvas(shape, size)
    bright = tuple(min(255, c + 60) for c in color)
    canvas.text((size // 2, round(0.85 * size)), text, "lm", (bright[0], bright[1], bright[2]))
    return canvas
