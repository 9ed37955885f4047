"""Faster alternatives to slow CPU kernels of torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

LARGE = 20.0
"""Beyond this, Mish equals its argument in float32, and its powers stay finite."""


def small_softmax(x: Tensor) -> Tensor:
    """Compute the softmax over a short last axis.

    For 512 x 8 x 8 values torch takes 645 us over the last axis, 29 us over the first.
    """
    return torch.softmax(x.movedim(-1, 0).contiguous(), 0).movedim(0, -1).contiguous()


def small_log_softmax(x: Tensor) -> Tensor:
    """Compute the logarithm of `small_softmax`."""
    return torch.log_softmax(x.movedim(-1, 0).contiguous(), 0).movedim(0, -1).contiguous()


def tanh(x: Tensor) -> Tensor:
    """Compute tanh through a sigmoid, in a third of the time."""
    return torch.sigmoid(2 * x).mul(2).sub(1)


def mish(x: Tensor) -> Tensor:
    """Compute x tanh(softplus(x)) with one exponential instead of three functions.

    With e = exp(x) and n = e (e + 2), tanh(softplus(x)) is n / (n + 2).
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        e = x.clamp(max=LARGE).exp()
        n = e * (e + 2)
        return x * n / (n + 2)
    out: Any = _Mish.apply(x)
    return out


class _Mish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        e = x.clamp(max=LARGE).exp_()
        n = (e + 2).mul_(e)
        torch.add(n, 2, out=e)
        return n.div_(e).mul_(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (x,) = ctx.saved_tensors
        e = x.clamp(max=LARGE).exp_()
        n = (e + 2).mul_(e)
        below = n + 2
        slope = (
            torch.addcmul(e, e, e).mul_(x).div_(below).mul_(4).add_(n)
        )  # n + 4 x e (e + 1) / (n + 2)
        return slope.div_(below).mul_(grad)
