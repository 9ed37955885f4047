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
    device: torch.device, here: Callable[[], A], beside: Callable[[], B], urgent: bool = False
) -> tuple[A, B]:
    """Return what both give, called in this order; a GPU may compute them at the same time.

    Where both want the same processors, `beside` waits, or goes before if it is `urgent`. The
    caller keeps the tensors that it reads until it has used the results. The order matters: when
    gradients have arrived at a weight, autograd waits for all that was requested where it was
    first used, and that should not be what runs beside.
    """
    if not use_fused():
        return here(), beside()
    side = SideStream(device, urgent)
    one = here()
    with side:
        other = beside()
    side.join()
    return one, other
