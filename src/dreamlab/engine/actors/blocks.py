"""Steps on their way from an actor to the learner: some ticks of all its environments."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dreamlab.core.types import Array, Decision, Step
from dreamlab.data.store import record
from dreamlab.engine.collector import Collected

BITS = "bits:"
"""Starts the name of an array of bfloat16, which numpy does not have: its bits are sent."""


@dataclass
class Block:
    """Consecutive ticks: arrays [t, n, ...] by the names that a store gives them."""

    rows: dict[str, Array]
    ended: list[Collected]
    """Of each tick, the episodes whose end it saw; the learner counts frames and decisions."""
    version: int
    """Of the weights that decided the last tick."""
    moments: dict[str, Any] = field(default_factory=dict[str, Any])
    """What was seen of quantities that are normalized, since the last block."""
    busy_s: float = 0.0

    @property
    def ticks(self) -> int:
        return len(self.rows["reward"])


class BlockStore:
    """Takes the place of a replay in an actor: keeps copies of ticks until they are sent."""

    needs_next = False

    def __init__(self) -> None:
        self.ticks: list[dict[str, Array]] = []

    def __len__(self) -> int:
        return len(self.ticks)

    def add(self, step: Step, decision: Decision) -> None:
        """Keep one step of every environment, with the action and extras decided from it."""
        self.ticks.append(dict(_plain(k, v) for k, v in record(step, decision).items()))

    def finish(self, step: Step) -> None:
        """Do nothing: the step that follows is sent with the next decision."""

    def pop(self) -> dict[str, Array]:
        """Return everything that was kept, time first, and start over."""
        ticks, self.ticks = self.ticks, []
        return {k: np.stack([t[k] for t in ticks]) for k in ticks[0]}


def _plain(name: str, value: Array | Tensor) -> tuple[str, Array]:
    if not isinstance(value, Tensor):
        return name, np.array(value)  # environments overwrite their arrays
    value = value.cpu()
    if value.dtype == torch.bfloat16:
        return BITS + name, value.view(torch.int16).numpy().copy()
    return name, value.numpy().copy()


class Stream:
    """The blocks of one actor that the learner has not stored yet, in order."""

    def __init__(self) -> None:
        self.blocks: deque[Block] = deque()
        self.ticks, self.used = 0, 0

    def put(self, block: Block) -> None:
        self.blocks.append(block)
        self.ticks += block.ticks

    def take(self, ticks: int) -> tuple[dict[str, Array], list[Collected]]:
        """Return the oldest `ticks`, and the episodes whose end they saw."""
        parts: list[dict[str, Array]] = []
        ended: list[Collected] = []
        self.ticks -= ticks
        while ticks:
            block = self.blocks[0]
            num = min(ticks, block.ticks - self.used)
            now = slice(self.used, self.used + num)
            parts.append({k: v[now] for k, v in block.rows.items()})
            ended += block.ended[now]
            self.used, ticks = self.used + num, ticks - num
            if self.used == block.ticks:
                self.blocks.popleft()
                self.used = 0
        return {k: np.concatenate([p[k] for p in parts]) for k in parts[0]}, ended


def side_by_side(parts: Sequence[dict[str, Array]]) -> dict[str, Array]:
    """Return the ticks of several actors as those of one vector, in the order of the actors."""
    return {k: np.concatenate([p[k] for p in parts], axis=1) for k in parts[0]}


def tick_of(rows: dict[str, Array], tick: int) -> tuple[Step, Decision]:
    """Return one tick as the environments and the policy gave it."""
    row = {k: v[tick] for k, v in rows.items()}
    obs = {k[4:]: v for k, v in row.items() if k.startswith("obs/")}
    extras = {
        k.removeprefix(BITS)[7:]: _tensor(k, v)
        for k, v in row.items()
        if k.removeprefix(BITS).startswith("extras/")
    }
    action = next(_tensor(k, v) for k, v in row.items() if k.removeprefix(BITS) == "action")
    flags = (row["reward"], row["is_first"], row["is_last"], row["is_terminal"])
    return Step(obs, *flags), Decision(action, extras=extras)


def _tensor(name: str, value: Array) -> Tensor:
    tensor = torch.from_numpy(value)
    return tensor.view(torch.bfloat16) if name.startswith(BITS) else tensor
