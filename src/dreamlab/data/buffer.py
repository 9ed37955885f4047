"""What the engine asks of a buffer, whatever it stores."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from dreamlab.core.phase import Phase
from dreamlab.core.types import Array, Batch, Decision, Spec, Step


@dataclass(frozen=True)
class BufferConfig:
    """What a buffer's options tell before it is made; a ValueError says what cannot work."""

    def first_batch(self, num_envs: int) -> int:
        """Return how many steps must be stored before a batch can be drawn."""
        return 0

    def check_phase(self, phase: Phase) -> None:
        """Raise if the buffer cannot serve this phase."""


@dataclass(frozen=True)
class BufferContext:
    """Where a buffer lives: known to the composition root, not to its config."""

    spec: Spec
    num_envs: int
    seed: int = 0
    device: torch.device | str = "cpu"
    folder: Path | None = None
    """The run's folder for this buffer; None keeps everything in memory."""


class Buffer(Protocol):
    """Storage of steps that gives batches back."""

    needs_next: bool
    """Whether `finish` must be called when a collection ends, before a batch is drawn."""

    @property
    def steps_per_sample(self) -> int:
        """Return how many stored steps one batch replays."""
        ...

    def add(self, step: Step, decision: Decision) -> None:
        """Store one step of every environment, with the action and extras decided from it."""
        ...

    def finish(self, step: Step) -> None:
        """Take note of the step that follows the last one stored."""
        ...

    def ready(self) -> bool:
        """Tell whether a batch can be drawn."""
        ...

    def sample(self) -> Batch:
        """Draw a batch; it is valid until the next one is drawn."""
        ...

    def peek(self, seed: int, length: int) -> Batch | None:
        """Draw windows to look at, changing nothing; None if what is stored is used only once."""
        ...

    def update(self, index: Tensor, extras: dict[str, Tensor]) -> None:
        """Write extras [b, t] back at the last t steps of the windows `index` of a batch."""
        ...

    def nbytes(self) -> int:
        """Return how much memory the buffer takes when full; 0 before its first step."""
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


def record(step: Step, decision: Decision) -> dict[str, Array | Tensor]:
    """Return a step and its decision as one flat dictionary, without any gradient graph."""
    out: dict[str, Array | Tensor] = {f"obs/{k}": v for k, v in step.obs.items()}
    out["action"] = decision.action.detach()
    out["reward"], out["is_first"] = step.reward, step.is_first
    out["is_last"], out["is_terminal"] = step.is_last, step.is_terminal
    for k, v in decision.extras.items():
        out[f"extras/{k}"] = v.detach()
    return out


def batch_of(rows: dict[str, Tensor], index: Tensor | None = None) -> Batch:
    """Return the batch whose flat dictionary is `rows`."""
    plain = {f.name for f in fields(Batch)} - {"obs", "extras", "index"}
    return Batch(
        obs={k[4:]: v for k, v in rows.items() if k.startswith("obs/")},
        extras={k[7:]: v for k, v in rows.items() if k.startswith("extras/")},
        index=index,
        **{k: rows[k] for k in plain},
    )


def as_tensor(value: Array | Tensor) -> Tensor:
    """Return an array as a tensor without copying."""
    return value if isinstance(value, Tensor) else torch.from_numpy(np.ascontiguousarray(value))
