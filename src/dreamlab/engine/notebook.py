"""The live view in a notebook: one output that is drawn over again."""

from __future__ import annotations

import io
import sys
import time
from typing import Any

from rich.console import Console

EVERY_S = 0.5
WIDTH = 100
FORM = '<pre style="white-space:pre;line-height:normal;overflow-x:auto">{code}</pre>'


def in_notebook() -> bool:
    """Return whether a notebook's kernel runs this; a plain IPython in a terminal is none."""
    if "IPython" not in sys.modules:
        return False
    shell = sys.modules["IPython"].get_ipython()
    return getattr(shell, "kernel", None) is not None


class NotebookLive:
    """Shows what rich draws, as `rich.live.Live` does on a terminal; needs no widgets."""

    def __init__(self, view: Any) -> None:
        self.view = view
        self.drawn = 0.0
        self.output: Any = None

    def start(self) -> None:
        """Start to draw."""
        from IPython.display import display

        self.output = display(self._html(), display_id=True)

    def update(self, view: Any) -> None:
        """Show something else from now on."""
        self.view = view
        self.tick()

    def tick(self) -> None:
        """Draw again, if that was not just done."""
        if time.monotonic() - self.drawn >= EVERY_S:
            self._draw()

    def stop(self) -> None:
        """Draw what stays."""
        self._draw()

    def _draw(self) -> None:
        self.drawn = time.monotonic()
        self.output.update(self._html())

    def _html(self) -> Any:
        from IPython.display import HTML

        console = Console(
            record=True, file=io.StringIO(), width=WIDTH, force_terminal=True, force_jupyter=False
        )
        console.print(self.view)
        return HTML(console.export_html(inline_styles=True, code_format=FORM))
