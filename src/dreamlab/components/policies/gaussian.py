"""A Gaussian over actions, optionally squashed into (-1, 1) by tanh."""

from __future__ import annotations

import math
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from dreamlab.components.policies.protocol import Policy, PolicyConfig, check_bounded
from dreamlab.core.limits import Finite, Positive, Width
from dreamlab.core.types import Mode, Obs, Spec
from dreamlab.nn.dists import Gaussian, TanhGaussian
from dreamlab.nn.mlp import MLP, Act, MLPConfig

INSIDE = 1 - 1e-5
"""Bound on training actions: beyond it the squashed density is unbounded."""


@dataclass(frozen=True)
class GaussianPolicyConfig(PolicyConfig):
    """Hidden layers and distribution."""

    hidden: tuple[Width, ...] = (256, 256)
    act: Act = "relu"
    squash: bool = True
    """Squash samples by tanh; otherwise clip Gaussian samples to the bounds, if there are any."""
    log_std: tuple[Finite, Finite] = (-5.0, 2.0)
    """Smooth bounds of the log-deviation."""
    temperature: Positive = 1.0
    """Factor of the deviation of samples; densities use 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.log_std[0] >= self.log_std[1]:
            raise ValueError(f"log_std={list(self.log_std)}: the first must be below the second")


class GaussianPolicy(Policy):
    """A mean and a deviation for every entry of a chunk, trained by maximum likelihood."""

    Config = GaussianPolicyConfig
    has_log_prob = True

    def __init__(self, config: GaussianPolicyConfig, spec: Spec) -> None:
        super().__init__(config, spec)
        check_bounded(spec.action, "gaussian", plain=not config.squash)
        self.bounded = spec.action.low is not None and spec.action.high is not None
        self.squash, self.temperature = config.squash, config.temperature
        self.low, self.high = config.log_std
        self.net = MLP(MLPConfig(config.hidden, config.act, gain=None), self.feature_dim)
        self.head = nn.Linear(self.net.out_dim, 2 * self.horizon * self.action_dim)

    def dist(self, obs: Obs) -> Gaussian | TanhGaussian:
        """Return the distribution of flattened chunks."""
        mean, raw = self.net.into(self.head, self.features(obs)).float().chunk(2, -1)
        log_std = self.low + 0.5 * (self.high - self.low) * (raw.tanh() + 1)
        return (TanhGaussian if self.squash else Gaussian)(mean, log_std)

    def sample(
        self, obs: Obs, n: int = 1, *, mode: Mode = Mode.TRAIN
    ) -> Float[Tensor, "b {n} h a"]:
        """Return reparameterized samples, or n copies of the mode."""
        dist = self.dist(obs)
        mean = dist.mean[:, None].expand(-1, n, -1)
        many = type(dist)(mean, dist.log_std[:, None] + math.log(self.temperature))
        flat = many.sample() if mode.samples else many.mode()
        inside = flat.clamp(-1, 1) if self.bounded else flat
        return inside.unflatten(-1, (self.horizon, self.action_dim))

    def loss(self, obs: Obs, action: Float[Tensor, "b h a"]) -> Float[Tensor, " b"]:
        """Return the negative log-likelihood; actions on the bounds are moved just inside."""
        inside = action.clamp(-INSIDE, INSIDE) if self.squash else action
        return -self.log_prob(obs, inside)

    def log_prob(self, obs: Obs, action: Float[Tensor, "b h a"]) -> Float[Tensor, " b"]:
        return self.dist(obs).log_prob(action.flatten(1))
