"""A latent world model that predicts the value of actions and whether they are controllable.

TD-MPC2's encoder, dynamics and reward, plus values and an inverse model that predicts the action
between two latents. An action that the inverse model cannot recover from its own predicted effect
is out of distribution, or has no controllable effect. RIC uses both terms.

The rollout of a chunk ends with the value of its next action, by critics; if the rollout uses up
the chunk, there is none, and it ends with the value of the last latent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from dreamlab.components.critics.two_hot import TwoHotCritics, draw_pairs
from dreamlab.components.world_models.latent_mlp import LatentModel, LatentModelConfig
from dreamlab.core import world
from dreamlab.core.limits import NonNegative, PositiveInt, Range, SomeShare
from dreamlab.core.types import Batch, Metrics, Obs, Spec
from dreamlab.nn.normed import NormedMLP

ValueOf = Callable[[Obs], Tensor]
"""Maps observations [n, ...] to their values [n]."""


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
    num_q: Annotated[int, Range(2, 1_000)] = 5
    """Number of the model's critics, of which two random ones end a rollout; unused unless chunks
    have more than `steps` actions.
    """
    model: LatentModelConfig = field(default_factory=_model)
    weights: Weights = field(default_factory=Weights)
    shape: NonNegative = 0.0
    """Scale of the inverse model's gradient into the encoder."""
    tau: SomeShare = 0.01
    """Step size of the target model's weights towards the trained ones."""


