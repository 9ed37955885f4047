"""Numbers as distances from their mean so far, in deviations."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dreamlab.core import world


class Standardize(nn.Module):
    """Mean and variance of everything that `watch` was shown, early and late rows alike."""

    mean: Float[Tensor, " d"]
    var: Float[Tensor, " d"]
    count: Float[Tensor, ""]

    def __init__(self, dim: int, least: float = 1e-3) -> None:
        """Start with mean 0 and deviation 1; a deviation is never below `least`."""
        super().__init__()
        self.least = least
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("var", torch.ones(dim))
        self.register_buffer("count", torch.zeros(()))

    @torch.no_grad()
    def watch(self, x: Float[Tensor, "n d"], weight: Float[Tensor, " n"] | None = None) -> None:
        """Take the rows of all processes into account, each as often as its weight says."""
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
        """Return numbers in their own units."""
        return x * self.std + self.mean
