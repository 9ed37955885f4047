"""Terminals that may be closed while we write: rich's own would end the process."""

from __future__ import annotations

from rich.console import Console


class WorkConsole(Console):
    """For output that may be closed: training continues silently."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class ShowConsole(Console):
    """For output that is the result: the command ends, as with `print`."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError
