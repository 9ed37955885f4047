"""How far apart two tensors are, as a line to print."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from dreamlab.core.types import Array

REL, ABS = 1e-4, 1e-5


@dataclass(frozen=True)
class Line:
    """One compared tensor."""

    name: str
    absolute: float
    relative: float
    ok: bool
    note: str = ""

    def __str__(self) -> str:
        mark = "ok" if self.ok else "DIFFERS"
        tail = f"  {self.note}" if self.note else ""
        return f"{self.name:<44} abs {self.absolute:9.2e}  rel {self.relative:9.2e}  {mark}{tail}"


def compare(name: str, ours: Tensor, theirs: Array) -> Line:
    """Return how far apart two tensors are: relative to the largest entry of the original's."""
    a = ours.detach().double().numpy()
    b = np.asarray(theirs, np.float64)
    if a.size != b.size:
        return Line(name, np.inf, np.inf, False, f"shape {a.shape} for {b.shape}")
    error = float(np.abs(a.reshape(b.shape) - b).max(initial=0.0))
    scale = float(np.abs(b).max(initial=0.0))
    relative = error / scale if scale else error
    return Line(name, error, relative, error <= ABS or relative <= REL)
