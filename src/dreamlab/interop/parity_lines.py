"""How far apart two tensors are, as a line to print."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from dreamlab.core.errors import CheckpointError
from dreamlab.core.types import Array
from dreamlab.interop.array_files import BROKEN

REL, ABS = 1e-4, 1e-5


@dataclass(frozen=True)
class Line:
    """One tensor: compared, or why not."""

    name: str
    absolute: float
    relative: float
    ok: bool
    note: str = ""
    compared: bool = True

    def __str__(self) -> str:
        if not self.compared:
            return f"{self.name:<44} not compared: {self.note}"
        mark = "ok" if self.ok else "DIFFERS"
        tail = f"  {self.note}" if self.note else ""
        return f"{self.name:<44} abs {self.absolute:9.2e}  rel {self.relative:9.2e}  {mark}{tail}"


def not_compared(name: str, note: str) -> Line:
    """Return the line of a tensor that only one side has."""
    return Line(name, np.nan, np.nan, True, note, compared=False)


def compare(name: str, ours: Tensor, theirs: Array) -> Line:
    """Return how far apart two tensors are: relative to the largest entry of the original's."""
    a = ours.detach().double().numpy()
    b = np.asarray(theirs, np.float64)
    if a.size != b.size:
        return Line(name, np.inf, np.inf, False, f"shape {a.shape} for {b.shape}")
    with np.errstate(invalid="ignore"):  # inf - inf: it differs
        error = float(np.abs(a.reshape(b.shape) - b).max(initial=0.0))
    scale = float(np.abs(b).max(initial=0.0))
    relative = error / scale if scale else error
    return Line(name, error, relative, error <= ABS or relative <= REL)


def load_arrays(file: Path) -> dict[str, Array]:
    """Return the numeric arrays of an `.npz`."""
    try:
        with np.load(file) as found:
            arrays = {k: np.array(found[k]) for k in found.files}
    except BROKEN as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise CheckpointError(f"{file.name} cannot be read: {reason}") from None
    return {k: v for k, v in arrays.items() if v.dtype.kind in "biuf"}
