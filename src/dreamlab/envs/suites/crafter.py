"""Crafter (Hafner 2021): survival and 22 achievements in a random 2D world."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from dreamlab.core.errors import ConfigError, require, unknown
from dreamlab.core.limits import PositiveInt, Side

Info = dict[str, Any]
TASKS = {"reward": True, "noreward": False}
ACHIEVEMENT = "log/achievement_"


class _InOrder(dict[Any, None]):
    """A set that keeps the order in which things came."""

    def add(self, item: Any) -> None:
        self[item] = None

    def remove(self, item: Any) -> None:
        del self[item]


class Crafter(gym.Env[Any, Any]):
    """One world per episode. Only death terminates; 10,000 steps truncate.

    Achievements unlocked during the episode are reported at its end as `log/achievement_*`.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(self, env: Any, size: tuple[int, int]) -> None:
        self.env = env
        self.action_space = spaces.Discrete(len(env.action_names))
        self.observation_space = spaces.Box(0, 255, (*size, 3), np.uint8)
        self._keep_order(env._world)

    def _keep_order(self, world: Any) -> None:
        # The game picks which creature to remove from a set of objects, whose order depends on
        # memory addresses: without this two runs of one seed drift apart.
        reset = world.reset

        def ordered(seed: int | None = None) -> None:
            reset(seed)
            world._chunks = defaultdict(_InOrder)

        world.reset = ordered

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        if seed is not None:
            self.env._seed, self.env._episode = seed, 0
        return self.env.reset(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        obs, reward, done, info = self.env.step(int(action))
        dead, counts = info["discount"] == 0, info["achievements"]
        told = {f"{ACHIEVEMENT}{k}": float(n > 0) for k, n in counts.items()}
        told["log/achievements"] = sum(told.values())
        return obs, float(reward), bool(dead), bool(done and not dead), told

    def render(self) -> Any:
        # At night the image has noise drawn from the game's own generator: looking must not
        # change what happens next.
        random = self.env._world.random
        before = random.get_state()
        picture = self.env.render((256, 256))
        random.set_state(before)
        return picture


def make(
    task: str = "reward", size: tuple[Side, Side] = (64, 64), length: PositiveInt = 10_000
) -> gym.Env[Any, Any]:
    """Return the game; `noreward` gives none for achievements and health, `reward` does."""
    if task not in TASKS:
        raise ConfigError(unknown("task of crafter", task, TASKS, "env.id"))
    crafter = require("crafter", "crafter")
    # The game wants width before height.
    env = crafter.Env(size=size[::-1], reward=TASKS[task], length=length, seed=0)
    return Crafter(env, size)


def score(success_rates: Sequence[float]) -> float:
    """Return the Crafter score in percent: the geometric mean of the success rates (in percent)."""
    return float(np.exp(np.mean(np.log1p(np.asarray(success_rates)))) - 1)


def summary(finals: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the score over episodes: of each achievement, how many percent of them unlock it."""
    names = sorted({k for final in finals for k in final if k.startswith(ACHIEVEMENT)})
    if not names:
        return {}
    rates = [100 * float(np.mean([final[name] for final in finals])) for name in names]
    return {"crafter_score": score(rates)}
