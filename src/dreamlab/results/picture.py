"""Figures that touch no state of matplotlib's, and that a notebook shows."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class Picture(Figure):
    """A figure without a window: nothing needs to be closed, and the user's backend stays."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()
