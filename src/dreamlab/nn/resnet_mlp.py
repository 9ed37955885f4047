"""A residual MLP denoiser for vectors: IDQL's LN-ResNet (Hansen-Estruch et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dreamlab.core.limits import Decay, Depth, Range, Width
from dreamlab.nn.denoiser import Denoiser, DenoiserSizes, FourierFeatures


@dataclass(frozen=True)
class ResNetMLPConfig:
    """Sizes of PA-RL's diffusion policy."""

    width: Width = 256
    blocks: Depth = 3
    dropout: Decay = 0.1
    time_dim: Annotated[int, Range(2, 65_536)] = 128


class ResidualBlock(nn.Module):
    """Residual block: dropout, LayerNorm, and an MLP four times as wide."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Dropout(dropout), nn.LayerNorm(width),
            nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width),
        )  # fmt: skip

    def forward(self, x: Float[Tensor, "b d"]) -> Float[Tensor, "b d"]:
        return x + self.layers(x)


class ResNetMLP(Denoiser):
    """Concatenated sequence, condition and time through residual blocks."""

    Config = ResNetMLPConfig
    flow_scale = 10.0

    def __init__(self, config: ResNetMLPConfig, sizes: DenoiserSizes) -> None:
        super().__init__()
        c, flat = config, sizes.horizon * sizes.width
        self.time = nn.Sequential(
            FourierFeatures(c.time_dim), nn.Linear(c.time_dim, 2 * c.time_dim), nn.SiLU(),
            nn.Linear(2 * c.time_dim, c.time_dim),
        )  # fmt: skip
        self.into = nn.Linear(c.time_dim + sizes.tokens * sizes.cond_dim + flat, c.width)
        self.blocks = nn.Sequential(*(ResidualBlock(c.width, c.dropout) for _ in range(c.blocks)))
        self.out = nn.Sequential(nn.SiLU(), nn.Linear(c.width, flat))

    def forward(
        self, x: Float[Tensor, "b h a"], time: Float[Tensor, " b"], cond: Float[Tensor, "b t d"]
    ) -> Float[Tensor, "b h a"]:
        row = torch.cat([self.time(time), cond.flatten(1), x.flatten(1)], -1)
        return self.out(self.blocks(self.into(row))).view_as(x)
