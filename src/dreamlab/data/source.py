"""What the engine asks of anything that batches can be sampled from."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from dreamlab.core.phase import Phase
from dreamlab.core.types import Batch, Spec


@dataclass(frozen=True)
class BufferConfig:
    """What a buffer's options define before it is created; a ValueError says what is invalid."""

    stores: ClassVar[bool] = True
    """Whether steps can be added to it."""

    @property
    def pads(self) -> bool:
        """Return whether windows repeat steps that did not happen."""
        return False

    @property
    def crosses(self) -> bool:
        """Return whether a window may have steps of several episodes."""
        return False

    def window(self) -> tuple[int, int, int] | None:
        """Return batch, length and context of what is sampled; None if it is used as a whole."""
        return None

    def first_batch(self, num_envs: int) -> int:
        """Return how many steps must be stored before a batch can be sampled."""
        return 0

    def most_steps(self, num_envs: int) -> int:
        """Return how many steps it holds when full."""
        raise NotImplementedError

    def check_phase(self, phase: Phase) -> None:
        """Raise if the buffer cannot serve this phase."""


def crosses(windows: str, length: int) -> bool:
    """Return whether windows of these rules and this length may cross the end of an episode."""
    return windows != "inside" and length > (2 if windows == "transitions" else 1)


@dataclass(frozen=True)
class BufferContext:
    """Where a buffer lives: known to the composition root, not to its config."""

    spec: Spec
    num_envs: int
    seed: int = 0
    device: torch.device | str = "cpu"
    folder: Path | None = None
    """The buffer's folder in the run directory; None keeps everything in memory."""
    extras: dict[str, Tensor] = field(default_factory=dict)
    """Extras that the workflow stores with a step of one environment; external data may lack
    them."""


class Source(Protocol):
    """Gives batches: a buffer, or a mix of several."""

    @property
    def rows(self) -> int:
        """Return how many windows a batch has."""
        ...

    @property
    def steps_per_sample(self) -> int:
        """Return how many stored steps one batch replays."""
        ...

    def ready(self) -> bool:
        """Return whether a batch can be sampled."""
        ...

    def sample(self, rows: int | None = None) -> Batch:
        """Sample a batch, of `rows` windows if given; it is valid until the next one is sampled."""
        ...

    def peek(self, seed: int, length: int) -> Batch | None:
        """Sample windows to look at, changing nothing; None if what is stored is used only once."""
        ...

    def update(self, index: Tensor, extras: dict[str, Tensor]) -> None:
        """Write extras [b, t] back at the last t steps of the windows `index` of a batch."""
        ...


class Buffer(Source, Protocol):
    """A source that is configured by itself: a replay, a rollout, another run's replay, data."""

    def nbytes(self) -> int:
        """Return how much memory it takes when full; 0 before its first step."""
        ...

    def save(self) -> dict[str, Any]:
        """Write what is not on disk yet and return the state that leads back here."""
        ...

    def load(self, state: dict[str, Any]) -> None:
        """Come back to a state returned by `save`."""
        ...

    def prune(self, states: list[dict[str, Any]]) -> None:
        """Delete files that none of these states needs."""
        ...
