"""Triton kernels of `accel.fused_laprop`: all parameters in three launches.

Parameters lie one after another in one array, cut into chunks that never cross from one parameter
to the next. `owner` names each chunk's parameter, `first` where the chunk starts, `size` its
length, `place` where its gradients start: multiples of ALIGN, so that numbers are read in groups;
what pads a parameter is 0, and so are its gradients. Those of lower precision have their own array.
"""

from __future__ import annotations

import triton
import triton.language as tl

ALIGN = tl.constexpr(64)


@triton.jit
def aligned(ptr, pid):
    """Load a place or a length."""
    return tl.multiple_of(tl.load(ptr + pid), ALIGN)


@triton.jit
def read_gradient(half_ptr, full_ptr, halves, at, mask):
    """Load gradients, which come in two arrays: `halves` of lower precision, then the rest."""
    low = tl.load(half_ptr + at, mask=mask & (at < halves), other=0.0).to(tl.float32)
    return low + tl.load(full_ptr + at - halves, mask=mask & (at >= halves), other=0.0)


@triton.jit
def squares_kernel(
    param_ptr, half_ptr, full_ptr, halves, first_ptr, place_ptr, size_ptr, out_ptr, chunks,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Sum the squares of a chunk's gradients and parameters."""
    pid = tl.program_id(0)
    first, size = aligned(first_ptr, pid), aligned(size_ptr, pid)
    i = tl.arange(0, CHUNK)
    mask = i < size
    g = read_gradient(half_ptr, full_ptr, halves, aligned(place_ptr, pid) + i, mask)
    p = tl.load(param_ptr + first + i, mask=mask, other=0.0)
    tl.store(out_ptr + pid, tl.sum(g * g))
    tl.store(out_ptr + chunks + pid, tl.sum(p * p))


@triton.jit
def limit_kernel(square_ptr, begin_ptr, out_ptr, sum_ptr, chunks, agc, MOST: tl.constexpr):
    """Divide by how much a parameter's gradient is too long, at least 1."""
    pid = tl.program_id(0)
    begin, end = tl.load(begin_ptr + pid), tl.load(begin_ptr + pid + 1)
    i = begin + tl.arange(0, MOST)
    g = tl.sum(tl.load(square_ptr + i, mask=i < end, other=0.0))
    p = tl.sum(tl.load(square_ptr + chunks + i, mask=i < end, other=0.0))
    limit = agc * tl.maximum(tl.sqrt(p), 1e-3)
    tl.store(out_ptr + pid, tl.maximum(tl.sqrt(g) / limit, 1.0))
    tl.store(sum_ptr + pid, g)


@triton.jit
def step_kernel(
    param_ptr, half_ptr, full_ptr, halves, mean_ptr, square_ptr, first_ptr, place_ptr, size_ptr,
    owner_ptr, limit_ptr, scalar_ptr, beta1, beta2, eps, CHUNK: tl.constexpr,
):  # fmt: skip
    """Move a chunk. Scalars: the correction of the squares, and the rate with its correction."""
    pid = tl.program_id(0)
    first, size = aligned(first_ptr, pid), aligned(size_ptr, pid)
    limit = tl.load(limit_ptr + tl.load(owner_ptr + pid))
    correction, rate = tl.load(scalar_ptr), tl.load(scalar_ptr + 1)
    i = tl.arange(0, CHUNK)
    at, mask = first + i, i < size
    g = read_gradient(half_ptr, full_ptr, halves, aligned(place_ptr, pid) + i, mask)
    g = tl.div_rn(g, limit + 0 * g)
    square = tl.load(square_ptr + at, mask=mask, other=0.0) * beta2 + g * g * (1 - beta2)
    tl.store(square_ptr + at, square, mask=mask)
    # rounded properly: the fast versions take tiny numbers for 0 and their gradients for large
    g = tl.div_rn(g, tl.sqrt_rn(tl.div_rn(square, correction + 0 * square)) + eps)
    mean = tl.load(mean_ptr + at, mask=mask, other=0.0)
    mean = mean + (1 - beta1) * (g - mean)
    tl.store(mean_ptr + at, mean, mask=mask)
    p = tl.load(param_ptr + at, mask=mask, other=0.0) + rate * mean
    tl.store(param_ptr + at, p, mask=mask)
