"""Where there are two ways to compute the same thing: the one as it is written, and a GPU's own."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton's kernels in numpy: for tests


class Ways:
    """Which way to compute where there are two: the plain one is there to compare with."""

    plain = False


@contextmanager
def as_written() -> Iterator[None]:
    """Compute everything inside the block the plain way."""
    before, Ways.plain = Ways.plain, True
    try:
        yield
    finally:
        Ways.plain = before


def gpu_way(x: Tensor) -> bool:
    """Tell whether a tensor is better treated in the way that suits a GPU."""
    return (x.is_cuda or INTERPRETED) and not Ways.plain


def triton_takes(x: Tensor) -> bool:
    """Tell whether a kernel of ours can work on this tensor."""
    return gpu_way(x) and has_triton()


@cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


@cache
def kernels(name: str) -> Any:
    """Import kernels where they are needed: most machines have no Triton."""
    return importlib.import_module(f"dreamlab.accel.kernels.{name}")
