"""Work that a GPU may do beside other work."""

from __future__ import annotations

from typing import Any

import torch


class SideStream:
    """On a GPU, what is computed inside the block runs beside what follows it, until `join`.

    Gradients take the same ways back. Tensors made before the block and used in it must be kept
    until the end; elsewhere than on a GPU nothing happens.
    """

    streams: dict[torch.device, Any] = {}  # noqa: RUF012 (one per device, made when needed)

    def __init__(self, device: torch.device) -> None:
        self.stream: Any = None
        self.inside: Any = None
        if device.type == "cuda":
            if device not in self.streams:
                self.streams[device] = torch.cuda.Stream(device)
            self.stream = self.streams[device]

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())
            self.inside = torch.cuda.stream(self.stream)
            self.inside.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self.stream is not None:
            self.inside.__exit__(*error)

    def join(self) -> None:
        """Let what follows wait for the block."""
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
