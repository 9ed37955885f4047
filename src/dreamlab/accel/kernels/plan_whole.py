"""Triton kernels of `accel.plan_whole`: a layer of TD-MPC2's plans with norm and activation.

A tile has some rows and all columns, so it normalizes and activates its sums before it stores them:
whoever reads a layer multiplies what it reads, and nothing else. See `plan_layers` for the letters.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dreamlab.accel.kernels.plan_layers import (
    EPS,
    actions_of,
    environment,
    gain_of,
    grouped_softmax,
    mish,
    noise_of,
    put_action,
)


@triton.jit
def add_rows(
    acc, x_ptr, m, w_ptr, n, size: tl.constexpr, k_size: tl.constexpr, SK: tl.constexpr,
    SN: tl.constexpr, BK: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Add rows m of x [rows, k_size] times a weight whose strides are SK and SN."""
    kk = tl.arange(0, BK)
    for k in range(0, k_size, BK):
        x = tl.load(x_ptr + m[:, None] * k_size + (k + kk)[None, :])
        at = w_ptr + (k + kk)[:, None] * SK + n[None, :] * SN
        w = tl.load(at) if size == N else tl.load(at, mask=(n < size)[None, :], other=0.0)
        acc = tl.dot(x, w, acc, input_precision="ieee")
    return acc


@triton.jit
def sums_from(
    ptr, env, n, size: tl.constexpr, BM: tl.constexpr, N: tl.constexpr, MIXED: tl.constexpr
):  # fmt: skip
    """Return what sums begin with: a vector for each row if `MIXED`, else one for all."""
    inside = n < size
    if MIXED:
        at = ptr + env[:, None] * size + n[None, :]
        sums = tl.load(at, mask=inside[None, :], other=0.0).to(tl.float32)
    else:
        vector = tl.load(ptr + env * size + n, mask=inside, other=0.0).to(tl.float32)
        sums = tl.zeros([BM, N], tl.float32) + vector[None, :]
    return sums


@triton.jit
def add_acts(
    acc, action_ptr, m, stride, w_ptr, n, size: tl.constexpr, a: tl.constexpr, AP: tl.constexpr
):  # fmt: skip
    """Add the action's part of a first layer; its weight is [a, size]."""
    j = tl.arange(0, AP)
    there = (j < a)[:, None] & (n < size)[None, :]
    w = tl.load(w_ptr + j[:, None] * size + n[None, :], mask=there, other=0.0)
    action = actions_of(action_ptr, m, stride, w.dtype, a, AP)
    return tl.dot(action, w, acc, input_precision="ieee")


