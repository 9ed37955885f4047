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
    """One-step predictors, with the sizes of the authors' later code."""

    num: Annotated[int, Range(2, 1_000)] = 10
    layers: Depth = 4
    units: Width = 400


class LatentEnsemble(nn.Module):
    """An ensemble that predicts what follows a state and an action.

    Predictions agree where data is plentiful; elsewhere they depend on the initialization.
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
        """Return the prediction of every member."""
        x = torch.cat([state.float(), action.float()], -1)
        # full precision: small disagreements would otherwise be rounding errors
        with torch.autocast(x.device.type, enabled=False):
            return self.net(x.flatten(0, -2)).unflatten(1, x.shape[:-1])

    def losses(
        self,
        state: Float[Tensor, "*b d"],
        action: Float[Tensor, "*b a"],
        target: Float[Tensor, "*b k"],
    ) -> Float[Tensor, "*b"]:
        """Return the mean prediction error; only the ensemble's weights receive gradients."""
        guess = self(state.detach(), action.detach())
        return 0.5 * (guess - target.detach().float()).square().sum(-1).mean(0)

    @torch.no_grad()
    def disagreement(
        self, state: Float[Tensor, "*b d"], action: Float[Tensor, "*b a"]
    ) -> Float[Tensor, "*b"]:
        """Return the variance of the predictions, averaged over entries."""
        return self(state, action).var(0).mean(-1)


class Magnitude(nn.Module):
    """Normalizes values by a running mean of their magnitude."""

    mean: Float[Tensor, ""]
    share: Float[Tensor, ""]

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("share", torch.zeros(()))

    @torch.no_grad()
    def forward(self, x: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        """Update the magnitude with `x` and return `x` normalized."""
        self.mean.lerp_(world.mean(x.abs().mean()), self.rate)
        self.share.lerp_(torch.ones_like(self.share), self.rate)
        return x * (self.share / self.mean.clamp(min=1e-12))