class ControllableWorld(nn.Module):
    """Encoder, dynamics, reward, values and inverse dynamics, of one task or several."""

    value: NormedMLP | None
    """V(z), if the rollout uses up a chunk of `horizon` actions."""
    critics: TwoHotCritics | None
    """Q(z, a), if a chunk has an action left after the rollout."""

    def __init__(self, config: RICConfig, spec: Spec, gamma: float, horizon: int) -> None:
        super().__init__()
        self.config, self.gamma = config, gamma
        m = self.model = LatentModel(config.model, spec, [gamma] * max(1, len(spec.tasks)))
        c, hidden = config.model, config.model.mlp_dim
        self.value = self.critics = None
        if horizon > config.steps:
            self.critics = TwoHotCritics(config.num_q, m.step_dim, hidden, c.bins, dropout=0.0)
        else:
            self.value = NormedMLP([m.state_dim, hidden, hidden], c.bins.num, start="zero")
        pair = c.latent_dim + m.state_dim
        self.inverse = NormedMLP([pair, hidden, hidden], spec.action.size)

    def encode(self, obs: Obs) -> tuple[Float[Tensor, "*b d"], Int[Tensor, "*b"]]:
        """Return the latents and the tasks of observations [*b, ...]."""
        task = self.model.task_of(obs)
        return self.model.encode(obs, task), task

    def between(
        self, z: Float[Tensor, "*b d"], after: Float[Tensor, "*b d"], task: Int[Tensor, "*b"]
    ) -> Float[Tensor, "*b a"]:
        """Predict the actions between pairs of latents."""
        return self.inverse(self.model.about(task, torch.cat([z, after], -1))).tanh()

    def judge(
        self, z: Float[Tensor, "n d"], task: Int[Tensor, " n"], actions: Float[Tensor, "n h a"]
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """Return the predicted value of action chunks, and the inverse model's error on them."""
        num = min(self.config.steps, actions.shape[1])
        worth, missed = torch.zeros_like(z[:, 0]), torch.zeros_like(z[:, 0])
        for i, action in enumerate(actions[:, :num].unbind(1)):
            reward, after = self.step(z, action, task)
            missed = missed + (self.between(z, after, task) - action).square().sum(-1) / num
            worth, z = worth + self.gamma**i * self.model.decode(reward), after
        return worth + self.gamma**num * self._last_value(z, task, actions[:, num:]), missed

    def _last_value(
        self, z: Float[Tensor, "n d"], task: Int[Tensor, " n"], left: Float[Tensor, "n h a"]
    ) -> Float[Tensor, " n"]:
        """Return the mean of two random critics at the next action of the chunk, or V."""
        if self.critics is None:
            assert self.value is not None
            return self.model.decode(self.value(self.model.about(task, z)))
        heads = draw_pairs(1, self.config.num_q, z.device)[0]
        return self.critics.values(self.model.about(task, z, left[:, 0]), heads).mean(0)

    def losses(self, batch: Batch, value: ValueOf) -> tuple[Float[Tensor, ""], Metrics]:
        """Return the weighted loss on windows and its terms; values are learnt from `value`."""
        (z, task), action = self.encode(batch.obs), batch.action[:, :-1].flatten(2)
        same = (batch.is_last[:, :-1].int().cumsum(1) == 0).float()
        bins, states = self.config.model.bins, [z[:, 0]]
        drift: list[Tensor] = []
        surprise: list[Tensor] = []
        for i in range(action.shape[1]):
            reward, after = self.step(states[i], action[:, i], task[:, i])
            surprise.append(bins.loss(reward, batch.reward[:, i + 1]))
            drift.append((after - z[:, i + 1].detach()).square().mean(-1))
            states.append(after)
        if self.critics is None:
            worth = self._value_loss(batch.obs, z[:, 0].detach(), task[:, 0], value)
        else:
            steps = self.model.about(task[:, :-1], torch.stack(states[:-1], 1), action)
            error = bins.loss(self.critics(steps), self._targets(batch, value))
            worth = _mean(error.mean(0), same)
        found = {
            "consistency": _mean(torch.stack(drift, 1), same),
            "reward": _mean(torch.stack(surprise, 1), same),
            "value": worth,
            "inverse": self._inverse_loss(z, task, action, same > 0),
        }
        weights = self.config.weights
        total = torch.stack([getattr(weights, k) * v for k, v in found.items()]).sum()
        return total, {f"loss/{k}": v.detach() for k, v in found.items()}

    def step(
        self, z: Float[Tensor, "n d"], action: Float[Tensor, "n a"], task: Int[Tensor, " n"]
    ) -> tuple[Float[Tensor, "n k"], Float[Tensor, "n d"]]:
        """Return the reward distribution of a step, and the next latent."""
        return self.model.reward_logits(z, action, task), self.model.next(z, action, task)

    def _value_loss(
        self, obs: Obs, z: Float[Tensor, "b d"], task: Int[Tensor, " b"], value: ValueOf
    ) -> Float[Tensor, ""]:
        """Return the error of V at the first steps of windows."""
        assert self.value is not None
        with torch.no_grad():
            target = value({k: v[:, 0] for k, v in obs.items()})
        return self.config.model.bins.loss(self.value(self.model.about(task, z)), target).mean()

    @torch.no_grad()
    def _targets(self, batch: Batch, value: ValueOf) -> Float[Tensor, "b h"]:
        """Return the critics' targets: each step's reward plus the discounted value after it."""
        ahead = value({k: v[:, 1:].flatten(0, 1) for k, v in batch.obs.items()})
        factor = self.gamma * (~batch.is_terminal[:, 1:])
        return torch.addcmul(batch.reward[:, 1:], factor, ahead.unflatten(0, factor.shape))

    def _inverse_loss(
        self,
        z: Float[Tensor, "b t d"],
        task: Int[Tensor, "b t"],
        action: Float[Tensor, "b h a"],
        same: Bool[Tensor, "b h"],
    ) -> Float[Tensor, ""]:
        share = self.config.shape
        seen = z.detach() + share * (z - z.detach()) if share else z.detach()
        named = self.between(seen[:, :-1], seen[:, 1:], task[:, :-1])
        return _mean(F.mse_loss(named, action, reduction="none").sum(-1), same.float())


def _mean(x: Float[Tensor, "b h"], weight: Float[Tensor, "b h"]) -> Float[Tensor, ""]:
    return (x * weight).sum() / world.mean(weight.sum()).clamp(min=1.0)
