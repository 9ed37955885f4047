"""Which form is computed where there are two: the reference as it is written, or a kernel."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from torch import Tensor

from dreamlab.core.optim import Adam

# asked once: the compiler traces `use_triton`, and refuses to look for modules
HAS_TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton's kernels in numpy: for tests


class Forms:
    """Which form this process computes: the reference is there to compare with."""

    reference = False


def set_reference(on: bool) -> None:
    """Compute everything in its reference form from now on, or no longer."""
    Forms.reference = Adam.single_ops = on


@contextmanager
def reference_kernels(on: bool = True) -> Iterator[None]:
    """Compute everything inside the block in its reference form, or nothing."""
    before = Forms.reference
    set_reference(on)
    try:
        yield
    finally:
        set_reference(before)


def use_fused() -> bool:
    """Return whether several operations are computed as one where that is faster on any device."""
    return not Forms.reference


def use_cpu_kernels(x: Tensor) -> bool:
    """Return whether a tensor is computed with in the form that suits a CPU."""
    return x.device.type == "cpu" and not Forms.reference


def use_gpu_kernels(x: Tensor) -> bool:
    """Return whether a tensor is computed with in the form that suits a GPU."""
    return (x.is_cuda or INTERPRETED) and not Forms.reference


def use_triton(x: Tensor) -> bool:
    """Return whether a Triton kernel of ours computes with this tensor."""
    return use_gpu_kernels(x) and HAS_TRITON


@cache
def kernels(name: str) -> Any:
    """Import kernels where they are needed: most machines have no Triton."""
    return importlib.import_module(f"dreamlab.accel.kernels.{name}")
