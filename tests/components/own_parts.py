"""Parts of DreamerV3 as a user would write them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dreamlab.components.heads import LatentPolicy
from dreamlab.components.world_models.rssm import RSSM, Latent, RSSMConfig
from dreamlab.core.limits import Share, Width
from dreamlab.core.types import ArraySpec, Obs


@dataclass(frozen=True)
class FlatConfig:
    width: Width = 5


class FlatEncoder(nn.Module):
    """One layer for all vectors end to end."""

    Config = FlatConfig

    def __init__(self, config: FlatConfig, obs: dict[str, ArraySpec]) -> None:
        super().__init__()
        self.out_dim = config.width
        self.layer = nn.Linear(sum(s.size for s in obs.values()), config.width)

    def forward(self, obs: Obs) -> Tensor:
        return self.layer(torch.cat([obs[k] for k in sorted(obs)], -1))


class FlatDecoder(nn.Module):
    """One layer for each vector; it takes its options as arguments."""

    def __init__(
        self, obs: dict[str, ArraySpec], deter: int, stoch: int, scale: float = 1.0
    ) -> None:
        super().__init__()
        self.decoded, self.scale = obs, scale
        self.out = nn.ModuleDict({k: nn.Linear(deter + stoch, s.size) for k, s in obs.items()})

    def forward(self, deter: Tensor, stoch: Tensor) -> Obs:
        state = torch.cat([deter, stoch], -1)
        return {k: self.scale * layer(state) for k, layer in self.out.items()}

    def natural(self, predicted: Obs) -> Obs:
        return predicted

    def losses(self, predicted: Obs, obs: Obs) -> Obs:
        return {k: (v - obs[k]).square().sum(-1) for k, v in predicted.items()}


@dataclass(frozen=True)
class ForgetfulConfig(RSSMConfig):
    forget: Share = 0.5


class Forgetful(RSSM):
    """A memory of which a share is lost at every step."""

    Config = ForgetfulConfig

    def imagine_step(self, state: Latent, action: Tensor, noise: Tensor) -> Latent:
        after = super().imagine_step(state, action, noise)
        return Latent(after.deter * (1 - self.config.forget), after.stoch)


class PlainHead(nn.Module):
    """A number as it is."""

    def __init__(self, in_dim: int) -> None:
        super().__init__()
        self.out = nn.Linear(in_dim, 1)

    def forward(self, feature: Tensor) -> Tensor:
        return self.out(feature).float()[..., 0]

    def mean(self, logits: Tensor) -> Tensor:
        return logits

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        return (logits - target).square()


class Probability(nn.Module):
    """A probability by the squared error."""

    def __init__(self, in_dim: int) -> None:
        super().__init__()
        self.out = nn.Linear(in_dim, 1)

    def forward(self, feature: Tensor) -> Tensor:
        return self.out(feature).float()[..., 0]

    def loss(self, logits: Tensor, target: Tensor) -> Tensor:
        return (torch.sigmoid(logits) - target).square()


class Alike(LatentPolicy):
    """Another class with the config of ours."""
