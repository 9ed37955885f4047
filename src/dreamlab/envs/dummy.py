"""Small environments whose right answers are known: for tests, and for checking an algorithm."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from dreamlab.core.config import arguments
from dreamlab.core.errors import ConfigError, unknown
from dreamlab.core.limits import NonNegative, PositiveInt, Side, Width

Info = dict[str, Any]


class Dummy(gym.Env[Any, Any]):
    """An environment whose episodes have a length."""

    length: int

    @property
    def episode_length(self) -> int:
        return self.length


class Counting(Dummy):
    """Counts its own steps and rewards with the action, so that a shuffled batch can be checked."""

    def __init__(self, length: PositiveInt = 5, terminal: bool = False, size: Width = 1) -> None:
        self.observation_space = spaces.Box(0, 10_000, (size,), np.float32)
        self.action_space = spaces.Box(-1, 1, (size,), np.float32)
        self.length, self.terminal, self.size, self.count = length, terminal, size, 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(self.size, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        self.count += 1
        end = self.count >= self.length
        obs = np.full(self.size, self.count, np.float32)
        return obs, float(action[0]), end and self.terminal, end and not self.terminal, {}


class Slow(Counting):
    """Takes its time for every step, as a simulator or a robot elsewhere does."""

    def __init__(self, seconds: NonNegative = 0.05, length: PositiveInt = 100) -> None:
        super().__init__(length)
        self.seconds = seconds

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        time.sleep(self.seconds)
        return super().step(action)


class Identity(Dummy):
    """Rewards the agent for answering what it sees: one class of n, or a vector to copy."""

    def __init__(
        self, classes: Width = 4, length: PositiveInt = 16, continuous: bool = False
    ) -> None:
        self.classes, self.length, self.continuous, self.count = classes, length, continuous, 0
        self.observation_space = spaces.Box(-1, 1, (classes,), np.float32)
        self.action_space = (
            spaces.Box(-1, 1, (classes,), np.float32) if continuous else spaces.Discrete(classes)
        )

    def _draw(self) -> Any:
        if self.continuous:
            self.answer = self.np_random.uniform(-0.8, 0.8, self.classes).astype(np.float32)
            return self.answer
        self.answer = int(self.np_random.integers(self.classes))
        return np.eye(self.classes, dtype=np.float32)[self.answer]

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self.count = 0
        return self._draw(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        self.count += 1
        if self.continuous:
            reward = -float(np.abs(np.asarray(action) - self.answer).mean())
        else:
            reward = float(int(action) == self.answer)
        return self._draw(), reward, False, self.count >= self.length, {}


class Recall(Dummy):
    """Shows a cue at the first step only and rewards repeating it at the last: needs memory."""

    def __init__(self, length: PositiveInt = 5) -> None:
        self.observation_space = spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.length, self.count, self.cue = length, 0, 0

    def _obs(self) -> Any:
        sign = (2.0 * self.cue - 1.0) if self.count == 0 else 0.0
        return np.array([sign, self.count / self.length, 1.0], np.float32)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self.count, self.cue = 0, int(self.np_random.integers(2))
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        self.count += 1
        end = self.count >= self.length
        reward = float(int(action) == self.cue) if end else 0.0
        return self._obs(), reward, end, False, {"success": reward > 0} if end else {}


class Mixed(Dummy):
    """Image, vector and discrete observations together; several discrete actions at once."""

    def __init__(self, size: Side = 16, length: PositiveInt = 10) -> None:
        self.observation_space = spaces.Dict(
            {
                "image": spaces.Box(0, 255, (size, size, 3), np.uint8),
                "vector": spaces.Box(-np.inf, np.inf, (4,), np.float32),
                "token": spaces.Discrete(5),
            }
        )
        self.action_space = spaces.MultiDiscrete([3, 4])
        self.size, self.length, self.count = size, length, 0

    def _obs(self) -> dict[str, Any]:
        rng = self.np_random
        return {
            "image": rng.integers(0, 256, (self.size, self.size, 3), dtype=np.uint8),
            "vector": rng.normal(size=4).astype(np.float32),
            "token": np.int64(rng.integers(5)),
        }

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self.count = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        self.count += 1
        reward = float(action[0] == 1) + float(action[1] == 2)
        return self._obs(), reward, False, self.count >= self.length, {}


class Pixels(Dummy):
    """A dot on a small image that the agent moves onto a target; the image is all it sees."""

    def __init__(self, size: Side = 16, length: PositiveInt = 32, grid: Side = 4) -> None:
        if grid > size:
            raise ConfigError(f"env.options.grid: must be at most size={size}, got {grid}")
        self.observation_space = spaces.Box(0, 255, (size, size, 3), np.uint8)
        self.action_space = spaces.Discrete(4)
        self.size, self.length, self.grid, self.count = size, length, grid, 0
        self.dot, self.target = np.zeros(2, int), np.zeros(2, int)

    def _obs(self) -> Any:
        image, cell = np.zeros((self.size, self.size, 3), np.uint8), self.size // self.grid
        for channel, (y, x) in ((0, self.dot), (1, self.target)):
            image[y * cell : (y + 1) * cell, x * cell : (x + 1) * cell, channel] = 255
        return image

    def render(self) -> Any:
        return self._obs().repeat(8, 0).repeat(8, 1)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self.count = 0
        self.dot, self.target = self.np_random.integers(self.grid, size=(2, 2))
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        self.count += 1
        move = [(-1, 0), (1, 0), (0, -1), (0, 1)][int(action)]
        self.dot = np.clip(self.dot + move, 0, self.grid - 1)
        hit = bool((self.dot == self.target).all())
        if hit:
            self.target = self.np_random.integers(self.grid, size=2)
        return self._obs(), float(hit), False, self.count >= self.length, {}


DUMMIES = {
    "counting": Counting,
    "slow": Slow,
    "identity": Identity,
    "recall": Recall,
    "mixed": Mixed,
    "pixels": Pixels,
}


def make(task: str, **options: Any) -> gym.Env[Any, Any]:
    """Return the dummy environment called `task`."""
    if task not in DUMMIES:
        raise ConfigError(unknown("dummy environment", task, DUMMIES, "env.id"))
    return DUMMIES[task](**arguments(DUMMIES[task], options, "env.options"))
