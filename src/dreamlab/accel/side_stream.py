"""Concurrent work on a second GPU stream."""

from __future__ import annotations

from typing import Any

import torch

MAIN_PRIORITY = -1
"""Priority of captured work; lower numbers go first if both compete for processors."""


class SideStream:
    """Runs the block on a GPU concurrently with work launched between creation and `join`.

    The backward pass uses the same streams. Tensors created before the block and used in it must be
    kept until the end; without a GPU this does nothing.
    """

    streams: dict[tuple[torch.device, bool, str], Any] = {}  # noqa: RUF012 (made when needed)

    def __init__(self, device: torch.device, urgent: bool, name: str = "") -> None:
        """Choose the stream with higher priority than what follows if `urgent`, else lower.

        Blocks of the same name take turns: one whose backward pass runs beside another block needs
        a name of its own.
        """
        self.stream: Any = None
        self.inside: Any = None
        if device.type == "cuda":
            key = (device, urgent, name)
            if key not in self.streams:
                priority = MAIN_PRIORITY + (-1 if urgent else 1)
                self.streams[key] = torch.cuda.Stream(device, priority=priority)
            self.stream = self.streams[key]
            self.stream.wait_stream(torch.cuda.current_stream())

    def __enter__(self) -> None:
        if self.stream is not None:
            self.inside = torch.cuda.stream(self.stream)
            self.inside.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self.stream is not None:
            self.inside.__exit__(*error)

    def join(self) -> None:
        """Make subsequent work wait for the block."""
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
