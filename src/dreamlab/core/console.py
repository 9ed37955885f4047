"""Terminals that may be closed while we write: rich's own would end the process."""

from __future__ import annotations

from rich.console import Console


class WorkConsole(Console):
    """For what goes on whether or not somebody reads: a training falls silent, and goes on."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class ShowConsole(Console):
    """For what is only there to be read: the verb ends, as with `print`."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError
