"""What the engine asks of a place where steps are stored, whatever it keeps of them."""

from __future__ import annotations

from dataclasses import fields
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dreamlab.core.types import Array, Batch, Decision, Step
from dreamlab.data.source import Buffer


class Taker(Protocol):
    """Takes the steps that a collector sees."""

    needs_next: bool
    """Whether `finish` must be called after a collection, before sampling."""

    def add(self, step: Step, decision: Decision) -> None:
        """Store one step of every environment, with the action and extras decided from it."""
        ...

    def finish(self, step: Step) -> None:
        """Take note of the step that follows the last one stored."""
        ...


class Store(Buffer, Taker, Protocol):
    """A buffer that steps are stored in while a run collects them."""


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
