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
"""Longest wavelength of a sinusoidal embedding, over 2 pi."""


@dataclass(frozen=True)
class DenoiserSizes:
    """Input sizes: `horizon` rows of `width` entries, `tokens` conditions of `cond_dim` each."""

    horizon: int
    width: int
    tokens: int
    cond_dim: int


class Denoiser(nn.Module, ABC):
    """Built with its config and sizes."""

    flow_scale: ClassVar[float] = 1000.0
    """Scale of flow times in [0, 1], to match embeddings made for noise levels."""

    @abstractmethod
    def forward(
        self, x: Float[Tensor, "b h a"], time: Float[Tensor, " b"], cond: Float[Tensor, "b t d"]
    ) -> Float[Tensor, "b h a"]:
        """Predict the target of noisy sequences at a time (noise levels)."""

    def __call__(
        self, x: Float[Tensor, "b h a"], time: Float[Tensor, " b"], cond: Float[Tensor, "b t d"]
    ) -> Float[Tensor, "b h a"]:
        return super().__call__(x, time, cond)


class Sinusoids(nn.Module):
    """Sines and cosines of a scalar, with wavelengths from short to long."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.num = dim // 2
        self.rate = math.log(LONGEST) / (self.num - 1)

    def forward(self, x: Float[Tensor, " b"]) -> Float[Tensor, "b d"]:
        waves = torch.exp(torch.arange(self.num, device=x.device) * -self.rate)
        angles = x[:, None] * waves
        return torch.cat([angles.sin(), angles.cos()], -1)


class FourierFeatures(nn.Module):
    """Sines and cosines of a scalar, with learned frequencies."""

    def __init__(self, dim: int, spread: float = 0.2) -> None:
        super().__init__()
        self.waves = nn.Parameter(spread * torch.randn(dim // 2))

    def forward(self, x: Float[Tensor, " b"]) -> Float[Tensor, "b d"]:
        angles = 2 * math.pi * x[:, None] * self.waves
        return torch.cat([angles.cos(), angles.sin()], -1)
