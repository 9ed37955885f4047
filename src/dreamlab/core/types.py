"""Records exchanged between packages. Every array is time-aligned as drawn in `Step`."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dreamlab.core.tree import tree_map

Array = np.ndarray
Metrics = dict[str, Tensor]
Obs = dict[str, Tensor]
Tree = Any  # nested dicts, lists and tuples of tensors; opaque to everyone but its owner


class Mode(Enum):
    """The purpose of acting."""

    TRAIN = "train"
    """Collect data, with exploration."""
    EVAL = "eval"
    """Evaluate with the mode of the policy."""
    SAMPLE = "sample"
    """Evaluate with sampled actions, for algorithms whose original does so."""
    POLICY = "policy"
    """Like EVAL, but with the policy alone where the agent would plan."""
    FIXED = "fixed"
    """Like EVAL without random numbers, as in an exported policy."""

    @property
    def samples(self) -> bool:
        """Return whether actions are sampled from the policy."""
        return self in (Mode.TRAIN, Mode.SAMPLE)


@dataclass(frozen=True)
class ArraySpec:
    """Shape and dtype of one array, without batch or time.

    `classes` is set for discrete values: an int for one choice (shape `()`), a tuple for several
    (shape `(n,)`). `low` and `high` are set if every entry is bounded.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    classes: int | tuple[int, ...] | None = None
    low: float | None = None
    high: float | None = None

    @property
    def is_image(self) -> bool:
        """Return whether this is an image: bytes of height, width, channels."""
        return self.dtype == "uint8" and len(self.shape) == 3

    @property
    def is_discrete(self) -> bool:
        return self.classes is not None

    @property
    def size(self) -> int:
        """Return the number of entries."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        return self.size * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class TaskSpec:
    """One of several tasks, whose observations and actions are padded to the largest."""

    name: str
    action_dim: int
    """Number of leading action entries that the task uses."""
    episode_length: int | None = None


@dataclass(frozen=True)
class Spec:
    """Format of an environment or dataset, known before any data exists."""

    obs: dict[str, ArraySpec]
    action: ArraySpec
    episode_length: int | None = None
    """Maximum decisions per episode, if known."""
    tasks: tuple[TaskSpec, ...] = ()
    """The tasks of a multi-task environment; the observation `task` is the index of the current
    one."""


@dataclass(frozen=True, slots=True)
class Step:
    """One tick of N environments: what the agent observes before it acts.

    tick        0        1        2 (last)   3 (first of the next episode)
    obs         o0 ──a0─▶o1 ──a1─▶o2         o0'
    reward      0        r1       r2         0       received *with* this observation
    is_first    1        0        0          1
    is_last     0        0        1          0       episode ends here, for any reason
    is_terminal 0        0        0 or 1     0       ... because the task ended (do not bootstrap)
    """

    obs: dict[str, Array]
    reward: Array
    is_first: Array
    is_last: Array
    is_terminal: Array


@dataclass(frozen=True, slots=True)
class Decision:
    """A workflow's response to a Step.

    `state` is passed unchanged to the next decision; `extras` are stored with the step and returned
    in the Batch (recurrent PPO: its state; Dreamer: latents).
    """

    action: Tensor
    state: Tree = ()
    extras: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Curves:
    """Recorded and imagined values [t, n]; imagination starts after `context`."""

    truth: Array
    dream: Array
    context: int


@dataclass(frozen=True)
class Report:
    """Diagnostics of an algorithm: numbers, videos [t, h, w, 3] and curves, all by name."""

    metrics: Metrics
    films: dict[str, Array] = field(default_factory=dict)
    curves: dict[str, Curves] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Batch:
    """B sequences of T consecutive steps, each with the action taken *from* that step.

    `index` identifies each step for `Replay.update`; it is None if nothing can be written back. The
    arrays belong to the buffer: they are valid until it is sampled again.
    """

    obs: dict[str, Tensor]
    action: Tensor
    reward: Tensor
    is_first: Tensor
    is_last: Tensor
    is_terminal: Tensor
    extras: dict[str, Tensor] = field(default_factory=dict)
    index: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        b, t = self.reward.shape
        return b, t

    def to(self, device: torch.device | str) -> Batch:
        """Copy this batch to `device`, without blocking if the memory is pinned."""
        return self.map(lambda x: x.to(device, non_blocking=True))

    def map(self, fn: Any) -> Batch:
        """Apply `fn` to every tensor of this batch."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(
            self, **{k: None if v is None else tree_map(fn, v) for k, v in values.items()}
        )
