"""Two computations that do not need each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from dreamlab.accel.dispatch import use_fused
from dreamlab.accel.side_stream import SideStream

A = TypeVar("A")
B = TypeVar("B")


def overlapped(
    device: torch.device, first: Callable[[], A], second: Callable[[], B], urgent: bool = False
) -> tuple[A, B]:
    """Return what both give, called in this order; a GPU may compute them at the same time.

    Where both want the same processors, `first` waits, or goes before if it is `urgent`.
    The caller keeps the tensors that `first` reads until it has used the results.
    """
    if not use_fused():
        return first(), second()
    beside = SideStream(device, urgent)
    with beside:
        one = first()
    other = second()
    beside.join()
    return one, other
