"""Consoles that survive a closed terminal; rich's own would end the process."""

from __future__ import annotations

from rich.console import Console


class WorkConsole(Console):
    """For progress output: if it is closed, training continues silently."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class ShowConsole(Console):
    """For results: if the output is closed, the command ends, as with `print`."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError
