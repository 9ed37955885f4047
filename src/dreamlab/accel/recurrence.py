"""A linear recurrence backwards in time as one kernel, for computing returns."""

from __future__ import annotations

import torch
from torch import Tensor

from dreamlab.accel.dispatch import kernels

SCHEMA = "(Tensor target, Tensor decay, Tensor last) -> Tensor"


@torch.library.custom_op("dreamlab::recurrence", mutates_args=(), schema=SCHEMA)
def recurrence(target: Tensor, decay: Tensor, last: Tensor) -> Tensor:
    """Compute out[:, i] = target[:, i] + decay[:, i] * out[:, i + 1], with `last` after the end."""
    out, (rows, steps) = torch.empty_like(target), target.shape
    launch = kernels("recurrence").recurrence_kernel[(-(-rows // 32),)]
    launch(target, decay, last, out, rows, steps, ROWS=32)
    return out


@recurrence.register_fake
def _(target: Tensor, decay: Tensor, last: Tensor) -> Tensor:
    return torch.empty_like(target)
