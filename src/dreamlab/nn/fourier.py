"""Sines and cosines of a vector's entries, for functions that vary faster than an MLP learns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dreamlab.core.limits import Range
from dreamlab.nn.mlp import Memoryless


@dataclass(frozen=True)
class FourierConfig:
    """Frequencies."""

    octaves: Annotated[int, Range(1, 16)] = 5
    """The lowest frequency has a period of 2, the range of normalized entries; each is twice the
    one before."""


class Fourier(Memoryless):
    """The input, and sin and cos of it at every frequency (NeRF's encoding, Mildenhall 2020)."""

    Config = FourierConfig

    def __init__(self, config: FourierConfig, in_dim: int) -> None:
        super().__init__()
        self.octaves, self.out_dim = config.octaves, in_dim * (1 + 2 * config.octaves)

    def forward(
        self, x: Float[Tensor, "*b d"], state: Any = (), is_first: Bool[Tensor, "*b"] | None = None
    ) -> tuple[Float[Tensor, "*b k"], Any]:
        rates = math.pi * 2.0 ** torch.arange(self.octaves, device=x.device, dtype=x.dtype)
        angles = (x[..., None] * rates).flatten(-2)
        return torch.cat([x, angles.sin(), angles.cos()], -1), state
