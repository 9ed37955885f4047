"""Run two independent computations concurrently."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from dreamlab.accel.dispatch import use_fused
from dreamlab.accel.side_stream import SideStream

A = TypeVar("A")
B = TypeVar("B")


def ahead(
    device: torch.device, here: Callable[[], A], beside: Callable[[], B], name: str
) -> tuple[A, B]:
    """Call `beside`, then `here`, and return the results of `here` and `beside`.

    A GPU may overlap them, and their backward passes: that of `here` is launched first. What
    `beside` returns must be kept until the end. Calls of one name do not overlap each other.
    """
    side = SideStream(device, urgent=False, name=name)
    with side:
        other = beside()
    one = here()
    side.join()
    return one, other


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
