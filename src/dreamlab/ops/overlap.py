"""Run two independent computations concurrently."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

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


class InHalves:
    """A function of each step, computed of the first half while the second is being made.

    It takes a tensor [n, t, ...] and returns tensors [n, t]. Whoever makes the tensor calls `begin`
    with half of its steps, or not at all.
    """

    def __init__(
        self, function: Callable[[Float[Tensor, "n t d"]], tuple[Float[Tensor, "n t"], ...]]
    ) -> None:
        self.function = function
        self.done: tuple[Float[Tensor, "n half"], ...] = ()
        self.side: SideStream | None = None

    def begin(self, half: Float[Tensor, "n t d"]) -> None:
        """Compute the first half beside what follows."""
        self.side = SideStream(half.device, urgent=False)
        with self.side:
            self.done = self.function(half)

    def of(self, whole: Float[Tensor, "n t d"]) -> tuple[Float[Tensor, "n t"], ...]:
        """Return the results of all steps."""
        if self.side is None:
            return self.function(whole)
        rest = self.function(whole[:, whole.shape[1] // 2 :])
        self.side.join()
        return tuple(torch.cat(pair, 1) for pair in zip(self.done, rest, strict=True))
