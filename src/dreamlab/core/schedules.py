"""Learning rate decay over the training, or over the first steps of an optimizer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dreamlab.core.limits import PositiveInt, Share


@dataclass(frozen=True)
class ConstantConfig:
    """No options."""


@dataclass(frozen=True)
class FallConfig:
    """Final value and duration of the decay."""

    final: Share = 0.0
    """Final value as a fraction of the initial one."""
    steps: PositiveInt | None = None
    """Optimizer steps of the decay; None: until the end of training."""


class Constant:
    """Constant learning rate."""

    Config = ConstantConfig

    def __init__(self, config: ConstantConfig) -> None:
        self.config = config

    def at(self, progress: float) -> float | None:
        """Return the factor at `progress` of training; None: constant."""
        return None

    def after(self, count: Tensor) -> Tensor | float:
        """Return the factor after `count` steps."""
        return 1.0


class Linear(Constant):
    """Linear decay."""

    Config: Any = FallConfig
    config: Any

    def at(self, progress: float) -> float | None:
        if self.config.steps is not None:
            return None
        return 1.0 - (1.0 - self.config.final) * self.bend(progress)

    def after(self, count: Tensor) -> Tensor | float:
        if self.config.steps is None:
            return 1.0
        share = (count / self.config.steps).clamp(max=1.0)
        return 1.0 - (1.0 - self.config.final) * self.bend_tensor(share)

    def bend(self, share: float) -> float:
        """Return the completed fraction of the decay after this share of the time."""
        return share

    def bend_tensor(self, share: Tensor) -> Tensor:
        """Compute `bend` on a device."""
        return share


class Cosine(Linear):
    """Cosine decay: half a wave (Loshchilov & Hutter 2017)."""

    def bend(self, share: float) -> float:
        return 0.5 - 0.5 * math.cos(math.pi * share)

    def bend_tensor(self, share: Tensor) -> Tensor:
        return 0.5 - 0.5 * torch.cos(math.pi * share)


PARTS = {
    "constant": "dreamlab.core.schedules.Constant",
    "linear": "dreamlab.core.schedules.Linear",
    "cosine": "dreamlab.core.schedules.Cosine",
}
