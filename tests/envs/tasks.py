"""Three tiny tasks of different width: go to a point by pushing, each entry by itself."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Reach(gym.Env[Any, Any]):
    """Reward for being near a point; `dim` entries, `length` steps."""

    dim, length, sign = 1, 20, 1.0

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-9, 9, (2 * self.dim,), np.float32)
        self.action_space = spaces.Box(-2, 2, (self.dim,), np.float32)

    @property
    def episode_length(self) -> int:
        return self.length

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at, self.goal = np.zeros(self.dim), self.np_random.uniform(-1, 1, self.dim)
        self.steps = 0
        return self._obs(), {}

    def _obs(self) -> Any:
        return np.concatenate([self.at, self.goal]).astype(np.float32)

    def step(self, action: Any) -> Any:
        self.at = np.clip(self.at + 0.25 * self.sign * np.asarray(action), -2, 2)
        self.steps += 1
        reward = 1.0 - float(np.abs(self.at - self.goal).mean())
        return self._obs(), reward, False, self.steps >= self.length, {}


class Reach1(Reach):
    dim = 1


class Reach2(Reach):
    dim, length = 2, 40


class Mirrored(Reach):
    """Pushes the other way."""

    dim, sign = 1, -1.0


IDS = "+".join(f"{__name__}:{c}" for c in ("Reach1", "Reach2", "Mirrored"))
