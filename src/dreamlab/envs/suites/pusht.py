"""PushT (Chi et al. 2023): a disc pushes a T-shaped block onto its place.

The score of an episode, `log/score`, is the largest reward: the fraction of the place that the
block covered, 1 from 95 % on. That is what is published; success is to reach 1, and ends the
episode.
"""

from __future__ import annotations

from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from dreamlab.core.errors import ConfigError, unknown
from dreamlab.core.limits import Side
from dreamlab.envs.compat import need

Info = dict[str, Any]
TASK = "PushT-v0"
WORLD = 512
NAMES = {"agent_pos": "state", "environment_state": "environment_state", "pixels": "image"}
"""Observations, and their names in LeRobot's datasets of this task."""
KINDS = {
    "state": "state",
    "keypoints": "environment_state_agent_pos",
    "pixels": "pixels_agent_pos",
}
SPACES: dict[str, dict[str, tuple[int, ...]]] = {
    "state": {"state": (5,)},
    "keypoints": {"state": (2,), "environment_state": (16,)},
    "pixels": {"state": (2,)},
}


class PushT(gym.Wrapper[Any, Any, Any, Any]):
    """Names observations as in its datasets, and adds the score to the info."""

    def __init__(
        self, env: gym.Env[Any, Any], kind: Literal["state", "keypoints", "pixels"]
    ) -> None:
        super().__init__(env)
        # the disc leaves the walls' inside a little, and a block's corners do: no bounds are true
        found: dict[str, spaces.Space[Any]] = {
            k: spaces.Box(-np.inf, np.inf, shape, np.float32) for k, shape in SPACES[kind].items()
        }
        if kind == "pixels":
            found["image"] = env.observation_space["pixels"]  # type: ignore[index]
        self.observation_space = spaces.Dict(found)
        self.best = 0.0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        self.best = 0.0
        obs, _ = self.env.reset(seed=seed, options=options)
        return self._named(obs), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.best = max(self.best, float(reward))
        told = {
            "success": bool(info["is_success"]),
            "log/score": self.best,
            "log/coverage": float(info["coverage"]),
        }
        return self._named(obs), float(reward), bool(terminated), bool(truncated), told

    def _named(self, obs: Any) -> dict[str, Any]:
        if not isinstance(obs, dict):
            return {"state": np.asarray(obs, np.float32)}
        return {NAMES[k]: v if k == "pixels" else np.asarray(v, np.float32) for k, v in obs.items()}


def make(
    task: str = TASK,
    obs: Literal["state", "keypoints", "pixels"] = "state",
    size: tuple[Side, Side] = (96, 96),
) -> gym.Env[Any, Any]:
    """Return the task: 300 steps of a tenth of a second, actions are where the disc shall go.

    `state` is the disc's place and the block's pose, `keypoints` the corners of the block and the
    disc's place, `pixels` an image (without the action drawn into it) and the disc's place.
    """
    if task != TASK:
        raise ConfigError(unknown("task of pusht", task, [TASK], "env.id"))
    gym.register_envs(need("gym_pusht", "pusht"))
    base = gym.make(
        f"gym_pusht/{TASK}", obs_type=KINDS[obs], disable_env_checker=True,
        observation_height=size[0], observation_width=size[1],
    )  # fmt: skip
    return PushT(base, obs)
