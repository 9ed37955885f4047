"""Memory Maze (Pasukonis et al. 2022): find coloured objects in a maze, again and again."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from dreamlab.core.errors import ConfigError, require, unknown
from dreamlab.core.limits import Side
from dreamlab.envs.rendering import setup_gl

Info = dict[str, Any]
SIZES = ("9x9", "11x11", "13x13", "15x15")


class MemoryMaze(gym.Env[Any, Any]):
    """One maze per episode, seen from within. Never terminates; a time limit truncates."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(self, env: Any, extra_obs: bool) -> None:
        self.env = env
        self.action_space = spaces.Discrete(int(env.action_spec().num_values))
        # The color to find is drawn around the image too: the task can be played by eye alone.
        spec = env.observation_spec().items()
        self.extra = {k: s for k, s in spec if k != "image" and extra_obs}
        found: dict[str, spaces.Space[Any]] = {
            k: spaces.Box(-np.inf, np.inf, s.shape, np.float32) for k, s in self.extra.items()
        }
        shape = env.observation_spec()["image"].shape
        found["image"] = spaces.Box(0, 255, shape, np.uint8)
        self.observation_space = spaces.Dict(found)
        self.image = np.zeros(shape, np.uint8)

    def _obs(self, step: Any) -> dict[str, Any]:
        self.image = np.asarray(step.observation["image"], np.uint8)
        out: dict[str, Any] = {k: np.asarray(step.observation[k], np.float32) for k in self.extra}
        return {**out, "image": self.image}

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        if seed is not None:
            self._reseed(seed)
        return self._obs(self.env.reset()), {}

    def _reseed(self, seed: int) -> None:
        """Start both sources of chance again: the simulation's, and the one that draws mazes."""
        self.env._random_state.seed(seed)
        maze = self.env.task._maze_arena.maze
        begin: Any = type(maze).__init__
        begin(
            maze,
            height=maze._height,
            width=maze._width,
            max_rooms=maze._max_rooms,
            room_min_size=maze._room_min_size,
            room_max_size=maze._room_max_size,
            max_variations=maze._max_variations,
            spawns_per_room=maze._spawns_per_room,
            objects_per_room=maze._objects_per_room,
            simplify=True,
            random_seed=seed,
        )

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        step = self.env.step(int(action))
        terminated = bool(step.last() and step.discount == 0)
        truncated = bool(step.last() and not terminated)
        return self._obs(step), float(step.reward or 0.0), terminated, truncated, {}

    def render(self) -> Any:
        return self.image.repeat(4, 0).repeat(4, 1)


def make(task: str = "9x9", size: Side = 64, extra_obs: bool = False) -> gym.Env[Any, Any]:
    """Return a maze of a size, e.g. `9x9`; `extra_obs` adds the true positions, for probing."""
    if task not in SIZES:
        raise ConfigError(unknown("memory maze", task, SIZES, "env.id"))
    setup_gl()
    require("gym", "memorymaze")
    tasks = require("memory_maze.tasks", "memorymaze")
    maker = getattr(tasks, f"memory_maze_{task}")
    env = maker(camera_resolution=size, global_observables=extra_obs, seed=0)
    return MemoryMaze(env, extra_obs)
