"""Denoising networks: noisy sequences, the time and a condition in."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

LONGEST = 10_000.0
"""Longest wave of a sinusoidal embedding, over 2 pi."""


@dataclass(frozen=True)
class DenoiserSizes:
    """What goes in: `horizon` rows of `width` numbers, `tokens` conditions of `cond_dim` each."""

    horizon: int
    width: int
    tokens: int
    cond_dim: int


class Denoiser(nn.Module, ABC):
    """Built with its config and sizes."""

    flow_scale: ClassVar[float] = 1000.0
    """How much of its time a flow from 0 to 1 takes: its waves are made for noise levels."""

    @abstractmethod
    def forward(
        self, x: Float[Tensor, "b h a"], time: Float[Tensor, " b"], cond: Float[Tensor, "b t d"]
    ) -> Float[Tensor, "b h a"]:
        """Return what is asked of noisy sequences at a time (noise levels)."""

    def __call__(
        self, x: Float[Tensor, "b h a"], time: Float[Tensor, " b"], cond: Float[Tensor, "b t d"]
    ) -> Float[Tensor, "b h a"]:
        return super().__call__(x, time, cond)


class Sinusoids(nn.Module):
    """Sines and cosines of a number, their waves from short to long."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.num = dim // 2
        self.rate = math.log(LONGEST) / (self.num - 1)

    def forward(self, x: Float[Tensor, " b"]) -> Float[Tensor, "b d"]:
        waves = torch.exp(torch.arange(self.num, device=x.device) * -self.rate)
        angles = x[:, None] * waves
        return torch.cat([angles.sin(), angles.cos()], -1)


class FourierFeatures(nn.Module):
    """Sines and cosines of a number, with waves that are learned."""

    def __init__(self, dim: int, spread: float = 0.2) -> None:
        super().__init__()
        self.waves = nn.Parameter(spread * torch.randn(dim // 2))

    def forward(self, x: Float[Tensor, " b"]) -> Float[Tensor, "b d"]:
        angles = 2 * math.pi * x[:, None] * self.waves
        return torch.cat([angles.cos(), angles.sin()], -1)
