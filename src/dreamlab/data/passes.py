"""A sampler that leaves nothing out: every stored step once, then again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dreamlab.core.types import Array
from dreamlab.data.samplers import Draw, Former, Window


@dataclass(frozen=True)
class PassesConfig:
    """Has no options."""


class Passes:
    """Windows that touch, each once per pass, in an order that is shuffled but always the same.

    tick      0  1  2  3  4  5  6  7  8  9      one environment, windows of length 4
    windows   [0 .  .  .][4 .  .  .]            the newest window may overlap the one before it
                                [6 .  .  .]

    As many batches in a row as a pass has therefore hold every step, wherever they start, as long
    as nothing is stored in between.
    """

    Config = PassesConfig
    learns = False
    prioritises = False

    def __init__(self, config: PassesConfig, capacity: int) -> None:
        self.next = 0
        self.order = np.zeros(0, np.int64)

    def draw(self, window: Window, num: int, rng: np.random.Generator) -> Draw:
        ids = _touching(window)
        if len(self.order) != len(ids):
            self.order = np.random.default_rng(len(ids)).permutation(len(ids))
        places = (self.next + np.arange(num)) % len(ids)
        self.next += num
        return ids[self.order[places]], None

    def insert(self, ids: Array, usable: Array) -> None: ...

    def update(self, ids: Array, priority: Array) -> None: ...

    def take_over(self, window: Window, former: Sequence[Former]) -> list[str]:
        return ["position"] if any(f["next"] for f, _ in former) else []

    def get_state(self) -> dict[str, Any]:
        return {"next": self.next}

    def set_state(self, state: dict[str, Any]) -> None:
        self.next = int(state["next"])


def _touching(window: Window) -> Array:
    """Return the starts of windows that together hold every step, or every one that may be."""
    n = window.num_envs
    first, end = window.oldest // n, window.newest // n
    ticks = np.unique([*range(first, end, window.length), end - 1])
    ids = (ticks[:, None] * n + np.arange(n)).ravel()
    if window.valid is not None:
        usable = window.valid(ids)
        return ids[usable] if usable.any() else window.ids()
    return ids
