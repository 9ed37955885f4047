"""Blocks of steps sent from an actor to the learner: some ticks of all its environments."""

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
"""Name prefix of bfloat16 arrays, which numpy lacks: their raw bits are sent."""


@dataclass
class Block:
    """Consecutive ticks: arrays [t, n, ...] by their names in a store."""

    rows: dict[str, Array]
    ended: list[Collected]
    """Episodes that ended at each tick; the learner counts frames and decisions."""
    version: int
    """Version of the weights at the last tick."""
    moments: dict[str, Any] = field(default_factory=dict[str, Any])
    """Moments of normalized quantities since the last block."""
    busy_s: float = 0.0

    @property
    def ticks(self) -> int:
        return len(self.rows["reward"])


class BlockStore:
    """Replaces the replay in an actor: keeps copies of ticks until they are sent."""

    needs_next = False

    def __init__(self) -> None:
        self.ticks: list[dict[str, Array]] = []

    def __len__(self) -> int:
        return len(self.ticks)

    def add(self, step: Step, decision: Decision) -> None:
        """Store one step of every environment, with its action and extras."""
        self.ticks.append(dict(_plain(k, v) for k, v in record(step, decision).items()))

    def finish(self, step: Step) -> None:
        """Do nothing: the next step is sent with the next decision."""

    def pop(self) -> dict[str, Array]:
        """Return all stored ticks, time first, and clear the store."""
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
    """The blocks of one actor not yet stored by the learner, in order."""

    def __init__(self) -> None:
        self.blocks: deque[Block] = deque()
        self.ticks, self.used = 0, 0

    def put(self, block: Block) -> None:
        self.blocks.append(block)
        self.ticks += block.ticks

    def take(self, ticks: int) -> tuple[dict[str, Array], list[Collected]]:
        """Return the oldest `ticks`, and the episodes that ended in them."""
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
    """Concatenate the ticks of several actors into those of one vector, in actor order."""
    return {k: np.concatenate([p[k] for p in parts], axis=1) for k in parts[0]}


def tick_of(rows: dict[str, Array], tick: int) -> tuple[Step, Decision]:
    """Return one tick as a step and a decision."""
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
