"""The steps since the last update, in order: what on-policy algorithms learn from, once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dreamlab.core.limits import PositiveInt
from dreamlab.core.phase import Phase
from dreamlab.core.types import Batch, Decision, Step
from dreamlab.data.source import BufferConfig, BufferContext
from dreamlab.data.store import as_tensor, batch_of, record


@dataclass(frozen=True)
class RolloutConfig(BufferConfig):
    """How long a rollout is."""

    length: PositiveInt = 128
    """Ticks; with N environments a batch has N * length transitions."""
    keep_obs: bool = True
    """Store observations; algorithms that only need rewards (evolution strategies) save the
    memory."""

    def first_batch(self, num_envs: int) -> int:
        """Return how many steps a rollout has."""
        return self.length * num_envs

    def most_steps(self, num_envs: int) -> int:
        """Return the steps of a rollout, the one that follows included."""
        return (self.length + 1) * num_envs

    def check_phase(self, phase: Phase) -> None:
        """Raise if the phase would not fill the rollout exactly, and empty it when it is full."""
        if "collect" not in phase.workflow_hooks:
            return
        if self.length % phase.collect_ticks:
            raise ValueError(
                f"length={self.length} must be a multiple of collect_ticks={phase.collect_ticks}"
            )
        if not phase.update_hooks or phase.train_ratio is not None:
            raise ValueError("a rollout is sampled once, when full: remove train_ratio")


class Rollout:
    """Holds `length` ticks and the step that follows them, whose action is not decided yet.

    tick     0    1    2    3 = length     a batch [num_envs, length + 1]
    action   a0   a1   a2   0
    """

    Config = RolloutConfig
    needs_next = True

    def __init__(self, config: RolloutConfig, place: BufferContext) -> None:
        self.config, self.place = config, place
        self.data: dict[str, Tensor] = {}
        self.views: dict[str, Any] = {}
        self.count, self.closed = 0, False

    def __len__(self) -> int:
        return self.count * self.place.num_envs

    @property
    def steps_per_sample(self) -> int:
        return self.config.length * self.place.num_envs

    def nbytes(self) -> int:
        return sum(v.nbytes for v in self.data.values())

    def add(self, step: Step, decision: Decision) -> None:
        """Store one step of every environment, with the action and extras decided from it."""
        row = self._kept(record(step, decision))
        if not self.data:
            self._allocate({k: as_tensor(v) for k, v in row.items()})
        self.closed = False
        assert self.count < self.config.length, "the rollout is full: it must be sampled first"
        for name, value in row.items():
            if isinstance(value, Tensor) and (value.is_cuda or name not in self.views):
                self.data[name][self.count] = value
            else:
                self.views[name][self.count] = value
        self.count += 1

    def _kept(self, row: dict[str, Any]) -> dict[str, Any]:
        if self.config.keep_obs:
            return row
        return {k: v for k, v in row.items() if not k.startswith("obs/")}

    def _allocate(self, row: dict[str, Tensor]) -> None:
        ticks = self.config.length + 1
        self.data = {k: torch.zeros((ticks, *v.shape), dtype=v.dtype) for k, v in row.items()}
        self.views = {k: v.numpy() for k, v in self.data.items() if v.dtype != torch.bfloat16}

    def finish(self, step: Step) -> None:
        """Store the step after the last one; nothing was decided from it yet."""
        for name, value in step.obs.items() if self.config.keep_obs else ():
            self.views[f"obs/{name}"][self.count] = value
        for name in ("reward", "is_first", "is_last", "is_terminal"):
            self.views[name][self.count] = getattr(step, name)
        self.closed = True

    def ready(self) -> bool:
        """Return whether the rollout is complete."""
        return self.closed and self.count == self.config.length

    @property
    def rows(self) -> int:
        return self.place.num_envs

    def sample(self, rows: int | None = None) -> Batch:
        """Return the whole rollout, environments first, and start a new one.

        It is a copy: the next steps are stored while it may still be in use.
        """
        assert rows in (None, self.rows), "a rollout cannot be split"
        assert self.ready(), f"the rollout has {self.count} of {self.config.length} ticks"
        self.count, self.closed = 0, False
        whole = {k: v.transpose(0, 1) for k, v in self.data.items()}
        copies = {k: v.clone(memory_format=torch.contiguous_format) for k, v in whole.items()}
        return batch_of({k: v.to(self.place.device) for k, v in copies.items()})

    def peek(self, seed: int, length: int) -> Batch | None:
        """Return None: a rollout is used once."""
        return None

    def update(self, index: Tensor, extras: dict[str, Tensor]) -> None:
        """Do nothing: a rollout is used once."""

    def save(self) -> dict[str, Any]:
        """Return everything; a rollout is small."""
        data = {k: v.clone() for k, v in self.data.items()} if self.count else {}
        return {"count": self.count, "closed": self.closed, "data": data}

    def load(self, state: dict[str, Any]) -> None:
        """Come back to a state returned by `save`."""
        self.count, self.closed = int(state["count"]), bool(state["closed"])
        self.data = {k: v.clone() for k, v in state["data"].items()}
        self.views = {k: v.numpy() for k, v in self.data.items() if v.dtype != torch.bfloat16}

    def regroup(self, parts: Sequence[dict[str, Any]], rank: int, size: int) -> str:
        """Begin a new rollout: one of other processes was collected by other environments."""
        steps = sum(int(p["count"]) for p in parts) * self.place.num_envs
        return f"{steps} steps of a rollout that was not learnt from" if steps else ""

    def prune(self, states: list[dict[str, Any]]) -> None:
        """Do nothing: a rollout keeps no files."""
