"""The discounted return of what an environment did after each stored step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dreamlab.core.types import Array

UNKNOWN = -np.inf
"""The return of a step whose episode is unfinished: unknown."""


def check_failure(gamma: float | None, reward: float | None) -> None:
    """Raise if episodes of nothing but this reward would have no return."""
    if reward is not None and (gamma is None or gamma == 1):
        raise ValueError(
            f"mc_failure_reward={reward:g}: the return of a failure is its reward / (1 - mc_gamma):"
            " set mc_gamma, below 1"
        )


def is_reward(rewards: Array, wanted: float) -> Array:
    """Return which rewards are this one, as float32."""
    return rewards.astype(np.float32) == np.float32(wanted)


def endless(reward: float, gamma: float) -> float:
    """Return the discounted sum of the same reward forever."""
    return reward / (1 - gamma)


class ReturnsToGo:
    """A ring of ticks beside a replay's; it follows from the steps and is not saved.

    Only whether an episode failed up to the oldest stored tick is saved: earlier steps are lost.
    With a `failure` reward, an episode of nothing but that counts as if it went on forever.
    """

    def __init__(
        self, gamma: float, num_envs: int, ticks: int, failure: float | None = None
    ) -> None:
        self.gamma, self.ticks = gamma, ticks
        self.failure = failure
        self.failing = np.full(num_envs, failure is not None)
        """Whether every reward of the episode so far was that of a failure."""
        self.failed = np.zeros((num_envs, 0 if failure is None else ticks), bool)
        """The same up to each tick."""
        self.values = np.full((num_envs, ticks), UNKNOWN, np.float32)
        self.reward = np.zeros((num_envs, ticks), np.float32)
        self.begun = np.zeros(num_envs, np.int64)
        """The first stored tick of each environment's episode, which may have started earlier."""

    def add(self, tick: int, reward: Array, is_first: Array, is_last: Array) -> None:
        """Take note of a tick; where an episode ends, the returns of its steps are known."""
        slot = tick % self.ticks
        self.values[:, slot], self.reward[:, slot] = UNKNOWN, reward
        self.begun[is_first] = tick
        if self.failure is not None:
            self.failing = is_first | (self.failing & is_reward(reward, self.failure))
            self.failed[:, slot] = self.failing
        for env in np.flatnonzero(is_last):
            self._finish(int(env), tick)

    def _finish(self, env: int, last: int) -> None:
        """Go back from the last step, whose action was void, to the first that is still there."""
        total = 0.0
        if self.failure is not None and self.failing[env]:
            total = endless(self.failure, self.gamma)
        for tick in range(last, max(int(self.begun[env]), last - self.ticks + 1) - 1, -1):
            slot = tick % self.ticks
            self.values[env, slot] = total
            total = float(self.reward[env, slot]) + self.gamma * total

    def get_state(self, oldest: int) -> dict[str, Array]:
        """Return what the stored steps do not tell: whether the oldest one's episode had failed."""
        if self.failure is None:
            return {}
        return {"failed": self.failed[:, oldest % self.ticks].copy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `get_state` returned, before the steps from the oldest on are added."""
        if self.failure is not None and "failed" in state:
            self.failing = np.array(state["failed"], bool)

    def at(self, ids: Array) -> Array:
        """Return the returns of steps by their ids, `tick * num_envs + env`."""
        num_envs = len(self.values)
        return self.values[ids % num_envs, ids // num_envs % self.ticks]
