"""Work that a GPU may do beside other work."""

from __future__ import annotations

from typing import Any

import torch

MAIN_PRIORITY = -1
"""Of what is captured; a number below it goes first, as far as both want the same processors."""


class SideStream:
    """On a GPU, what is computed inside the block runs beside the rest of what was requested
    between making this and `join`.

    Gradients take the same ways back. Tensors made before the block and used in it must be kept
    until the end; elsewhere than on a GPU nothing happens.
    """

    streams: dict[tuple[torch.device, bool], Any] = {}  # noqa: RUF012 (made when needed)

    def __init__(self, device: torch.device, urgent: bool) -> None:
        """Take the stream for what is more urgent than what follows, or for what is less."""
        self.stream: Any = None
        self.inside: Any = None
        if device.type == "cuda":
            key = (device, urgent)
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
        """Let what follows wait for the block."""
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
