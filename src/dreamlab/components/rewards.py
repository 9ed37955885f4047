"""Known reward functions, for models that need not learn them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from dreamlab.core.errors import ConfigError


class RewardFunction(Protocol):
    """Computes the reward of a step from the observations before and after it."""

    def reward(
        self,
        obs: Float[Tensor, "*b d"],
        action: Float[Tensor, "*b a"],
        after: Float[Tensor, "*b d"],
    ) -> Float[Tensor, "*b"]:
        """Compute rewards; observations are concatenated vectors, actions in [-1, 1]."""
        ...


@dataclass(frozen=True)
class PendulumRewardConfig:
    """No options."""


class PendulumReward:
    """Reward of Pendulum-v1: squared angle, speed and torque before the step."""

    Config = PendulumRewardConfig

    def __init__(self, config: PendulumRewardConfig) -> None: ...

    def reward(
        self,
        obs: Float[Tensor, "*b d"],
        action: Float[Tensor, "*b a"],
        after: Float[Tensor, "*b d"],
    ) -> Float[Tensor, "*b"]:
        """Compute rewards of observations (cosine, sine, speed)."""
        if obs.shape[-1] != 3:
            raise ConfigError(
                "workflow.model.reward: pendulum_reward is that of Pendulum-v1, whose observations "
                f"are 3 numbers, not {obs.shape[-1]}"
            )
        cosine, sine, speed = obs.unbind(-1)
        angle, torque = torch.atan2(sine, cosine), 2 * action[..., 0]
        return -(angle.square() + 0.1 * speed.square() + 0.001 * torque.square())
