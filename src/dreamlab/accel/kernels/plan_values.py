"""Triton kernels of `accel.latent_plans`: rewards and critics, all at once. See `plan_layers`.

A program is for one job: the two critics come first, then the rewards of each step.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dreamlab.accel.kernels.plan_layers import (
    actions_of,
    add_action,
    add_product,
    begin,
    environment,
    gain_of,
    moments,
    put,
)


@triton.jit
def plan_value_first_kernel(
    states_ptr, part_ptr, scale_ptr, shift_ptr, actions_ptr, last_ptr, pair_ptr,
    rstart_ptr, rw_ptr, rwa_ptr, qstart_ptr, qw_ptr, y_ptr, put_ptr, rows, plans, envs,
    H: tl.constexpr, step: tl.constexpr, d: tl.constexpr, w: tl.constexpr, a: tl.constexpr,
    G: tl.constexpr, parts: tl.constexpr, PARTS: tl.constexpr, MIXED: tl.constexpr,
    AP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """First layers of two critics at the plans' ends, then of the reward of each step."""
    tile, pid, job = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    m, n = pid * BM + tl.arange(0, BM), tile * BN + tl.arange(0, BN)
    there = tl.minimum(m, rows - 1)
    like = y_ptr.dtype.element_ty
    is_q = job < 2
    time = tl.where(is_q, H, tl.num_programs(2) - 1 - job)  # the least work last: that of time 0
    head = tl.load(pair_ptr + tl.minimum(job, 1)).to(tl.int32)
    before = tl.maximum(time - 1, 0)
    inv, off = moments(part_ptr + before * rows * (2 * parts), there, d, parts, PARTS)
    start = tl.where(is_q, qstart_ptr + head * envs * w, rstart_ptr)
    start += tl.where(is_q | (time == 0), 0, envs * w)
    action_ptr = tl.where(is_q, last_ptr, actions_ptr + time * a)
    action = actions_of(action_ptr, there, tl.where(is_q, a, H * a), like, a, AP)
    w_ptr = tl.where(is_q, qw_ptr + head * (step * w), rw_ptr)
    wa_ptr = tl.where(is_q, qw_ptr + head * (step * w) + (step - a) * w, rwa_ptr)
    acc = begin(start, environment(there, pid * BM, plans, MIXED), n, w, BM, BN, MIXED)
    acc = add_action(acc, action, wa_ptr, n, w, a, AP)
    if time > 0:  # else the latent is the environment's, which is in the start
        acc = add_product(
            acc, states_ptr + before * rows * d, there, inv, off, scale_ptr, shift_ptr, w_ptr, n, d,
            w, 1, BM, BK, G,
        )  # fmt: skip
    y_ptr += job * rows * w
    put(y_ptr, put_ptr + job * rows * (2 * (w // BN)), acc, m, n, rows, tile, w, BN)


@triton.jit
def plan_value_hidden_kernel(
    x_ptr, part_ptr, pair_ptr, rscale_ptr, rshift_ptr, rw_ptr, rbias_ptr,
    qscale_ptr, qshift_ptr, qw_ptr, qbias_ptr, y_ptr, put_ptr, rows, w: tl.constexpr,
    parts: tl.constexpr, PARTS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    """Second layers of critics and rewards."""
    tile, pid, job = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    m, n = pid * BM + tl.arange(0, BM), tile * BN + tl.arange(0, BN)
    there = tl.minimum(m, rows - 1)
    is_q = job < 2
    head = tl.load(pair_ptr + tl.minimum(job, 1)).to(tl.int32)
    inv, off = moments(part_ptr + job * rows * (2 * parts), there, w, parts, PARTS)
    scale_ptr = tl.where(is_q, qscale_ptr + head * w, rscale_ptr)
    shift_ptr = tl.where(is_q, qshift_ptr + head * w, rshift_ptr)
    w_ptr = tl.where(is_q, qw_ptr + head * (w * w), rw_ptr)
    acc = begin(tl.where(is_q, qbias_ptr + head * w, rbias_ptr), 0, n, w, BM, BN, False)
    acc = add_product(
        acc, x_ptr + job * rows * w, there, inv, off, scale_ptr, shift_ptr, w_ptr, n, w, w, 1, BM,
        BK, 0,
    )  # fmt: skip
    y_ptr += job * rows * w
    put(y_ptr, put_ptr + job * rows * (2 * (w // BN)), acc, m, n, rows, tile, w, BN)


@triton.jit
def plan_value_out_kernel(
    x_ptr, part_ptr, pair_ptr, rscale_ptr, rshift_ptr, rw_ptr, rbias_ptr, qscale_ptr, qshift_ptr,
    qw_ptr, qbias_ptr, centre_ptr, gains_ptr, rows,
    H: tl.constexpr, w: tl.constexpr, HB: tl.constexpr, parts: tl.constexpr, PARTS: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Output layers, and the rewards and half of the values that their logits stand for."""
    pid, job = tl.program_id(0), tl.program_id(1)
    m, n = pid * BM + tl.arange(0, BM), tl.arange(0, 2 * HB)
    there = tl.minimum(m, rows - 1)
    is_q = job < 2
    head = tl.load(pair_ptr + tl.minimum(job, 1)).to(tl.int32)
    x_ptr += job * rows * w
    part_ptr += job * rows * (2 * parts)
    inv, off = moments(part_ptr, there, w, parts, PARTS)
    scale_ptr = tl.where(is_q, qscale_ptr + head * w, rscale_ptr)
    shift_ptr = tl.where(is_q, qshift_ptr + head * w, rshift_ptr)
    w_ptr = tl.where(is_q, qw_ptr + head * (w * 2 * HB), rw_ptr)
    bias_ptr = tl.where(is_q, qbias_ptr + head * (2 * HB), rbias_ptr)
    acc = begin(bias_ptr, 0, n, 2 * HB, BM, 2 * HB, False)
    acc = add_product(
        acc, x_ptr, there, inv, off, scale_ptr, shift_ptr, w_ptr, n, w, 2 * HB, 1, BM, BK, 0
    )  # fmt: skip
    gain = gain_of(acc, centre_ptr, BM, HB)
    place = tl.where(is_q, H + job, tl.num_programs(1) - 1 - job)
    share = tl.where(is_q, 0.5, 1.0)  # the value of an end is the mean of both critics'
    tl.store(gains_ptr + place * rows + m, share * gain, mask=m < rows)
