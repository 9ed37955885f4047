"""A latent world model that predicts the value of actions and whether they are controllable.

TD-MPC2's encoder, dynamics and reward, plus a state value and an inverse model that predicts the
action between two latents. An action that the inverse model cannot recover from its own predicted
effect is out of distribution, or has no controllable effect. RIC uses both terms.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from dreamlab.components.world_models.latent_mlp import LatentModel, LatentModelConfig
from dreamlab.core import world
from dreamlab.core.limits import NonNegative, PositiveInt, SomeShare
from dreamlab.core.types import Batch, Metrics, Obs, Spec
from dreamlab.nn.normed import NormedMLP


@dataclass(frozen=True)
class Weights:
    """Loss weights of the model."""

    consistency: NonNegative = 20.0
    reward: NonNegative = 0.1
    value: NonNegative = 0.1
    inverse: NonNegative = 1.0


def _model() -> LatentModelConfig:
    return LatentModelConfig(latent_dim=128, mlp_dim=256)


@dataclass(frozen=True)
class RICConfig:
    """Weights of the two terms in the policy loss, and the model that computes them."""

    constraint: NonNegative = 0.1
    """Weight of the inverse model's error; 0 disables it."""
    value: NonNegative = 0.1
    """Weight of the predicted value of the actions; 0 disables it."""
    steps: PositiveInt = 3
    """Maximum number of actions of a chunk rolled out in the model."""
    model: LatentModelConfig = field(default_factory=_model)
    weights: Weights = field(default_factory=Weights)
    shape: NonNegative = 0.0
    """Scale of the inverse model's gradient into the encoder."""
    tau: SomeShare = 0.01
    """Step size of the target model's weights towards the trained ones."""


class ControllableWorld(nn.Module):
    """Encoder, dynamics, reward, value and inverse dynamics."""

    def __init__(self, config: RICConfig, spec: Spec, gamma: float) -> None:
        super().__init__()
        self.config, self.gamma = config, gamma
        self.model = LatentModel(config.model, spec, [gamma])
        c, dim = config.model, config.model.latent_dim
        self.value = NormedMLP([dim, c.mlp_dim, c.mlp_dim], c.bins.num, start="zero")
        self.inverse = NormedMLP([2 * dim, c.mlp_dim, c.mlp_dim], spec.action.size)

    def encode(self, obs: Obs) -> Float[Tensor, "*b d"]:
        """Return the latents of observations [*b, ...]."""
        return self.model.encode(obs, self.model.task_of(obs))

    def between(
        self, z: Float[Tensor, "*b d"], after: Float[Tensor, "*b d"]
    ) -> Float[Tensor, "*b a"]:
        """Predict the actions between pairs of latents."""
        return self.inverse(torch.cat([z, after], -1)).tanh()

    def judge(
        self, z: Float[Tensor, "n d"], actions: Float[Tensor, "n h a"]
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """Return the predicted value of action chunks, and the inverse model's error on them."""
        num = min(self.config.steps, actions.shape[1])
        worth, missed = torch.zeros_like(z[:, 0]), torch.zeros_like(z[:, 0])
        for i, action in enumerate(actions[:, :num].unbind(1)):
            reward, after = self.step(z, action)
            missed = missed + (self.between(z, after) - action).square().sum(-1) / num
            worth, z = worth + self.gamma**i * self.model.decode(reward), after
        return worth + self.gamma**num * self.model.decode(self.value(z)), missed

    def losses(self, batch: Batch, value: Float[Tensor, " b"]) -> tuple[Float[Tensor, ""], Metrics]:
        """Return the weighted loss on windows and its terms; `value` targets their first steps."""
        z, action = self.encode(batch.obs), batch.action[:, :-1].flatten(2)
        same = (batch.is_last[:, :-1].int().cumsum(1) == 0).float()
        bins, state = self.config.model.bins, z[:, 0]
        drift: list[Tensor] = []
        surprise: list[Tensor] = []
        for i in range(action.shape[1]):
            reward, state = self.step(state, action[:, i])
            surprise.append(bins.loss(reward, batch.reward[:, i + 1]))
            drift.append((state - z[:, i + 1].detach()).square().mean(-1))
        found = {
            "consistency": _mean(torch.stack(drift, 1), same),
            "reward": _mean(torch.stack(surprise, 1), same),
            "value": bins.loss(self.value(z[:, 0].detach()), value).mean(),
            "inverse": self._inverse_loss(z, action, same > 0),
        }
        weights = self.config.weights
        total = torch.stack([getattr(weights, k) * v for k, v in found.items()]).sum()
        return total, {f"loss/{k}": v.detach() for k, v in found.items()}

    def step(
        self, z: Float[Tensor, "n d"], action: Float[Tensor, "n a"]
    ) -> tuple[Float[Tensor, "n k"], Float[Tensor, "n d"]]:
        """Return the reward distribution of a step, and the next latent."""
        task = torch.zeros(len(z), dtype=torch.int64, device=z.device)
        return self.model.reward_logits(z, action, task), self.model.next(z, action, task)

    def _inverse_loss(
        self, z: Float[Tensor, "b t d"], action: Float[Tensor, "b h a"], same: Bool[Tensor, "b h"]
    ) -> Float[Tensor, ""]:
        share = self.config.shape
        seen = z.detach() + share * (z - z.detach()) if share else z.detach()
        named = self.between(seen[:, :-1], seen[:, 1:])
        return _mean(F.mse_loss(named, action, reduction="none").sum(-1), same.float())


def _mean(x: Float[Tensor, "b h"], weight: Float[Tensor, "b h"]) -> Float[Tensor, ""]:
    return (x * weight).sum() / world.mean(weight.sum()).clamp(min=1.0)
