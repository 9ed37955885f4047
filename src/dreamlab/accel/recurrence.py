"""A linear recurrence backwards in time as one kernel, for computing returns."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dreamlab.accel import ahead
from dreamlab.accel.dispatch import kernels

SCHEMA = "(Tensor target, Tensor decay, Tensor last) -> Tensor"


@torch.library.custom_op("dreamlab::recurrence", mutates_args=(), schema=SCHEMA)
def recurrence(target: Tensor, decay: Tensor, last: Tensor) -> Tensor:
    """Compute out[:, i] = target[:, i] + decay[:, i] * out[:, i + 1], with `last` after the end."""
    out, (rows, steps) = torch.empty_like(target), target.shape

    def launch(k: Any) -> None:
        grid = (-(-rows // 32),)
        k.recurrence_kernel[grid](target, decay, last, out, rows, steps, ROWS=32)

    k = kernels("recurrence")
    if ahead.build(k, launch):
        launch(k)
    return out


@recurrence.register_fake
def _(target: Tensor, decay: Tensor, last: Tensor) -> Tensor:
    return torch.empty_like(target)
