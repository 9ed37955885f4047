"""Run two independent computations concurrently."""

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
    """Call both functions in this order and return their results; a GPU may overlap them.

    If both compete for the same processors, `beside` has lower priority, or higher if `urgent`. The
    caller must keep the input tensors alive until it has used the results. The order matters: when
    gradients reach a weight, autograd waits for the stream on which the weight was first used, and
    that should not be the one of `beside`.
    """
    if not use_fused():
        return here(), beside()
    side = SideStream(device, urgent)
    one = here()
    with side:
        other = beside()
    side.join()
    return one, other
