"""Batch statistics over all processes; with one process, of its own batch."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from dreamlab.core import world


def pooled_mean(x: Float[Tensor, "*b"]) -> Float[Tensor, ""]:
    """Return this process's term of the global mean: averaged over processes, it is the mean.

    Processes may hold unequal numbers of values.
    """
    if world.size() == 1:
        return x.mean()
    return x.sum() / world.mean(torch.ones_like(x).sum())


def pooled_std_mean(x: Float[Tensor, "*b"]) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Return standard deviation and mean over all processes, without a gradient."""
    if world.size() == 1:
        return torch.std_mean(x)
    count = torch.ones_like(x).sum()
    count, total = world.total(torch.stack([count, x.sum()])).unbind()
    mean = total / count
    square = world.total((x - mean).square().sum())
    return (square / (count - 1)).sqrt(), mean


def pooled_standard(x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Standardize rows with mean and deviation over all processes; gradients flow through both."""
    if world.size() == 1:
        return (x - x.mean(0)) / (x.std(0) + 1e-8)
    away = x - world.mean(x.mean(0))
    square = world.mean(away.square().mean(0))
    rows = len(x) * world.size()
    return away / ((square * (rows / (rows - 1))).sqrt() + 1e-8)
