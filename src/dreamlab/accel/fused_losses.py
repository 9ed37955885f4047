"""Losses as single autograd nodes: on small batches the node overhead dominates."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class _Surrogate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, change: Tensor, advantage: Tensor, clip: Any) -> Tensor:
        ratio = change.exp()
        near = torch.clamp(ratio, 1 - clip, 1 + clip)
        free, clipped = ratio * advantage, near.mul_(advantage)
        ctx.save_for_backward(free.where(free <= clipped, 0.0))
        return torch.minimum(free, clipped)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grad * ctx.saved_tensors[0], None, None


def fused_surrogate(change: Tensor, advantage: Tensor, clip: Any) -> Tensor:
    """Compute `ops.losses.clipped_surrogate`."""
    result: Any = _Surrogate.apply(change, advantage, clip)
    return result
