"""A sampler that draws the episode first, then the start within it, as TD-MPC2's original does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dreamlab.core.errors import ConfigError
from dreamlab.core.types import Array
from dreamlab.data.samplers import Draw, Former, Window


@dataclass(frozen=True)
class EpisodesConfig:
    """Has no options."""


class Episodes:
    """Every episode equally often, however long it is; then every start in it equally often.

    tick      0  1  2  3  4  5  6  7  8  9      one environment, windows of length 3
    episode   a  a  a  a  a  a  b  b  b  b
    starts    a  a  a  a  .  .  b  b  .  .      a start of b is drawn twice as often as one of a

    An episode is known by its starts: where windows lie inside episodes, none begins at the last
    steps of one. Starts of unfinished episodes are drawn too, overwritten ones are not.
    """

    Config = EpisodesConfig
    learns = True
    prioritises = False

    def __init__(self, config: EpisodesConfig, capacity: int) -> None:
        self.fresh: list[Array] = []
        """Starts that are not part of a stretch yet, in the order they came."""
        self.stretches = np.zeros((0, 3), np.int64)
        """Environment, first and last tick of the starts in each episode, by their beginning."""
        self.newest: dict[int, int] = {}
        """Which stretch each environment's last start belongs to."""

    def insert(self, ids: Array, usable: Array) -> None:
        if usable.any():
            self.fresh.append(ids[usable])

    def draw(self, window: Window, num: int, rng: np.random.Generator) -> Draw:
        if window.valid is None or window.length < 2:
            raise ConfigError(
                "sampler: episodes: it needs windows of at least two steps that lie inside "
                "episodes (windows: inside)"
            )
        self._take_in(window.num_envs)
        oldest = window.oldest // window.num_envs
        self._forget(oldest)
        if not len(self.stretches):
            window.ids()  # raises: there is none
        env, first, last = self.stretches[rng.integers(0, len(self.stretches), num)].T
        tick = rng.integers(np.maximum(first, oldest), last + 1)
        return tick * window.num_envs + env, None

    def _take_in(self, num_envs: int) -> None:
        """Add the fresh starts to the episodes that they continue, or begin new ones."""
        begun: list[tuple[int, int, int]] = []
        known, s = len(self.stretches), self.stretches
        for start in np.concatenate(self.fresh).tolist() if self.fresh else ():
            tick, env = divmod(start, num_envs)
            at = self.newest.get(env, -1)
            last = -2 if at < 0 else s[at, 2] if at < known else begun[at - known][2]
            if last + 1 != tick:
                self.newest[env] = known + len(begun)
                begun.append((env, tick, tick))
            elif at < known:
                s[at, 2] = tick
            else:
                begun[at - known] = (env, begun[at - known][1], tick)
        self.fresh = []
        if begun:
            self.stretches = np.concatenate([s, np.array(begun, np.int64)])

    def _forget(self, oldest: int) -> None:
        """Drop episodes of which no start is left."""
        alive = self.stretches[:, 2] >= oldest
        if not alive.all():
            place = np.cumsum(alive) - 1
            self.newest = {e: int(place[i]) for e, i in self.newest.items() if alive[i]}
            self.stretches = self.stretches[alive]

    def update(self, ids: Array, priority: Array) -> None: ...

    def take_over(self, window: Window, former: Sequence[Former]) -> list[str]:
        return []

    def get_state(self) -> dict[str, Any]:
        fresh = np.concatenate(self.fresh) if self.fresh else np.zeros(0, np.int64)
        newest = np.array([*self.newest.items()], np.int64).reshape(-1, 2)
        return {"fresh": fresh, "stretches": self.stretches.copy(), "newest": newest}

    def set_state(self, state: dict[str, Any]) -> None:
        fresh = np.array(state["fresh"], np.int64)
        self.fresh = [fresh] if fresh.size else []
        self.stretches = np.array(state["stretches"], np.int64).reshape(-1, 3)
        pairs = np.array(state["newest"], np.int64).reshape(-1, 2)
        self.newest = {int(e): int(i) for e, i in pairs}
