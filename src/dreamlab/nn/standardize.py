"""Standardization by running mean and deviation."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dreamlab.core import world


class Standardize(nn.Module):
    """Mean and variance of all rows seen by `watch`, equally weighted."""

    mean: Float[Tensor, " d"]
    var: Float[Tensor, " d"]
    count: Float[Tensor, ""]

    def __init__(self, dim: int, least: float = 1e-3) -> None:
        """Initialize with mean 0 and deviation 1; deviations are at least `least`."""
        super().__init__()
        self.least = least
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("var", torch.ones(dim))
        self.register_buffer("count", torch.zeros(()))

    @torch.no_grad()
    def watch(self, x: Float[Tensor, "n d"], weight: Float[Tensor, " n"] | None = None) -> None:
        """Update the statistics with the rows of all processes, weighted by `weight`."""
        weight = torch.ones_like(x[:, 0]) if weight is None else weight
        total = world.total(weight.sum())
        new = self.count + total
        share = total / new.clamp(min=1e-6)
        each = weight[:, None] / total.clamp(min=1e-6)
        mean = world.total((each * x).sum(0))
        var = world.total((each * (x - mean).square()).sum(0))
        gap = mean - self.mean
        self.var.copy_((1 - share) * self.var + share * var + share * (1 - share) * gap.square())
        self.mean.add_(share * gap)
        self.count.copy_(new)

    @property
    def std(self) -> Float[Tensor, " d"]:
        return self.var.sqrt().clamp(min=self.least)

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        return (x - self.mean) / self.std

    def inverse(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        """Undo the standardization."""
        return x * self.std + self.mean
