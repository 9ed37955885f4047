"""A counter that survives a restart and is kept on the CPU."""

from __future__ import annotations

from typing import Any

from torch import nn


class Count(nn.Module):
    """An integer saved with the module that holds it."""

    def __init__(self, value: int = 0) -> None:
        super().__init__()
        self.value = value

    def add(self, num: int) -> None:
        """Count further; torch is slow to set attributes of a module."""
        self.__dict__["value"] += num

    def get_extra_state(self) -> Any:
        return self.value

    def set_extra_state(self, state: Any) -> None:
        self.value = int(state)
