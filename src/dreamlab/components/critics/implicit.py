"""Implicit Q-learning's critics (Kostrikov et al. 2022, arXiv:2110.06169): in-sample actions only.

V(s) is an upper expectile of Q(s, a) over the data's actions, and Q bootstraps from V.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dreamlab.components.critics.q_function import QConfig, QFunction
from dreamlab.components.critics.transitions import Transitions
from dreamlab.components.encoder import Encoder
from dreamlab.core.limits import Range, SomeShare
from dreamlab.core.types import Metrics, Obs, Spec
from dreamlab.nn.mlp import MLP, MLPConfig
from dreamlab.nn.target import TargetNetwork, frozen_copy


@dataclass(frozen=True)
class ImplicitConfig:
    """Hyperparameters of the paper's locomotion tasks."""

    q: QConfig = field(default_factory=QConfig)
    expectile: Annotated[float, Range(0, 1, open_low=True, open_high=True)] = 0.7
    """0.5 is the mean over the data's actions; 1 approaches their maximum."""
    tau: SomeShare = 0.005
    """Step size of the target critics towards the critics at each update."""


class Value(nn.Module):
    """V(s), with its own encoder."""

    def __init__(self, config: QConfig, spec: Spec) -> None:
        super().__init__()
        self.encoder = Encoder(config.encoder, spec.obs)
        options = MLPConfig(config.hidden, config.act, config.norm, gain=None)
        self.net = MLP(options, self.encoder.out_dim)
        self.head = nn.Linear(self.net.out_dim, 1)

    def forward(self, obs: Obs) -> Float[Tensor, " b"]:
        """Return the values of observations [b, ...]."""
        return self.net.into(self.head, self.encoder(obs)).float()[..., 0]


class ImplicitCritic(nn.Module):
    """Q, its target, and V."""

    def __init__(self, config: ImplicitConfig, spec: Spec, horizon: int) -> None:
        super().__init__()
        self.config = config
        self.q = QFunction(config.q, spec, horizon)
        self.target = frozen_copy(self.q)
        self.target_network = TargetNetwork(self.target, self.q)
        self.value = Value(config.q, spec)

    def learnt(self) -> list[nn.Parameter]:
        """Return the trained parameters."""
        return [*self.q.parameters(), *self.value.parameters()]

    @torch.no_grad()
    def advantage(self, t: Transitions) -> Float[Tensor, " b"]:
        """Compute the advantage of the data's actions."""
        return self._data_value(t) - self.value(t.obs)

    @torch.no_grad()
    def _data_value(self, t: Transitions) -> Float[Tensor, " b"]:
        return self.target.bootstrap(self.target.features(t.obs), t.action)

    def loss(self, t: Transitions) -> tuple[Float[Tensor, ""], Metrics, Float[Tensor, "m b"]]:
        """Return the summed losses of V (eq. 5) and of every Q (eq. 6), metrics, and Q-values."""
        value = self.value(t.obs)
        value_loss = expectile_loss(self._data_value(t) - value, self.config.expectile).mean()
        with torch.no_grad():
            target = torch.addcmul(t.reward, t.factor, self.value(t.next_obs))
        out = self.q(self.q.features(t.obs), t.action)
        q_loss = self.q.loss(out, target).mean(1).sum()
        metrics = {"value_loss": value_loss, "q_loss": q_loss, "value": value.mean()}
        q = self.q.readout.decode(out).detach()
        metrics["q"] = q.mean()
        return value_loss + q_loss, {k: v.detach() for k, v in metrics.items()}, q

    def follow(self) -> None:
        """Update the target critics."""
        self.target_network.update(self.config.tau)


def expectile_loss(error: Float[Tensor, "*b"], expectile: float) -> Float[Tensor, "*b"]:
    """Compute the expectile loss: weight `expectile` for positive errors (eq. 5)."""
    weight = torch.where(error > 0, expectile, 1 - expectile)
    return weight * error.square()
