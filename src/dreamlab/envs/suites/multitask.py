"""Several tasks as one environment: each episode is of one of them, drawn when it starts.

Vectors are padded with zeros to the longest, actions cut to what the task takes. The observation
`task` tells which it is.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from dreamlab.core.errors import ConfigError, EnvError
from dreamlab.core.types import Array, TaskSpec
from dreamlab.envs import suites
from dreamlab.envs.limits import episode_length
from dreamlab.envs.wrappers import ScaleAction

Info = dict[str, Any]
NOT_INSIDE = ("imagined", "multitask")
"""Suites that cannot be part of a multi-task environment."""


class MultiTask(gym.Env[Any, Any]):
    """One of several environments at a time."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(self, envs: dict[str, gym.Env[Any, Any]]) -> None:
        self.names, self.envs = list(envs), list(envs.values())
        widths = [_width(name, env.observation_space) for name, env in envs.items()]
        actions = [_action_dim(name, env) for name, env in envs.items()]
        lengths = [episode_length(env) for env in self.envs]
        self.tasks = tuple(map(TaskSpec, self.names, actions, lengths))
        self.episode_length = None if None in lengths else max(n or 0 for n in lengths)
        self.width = max(widths)
        state = spaces.Box(-np.inf, np.inf, (self.width,), np.float32)
        self.observation_space = spaces.Dict({"state": state, "task": spaces.Discrete(len(envs))})
        self.action_space = spaces.Box(-1.0, 1.0, (max(actions),), np.float32)
        self.task, self.total = 0, 0.0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self.task, self.total = int(self.np_random.integers(len(self.envs))), 0.0
        obs, _ = self.envs[self.task].reset(seed=int(self.np_random.integers(2**31)))
        return self._obs(obs), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        own = np.asarray(action)[: self.tasks[self.task].action_dim]
        obs, reward, terminated, truncated, info = self.envs[self.task].step(own)
        self.total += float(reward)
        told = {k: v for k, v in info.items() if k == "success"}
        told[f"log/{self.names[self.task]}"] = self.total
        return self._obs(obs), float(reward), terminated, truncated, told

    def _obs(self, obs: Any) -> Info:
        flat = _flat(obs, getattr(self.envs[self.task].unwrapped, "obs_order", ()))
        padded = np.zeros(self.width, np.float32)
        padded[: flat.size] = flat
        return {"state": padded, "task": np.int64(self.task)}

    def render(self) -> Any:
        return self.envs[self.task].render()

    def close(self) -> None:
        for env in self.envs:
            env.close()


def _flat(obs: Any, order: tuple[str, ...]) -> Array:
    """Return vectors end to end, in the order in which the suite lists them."""
    if not isinstance(obs, dict):
        return np.asarray(obs, np.float32).ravel()
    names = order or sorted(obs)
    return np.concatenate([np.asarray(obs[k], np.float32).ravel() for k in names])


def _width(name: str, space: spaces.Space[Any]) -> int:
    parts = list(space.spaces.values()) if isinstance(space, spaces.Dict) else [space]
    if any(not isinstance(s, spaces.Box) or s.dtype == np.uint8 for s in parts):
        raise EnvError(
            f"task {name!r} has non-vector observations: it cannot be part of a "
            f"multi-task environment"
        )
    return sum(int(np.prod(s.shape, dtype=np.int64)) for s in parts if s.shape is not None)


def _action_dim(name: str, env: gym.Env[Any, Any]) -> int:
    space = env.action_space
    if not isinstance(space, spaces.Box) or len(space.shape) != 1 or not space.is_bounded():
        raise EnvError(
            f"task {name!r} has no bounded vector action: it cannot be part of a "
            f"multi-task environment"
        )
    return space.shape[0]


def make(task: str, suite: str = "gym", each: dict[str, Any] | None = None) -> MultiTask:
    """Return tasks of one suite, their names joined by `+`; `each` is given to all."""
    names = [name.strip() for name in task.split("+")]
    if suite in NOT_INSIDE or len(set(names)) < len(names) or not all(names):
        raise ConfigError(
            f"env.id: {task!r} of suite {suite!r} are not distinct tasks of a suite: join task "
            f"names with +, and set env.options.suite"
        )
    made = {name: suites.make(suite, name, each or {}) for name in names}
    return MultiTask({k: _scaled(k, env) for k, env in made.items()})


def _scaled(name: str, env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    _action_dim(name, env)
    return ScaleAction(env)
