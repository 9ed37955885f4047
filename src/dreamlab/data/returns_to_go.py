"""The discounted return of what an environment did after each stored step."""

from __future__ import annotations

import numpy as np

from dreamlab.core.types import Array

UNKNOWN = -np.inf
"""The return of a step whose episode is unfinished: unknown."""


class ReturnsToGo:
    """A ring of ticks beside a replay's; it follows from the steps and is not saved."""

    def __init__(self, gamma: float, num_envs: int, ticks: int) -> None:
        self.gamma, self.ticks = gamma, ticks
        self.values = np.full((num_envs, ticks), UNKNOWN, np.float32)
        self.reward = np.zeros((num_envs, ticks), np.float32)
        self.begun = np.zeros(num_envs, np.int64)
        """The first stored tick of each environment's episode, which may have started earlier."""

    def add(self, tick: int, reward: Array, is_first: Array, is_last: Array) -> None:
        """Take note of a tick; where an episode ends, the returns of its steps are known."""
        slot = tick % self.ticks
        self.values[:, slot], self.reward[:, slot] = UNKNOWN, reward
        self.begun[is_first] = tick
        for env in np.flatnonzero(is_last):
            self._finish(int(env), tick)

    def _finish(self, env: int, last: int) -> None:
        """Go back from the last step, whose action was void, to the first that is still there."""
        total = 0.0
        for tick in range(last, max(int(self.begun[env]), last - self.ticks + 1) - 1, -1):
            slot = tick % self.ticks
            self.values[env, slot] = total
            total = float(self.reward[env, slot]) + self.gamma * total

    def at(self, ids: Array) -> Array:
        """Return the returns of steps by their ids, `tick * num_envs + env`."""
        num_envs = len(self.values)
        return self.values[ids % num_envs, ids // num_envs % self.ticks]