@triton.jit
def put_active(
    y_ptr, y, scale_ptr, shift_ptr, m, n, rows, size: tl.constexpr, BM: tl.constexpr,
    N: tl.constexpr, G: tl.constexpr,
):  # fmt: skip
    """Normalize whole rows, apply softmax to groups of G, or Mish if G is 0, and store them."""
    inside = n < size
    mean = tl.sum(y, 1) / size
    y = tl.where(inside[None, :], y - mean[:, None], 0.0)
    inv = tl.rsqrt(tl.sum(y * y, 1) / size + EPS)
    scale = tl.load(scale_ptr + n, mask=inside, other=0.0).to(tl.float32)
    shift = tl.load(shift_ptr + n, mask=inside, other=0.0).to(tl.float32)
    y = y * inv[:, None] * scale[None, :] + shift[None, :]
    y = mish(y) if G == 0 else grouped_softmax(y, BM, N, G)
    there = (m < rows)[:, None] & inside[None, :]
    at = y_ptr + m[:, None] * size + n[None, :]
    tl.store(at, y.to(y_ptr.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize_on_alignment=["action_ptr"])
def whole_layer_kernel(
    x_ptr, w_ptr, bias_ptr, action_ptr, wa_ptr, scale_ptr, shift_ptr, y_ptr, rows, plans, stride,
    k_size: tl.constexpr, size: tl.constexpr, a: tl.constexpr, G: tl.constexpr,
    FIRST: tl.constexpr, MIXED: tl.constexpr, AP: tl.constexpr, BM: tl.constexpr,
    BK: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """A layer of the dynamics or the policy; weights are [out, in].

    `FIRST` layers add the bias of the row's environment, and the action if a > 0. With a `k_size`
    of 0 a first layer is at the environment's latent, which is in that bias.
    """
    pid = tl.program_id(0)
    m, n = pid * BM + tl.arange(0, BM), tl.arange(0, N)
    there = tl.minimum(m, rows - 1)
    if FIRST:
        acc = sums_from(
            bias_ptr, environment(there, pid * BM, plans, MIXED), n, size, BM, N, MIXED
        )  # fmt: skip
    else:
        acc = sums_from(bias_ptr, 0, n, size, BM, N, False)
    if k_size > 0:
        acc = add_rows(acc, x_ptr, there, w_ptr, n, size, k_size, 1, k_size, BK, N)
    if a > 0:
        acc = add_acts(acc, action_ptr, there, stride, wa_ptr, n, size, a, AP)
    put_active(y_ptr, acc, scale_ptr, shift_ptr, m, n, rows, size, BM, N, G)


@triton.jit(do_not_specialize_on_alignment=["actions_ptr", "last_ptr"])
def whole_value_first_kernel(
    states_ptr, actions_ptr, last_ptr, pair_ptr, rstart_ptr, rw_ptr, rwa_ptr, rscale_ptr,
    rshift_ptr, qstart_ptr, qw_ptr, qscale_ptr, qshift_ptr, y_ptr, rows, plans, envs,
    H: tl.constexpr, step: tl.constexpr, d: tl.constexpr, w: tl.constexpr, a: tl.constexpr,
    MIXED: tl.constexpr, AP: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """First layers of two critics at the plans' ends, then of the reward of each step."""
    pid, job = tl.program_id(0), tl.program_id(1)
    m, n = pid * BM + tl.arange(0, BM), tl.arange(0, N)
    there = tl.minimum(m, rows - 1)
    is_q = job < 2
    time = tl.where(is_q, H, tl.num_programs(1) - 1 - job)  # the least work last: that of time 0
    head = tl.load(pair_ptr + tl.minimum(job, 1)).to(tl.int32)
    start = tl.where(is_q, qstart_ptr + head * envs * w, rstart_ptr)
    start += tl.where(is_q | (time == 0), 0, envs * w)
    acc = sums_from(start, environment(there, pid * BM, plans, MIXED), n, w, BM, N, MIXED)
    if time > 0:  # else the latent is the environment's, which is in the start
        w_ptr = tl.where(is_q, qw_ptr + head * (step * w), rw_ptr)
        x_ptr = states_ptr + (time - 1) * rows * d
        acc = add_rows(acc, x_ptr, there, w_ptr, n, w, d, w, 1, BK, N)
    action_ptr = tl.where(is_q, last_ptr, actions_ptr + time * a)
    wa_ptr = tl.where(is_q, qw_ptr + head * (step * w) + (step - a) * w, rwa_ptr)
    acc = add_acts(acc, action_ptr, there, tl.where(is_q, a, H * a), wa_ptr, n, w, a, AP)
    scale_ptr = tl.where(is_q, qscale_ptr + head * w, rscale_ptr)
    shift_ptr = tl.where(is_q, qshift_ptr + head * w, rshift_ptr)
    put_active(y_ptr + job * rows * w, acc, scale_ptr, shift_ptr, m, n, rows, w, BM, N, 0)


@triton.jit
def whole_value_hidden_kernel(
    x_ptr, pair_ptr, rw_ptr, rbias_ptr, rscale_ptr, rshift_ptr, qw_ptr, qbias_ptr, qscale_ptr,
    qshift_ptr, y_ptr, rows, w: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
    N: tl.constexpr,
):  # fmt: skip
    """Second layers of critics and rewards."""
    pid, job = tl.program_id(0), tl.program_id(1)
    m, n = pid * BM + tl.arange(0, BM), tl.arange(0, N)
    there = tl.minimum(m, rows - 1)
    is_q = job < 2
    head = tl.load(pair_ptr + tl.minimum(job, 1)).to(tl.int32)
    bias_ptr = tl.where(is_q, qbias_ptr + head * w, rbias_ptr)
    acc = sums_from(bias_ptr, 0, n, w, BM, N, False)
    w_ptr = tl.where(is_q, qw_ptr + head * (w * w), rw_ptr)
    acc = add_rows(acc, x_ptr + job * rows * w, there, w_ptr, n, w, w, w, 1, BK, N)
    scale_ptr = tl.where(is_q, qscale_ptr + head * w, rscale_ptr)
    shift_ptr = tl.where(is_q, qshift_ptr + head * w, rshift_ptr)
    put_active(y_ptr + job * rows * w, acc, scale_ptr, shift_ptr, m, n, rows, w, BM, N, 0)


@triton.jit
def whole_value_out_kernel(
    x_ptr, pair_ptr, rw_ptr, rbias_ptr, qw_ptr, qbias_ptr, centre_ptr, gains_ptr, rows,
    H: tl.constexpr, w: tl.constexpr, HB: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Output layers, and the rewards and half of the values that their logits stand for."""
    pid, job = tl.program_id(0), tl.program_id(1)
    m, n = pid * BM + tl.arange(0, BM), tl.arange(0, 2 * HB)
    there = tl.minimum(m, rows - 1)
    is_q = job < 2
    head = tl.load(pair_ptr + tl.minimum(job, 1)).to(tl.int32)
    bias_ptr = tl.where(is_q, qbias_ptr + head * (2 * HB), rbias_ptr)
    w_ptr = tl.where(is_q, qw_ptr + head * (w * 2 * HB), rw_ptr)
    acc = sums_from(bias_ptr, 0, n, 2 * HB, BM, 2 * HB, False)
    x_ptr += job * rows * w
    acc = add_rows(acc, x_ptr, there, w_ptr, n, 2 * HB, w, 2 * HB, 1, BK, 2 * HB)
    gain = gain_of(acc, centre_ptr, BM, HB)
    place = tl.where(is_q, H + job, tl.num_programs(1) - 1 - job)
    share = tl.where(is_q, 0.5, 1.0)  # the value of an end is the mean of both critics'
    tl.store(gains_ptr + place * rows + m, share * gain, mask=m < rows)


@triton.jit(do_not_specialize_on_alignment=["noise_ptr", "out_ptr"])
def whole_act_kernel(
    x_ptr, w_ptr, bias_ptr, noise_ptr, mask_ptr, out_ptr, rows, plans, noise_env, stride,
    low: tl.constexpr, high: tl.constexpr, w: tl.constexpr, a: tl.constexpr,
    MASKED: tl.constexpr, AP: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The policy's output layer [2 a, w], and the actions it makes of noise."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    there, j = tl.minimum(m, rows - 1), tl.arange(0, AP)
    noise, mask = noise_of(noise_ptr, mask_ptr, there, j, plans, noise_env, a, MASKED, AP, BM)
    zero = tl.zeros([BM, AP], tl.float32)
    mean = add_rows(zero, x_ptr, there, w_ptr, j, a, w, 1, w, BK, AP)
    raw = add_rows(zero, x_ptr, there, w_ptr + a * w, j, a, w, 1, w, BK, AP)
    put_action(out_ptr, mean, raw, noise, mask, bias_ptr, m, j, rows, stride, low, high, a)
