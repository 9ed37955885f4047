"""Choice between the reference implementation and a kernel."""

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

# looked up once: the compiler traces `use_triton` and cannot search for modules
HAS_TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # run Triton kernels in numpy, for tests


class Forms:
    """Which form this process computes; the reference is for comparison."""

    reference = False


def set_reference(on: bool) -> None:
    """Switch reference implementations on or off."""
    Forms.reference = Adam.single_ops = on


@contextmanager
def reference_kernels(on: bool = True) -> Iterator[None]:
    """Switch reference implementations on or off inside the block."""
    before = Forms.reference
    set_reference(on)
    try:
        yield
    finally:
        set_reference(before)


def use_fused() -> bool:
    """Return whether to fuse operations where that is faster on any device."""
    return not Forms.reference


def use_cpu_kernels(x: Tensor) -> bool:
    """Return whether to use the CPU form for a tensor."""
    return x.is_cpu and not Forms.reference


def use_gpu_kernels(x: Tensor) -> bool:
    """Return whether to use the GPU form for a tensor."""
    return (x.is_cuda or INTERPRETED) and not Forms.reference


def use_triton(x: Tensor) -> bool:
    """Return whether to use a Triton kernel for this tensor."""
    return use_gpu_kernels(x) and HAS_TRITON


@cache
def kernels(name: str) -> Any:
    """Import kernels lazily: most machines have no Triton."""
    return importlib.import_module(f"dreamlab.accel.kernels.{name}")
