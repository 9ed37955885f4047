"""Triton kernel of `accel.recurrence`: what would be one launch per step of a sequence."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def recurrence_kernel(
    target_ptr, decay_ptr, last_ptr, out_ptr, rows, steps: tl.constexpr, ROWS: tl.constexpr
):
    """out[:, i] = target[:, i] + decay[:, i] * out[:, i + 1], with `last` after the end."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mask = row < rows
    value = tl.load(last_ptr + row, mask=mask, other=0.0)
    for i in range(0, steps):
        at = row * steps + (steps - 1 - i)
        target = tl.load(target_ptr + at, mask=mask, other=0.0)
        value = target + tl.load(decay_ptr + at, mask=mask, other=0.0) * value
        tl.store(out_ptr + at, value, mask=mask)
