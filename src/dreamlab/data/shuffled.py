"""A sampler that goes through a dataset in a new order every time: no start twice per pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dreamlab.core.rng import derive
from dreamlab.core.types import Array
from dreamlab.data.samplers import Draw, Former, Window


@dataclass(frozen=True)
class ShuffledConfig:
    """Has no options."""


class Shuffled:
    """Every start once per pass, in an order that seed and number of the pass decide.

    A batch that the rest of a pass does not fill continues with the next one. For a source that
    does not grow: when it has, a new pass starts.
    """

    Config = ShuffledConfig
    learns = False
    prioritises = False

    def __init__(self, config: ShuffledConfig, capacity: int) -> None:
        self.seed, self.passed, self.next = -1, 0, 0
        self.of: tuple[int, ...] = ()
        self.starts, self.order = np.zeros(0, np.int64), np.zeros(0, np.int64)

    def draw(self, window: Window, num: int, rng: np.random.Generator) -> Draw:
        if self.seed < 0:
            self.seed = int(rng.integers(2**62))
        if self.of != (key := (window.oldest, window.newest, window.length)):
            if self.of:
                self.passed, self.next = self.passed + 1, 0
            self.of, self.starts, self.order = key, window.ids(), np.zeros(0, np.int64)
        parts: list[Array] = []
        while num > 0:
            part = self._order()[self.next : self.next + num]
            parts.append(part)
            num, self.next = num - len(part), self.next + len(part)
            if self.next == len(self.starts):
                self.passed, self.next, self.order = self.passed + 1, 0, np.zeros(0, np.int64)
        return np.concatenate(parts), None

    def _order(self) -> Array:
        """Return this pass's order of the starts."""
        if not len(self.order):
            rng = np.random.default_rng(derive(self.seed % 2**32, self.passed))
            self.order = self.starts[rng.permutation(len(self.starts))]
        return self.order

    def insert(self, ids: Array, usable: Array) -> None: ...

    def update(self, ids: Array, priority: Array) -> None: ...

    def take_over(self, window: Window, former: Sequence[Former]) -> list[str]:
        return ["position"] if any(f["next"] for f, _ in former) else []

    def get_state(self) -> dict[str, Any]:
        return {"seed": self.seed, "passed": self.passed, "next": self.next, "of": list(self.of)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.seed, self.passed, self.next = (int(state[k]) for k in ("seed", "passed", "next"))
        self.order = np.zeros(0, np.int64)
        if tuple(state["of"]) != self.of:
            self.of = ()
