"""Novelty as the disagreement of several predictors (Sekar et al. 2020, arXiv:2005.05960)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dreamlab.core import world
from dreamlab.core.limits import Depth, Range, Width
from dreamlab.nn.ensemble import EnsembleMLP


@dataclass(frozen=True)
class EnsembleConfig:
    """Predictors of one step; those of the authors' later program."""

    num: Annotated[int, Range(2, 1_000)] = 10
    layers: Depth = 4
    units: Width = 400


class LatentEnsemble(nn.Module):
    """Guesses of what follows a state and an action.

    Where data was plenty all have learned the same; elsewhere each is still as it started.
    """

    def __init__(
        self, config: EnsembleConfig, state_dim: int, action_dim: int, out_dim: int
    ) -> None:
        super().__init__()
        dims = [state_dim + action_dim] + [config.units] * config.layers
        self.net = EnsembleMLP(config.num, dims, out_dim, "elu", norm=False)

    def forward(
        self, state: Float[Tensor, "*b d"], action: Float[Tensor, "*b a"]
    ) -> Float[Tensor, "num *b k"]:
        """Return every predictor's guess."""
        x = torch.cat([state.float(), action.float()], -1)
        # in full precision: guesses that differ little would else differ by rounding only
        with torch.autocast(x.device.type, enabled=False):
            return self.net(x.flatten(0, -2)).unflatten(1, x.shape[:-1])

    def losses(
        self,
        state: Float[Tensor, "*b d"],
        action: Float[Tensor, "*b a"],
        target: Float[Tensor, "*b k"],
    ) -> Float[Tensor, "*b"]:
        """Return the mean error of the guesses; nothing but their weights gets a gradient."""
        guess = self(state.detach(), action.detach())
        return 0.5 * (guess - target.detach().float()).square().sum(-1).mean(0)

    @torch.no_grad()
    def disagreement(
        self, state: Float[Tensor, "*b d"], action: Float[Tensor, "*b a"]
    ) -> Float[Tensor, "*b"]:
        """Return the variance of the guesses, averaged over their entries."""
        return self(state, action).var(0).mean(-1)


class Magnitude(nn.Module):
    """Divides numbers by their mean size so far, in which the recent ones count most."""

    mean: Float[Tensor, ""]
    share: Float[Tensor, ""]

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("share", torch.zeros(()))

    @torch.no_grad()
    def forward(self, x: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        """Take note of `x` and return it with a size of about 1."""
        self.mean.lerp_(world.mean(x.abs().mean()), self.rate)
        self.share.lerp_(torch.ones_like(self.share), self.rate)
        return x * (self.share / self.mean.clamp(min=1e-12))
