"""MiniGrid and BabyAI (Chevalier-Boisvert et al. 2023): small grid worlds with keys and doors."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from dreamlab.core.errors import ConfigError, require, unknown
from dreamlab.core.limits import Range

Info = dict[str, Any]


class Symbols(gym.ObservationWrapper[Any, Any, Any]):
    """Shows the cells in view as one vector: one-hot of object, color and door state of each."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        constants = require("minigrid.core.constants", "minigrid")
        tables = (constants.OBJECT_TO_IDX, constants.COLOR_TO_IDX, constants.STATE_TO_IDX)
        self.eyes = [np.eye(max(t.values()) + 1, dtype=np.float32) for t in tables]
        inner = env.observation_space
        assert isinstance(inner, spaces.Dict)
        cells = int(np.prod(inner["image"].shape[:2]))  # type: ignore[index]
        size = cells * sum(len(eye) for eye in self.eyes)
        state = spaces.Box(0.0, 1.0, (size,), np.float32)
        self.observation_space = spaces.Dict({"state": state, "direction": inner["direction"]})

    def observation(self, observation: Any) -> Any:
        image = observation["image"]
        parts = [eye[image[..., i]] for i, eye in enumerate(self.eyes)]
        state = np.concatenate(parts, axis=-1).ravel()
        return {"state": state, "direction": observation["direction"]}


class ImageOnly(gym.ObservationWrapper[Any, Any, Any]):
    """Shows the image and nothing else."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        assert isinstance(env.observation_space, spaces.Dict)
        self.observation_space = env.observation_space["image"]

    def observation(self, observation: Any) -> Any:
        return observation["image"]


class Success(gym.Wrapper[Any, Any, Any, Any]):
    """Reports whether the goal was reached (its reward is positive; it ends the episode)."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Info]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated, {**info, "success": float(reward) > 0}


def make(
    task: str,
    obs: Literal["symbolic", "partial", "full"] = "symbolic",
    tile: Annotated[int, Range(1, 256)] = 8,
) -> gym.Env[Any, Any]:
    """Return a task by its Gymnasium id, e.g. `MiniGrid-DoorKey-8x8-v0`.

    The agent sees the 7x7 cells before it as symbols or as an image, or an image of the whole
    grid; `tile` is the size of a cell in pixels. The mission text is not shown.
    """
    gym.register_envs(require("minigrid", "minigrid"))
    known = [n for n in gym.registry if n.startswith(("MiniGrid-", "BabyAI-"))]
    if task not in known:
        raise ConfigError(unknown("task of minigrid", task, known, "env.id"))
    views = require("minigrid.wrappers", "minigrid")
    env = Success(gym.make(task, render_mode="rgb_array", disable_env_checker=True))
    if obs == "symbolic":
        return Symbols(env)
    view = views.RGBImgPartialObsWrapper if obs == "partial" else views.RGBImgObsWrapper
    return ImageOnly(view(env, tile_size=tile))
