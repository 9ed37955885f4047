"""A number that survives a restart and that no device has to be asked for."""

from __future__ import annotations

from typing import Any

from torch import nn


class Count(nn.Module):
    """An integer saved with the module that holds it."""

    def __init__(self, value: int = 0) -> None:
        super().__init__()
        self.value = value

    def get_extra_state(self) -> Any:
        return self.value

    def set_extra_state(self, state: Any) -> None:
        self.value = int(state)
