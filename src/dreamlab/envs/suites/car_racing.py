"""CarRacing as World Models (Ha and Schmidhuber 2018) shows it to its agents."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from dreamlab.envs.suites.gym import make as make_gym

TRACK = 84
"""Image rows that show the track; the indicators are below."""


class PaperView(gym.Wrapper[Any, Any, Any, Any]):
    """The track alone, colors inverted; three numbers in [-1, 1] steer, give gas and brake.

    Gas is at half for 0, the brake is off for 0 and below.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.action_space = spaces.Box(-1, 1, (3,), np.float32)
        self.observation_space = spaces.Box(0, 255, (TRACK, 96, 3), np.uint8)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**kwargs)
        return _shown(obs), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        steer, gas, brake = np.asarray(action, np.float32)
        pedals = np.array([steer, (gas + 1) / 2, np.clip(brake, 0, 1)], np.float32)
        obs, reward, terminated, truncated, info = self.env.step(pedals)
        return _shown(obs), reward, terminated, truncated, info


def _shown(obs: Any) -> Any:
    return 255 - obs[:TRACK]


def make(task: str = "CarRacing-v3", **options: Any) -> gym.Env[Any, Any]:
    """Return CarRacing; options are those of the Gymnasium environment."""
    return PaperView(make_gym(task, **options))
