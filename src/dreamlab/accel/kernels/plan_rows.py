"""Triton kernels that see whole rows of a layer of TD-MPC2's plans. See `plan_layers`.

A tile of few rows reads all columns of its input at once, so it needs no parts of means.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dreamlab.accel.kernels.plan_layers import (
    actions_of,
    add_action,
    begin,
    environment,
    first_layer,
    grouped_softmax,
    mish,
    noise_of,
    normal,
    put,
    put_action,
)


@triton.jit
def active(y, scale, shift, size: tl.constexpr, BM: tl.constexpr, G: tl.constexpr):
    """Normalize whole rows; then apply softmax to groups of G, or Mish if G is 0."""
    inv, off = normal(y, size)
    y = (y * inv[:, None] + off[:, None]) * scale[None, :] + shift[None, :]
    return mish(y) if G == 0 else grouped_softmax(y, BM, size, G)


@triton.jit
def put_rows(
    y_ptr, part_ptr, acc, m, n, rows, tile, size: tl.constexpr, BN: tl.constexpr,
    STATS: tl.constexpr,
):  # fmt: skip
    """Store a tile before the norm, with its means and spreads if a reader wants them."""
    if STATS:
        put(y_ptr, part_ptr, acc, m, n, rows, tile, size, BN)
    else:
        at = y_ptr + m[:, None] * size + n[None, :]
        tl.store(at, acc.to(y_ptr.dtype.element_ty), mask=(m < rows)[:, None])


@triton.jit(do_not_specialize_on_alignment=["action_ptr"])
def row_layer_kernel(
    x_ptr, scale_ptr, shift_ptr, w_ptr, bias_ptr, action_ptr, wa_ptr, y_ptr, put_ptr, rows, plans,
    stride, k_size: tl.constexpr, n_size: tl.constexpr, a: tl.constexpr, G: tl.constexpr,
    FIRST: tl.constexpr, STATS: tl.constexpr, MIXED: tl.constexpr, AP: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """As `plan_layer_kernel`, of widths that are powers of two."""
    pid, tile = tl.program_id(1), tl.program_id(0)
    m, n, k = pid * BM + tl.arange(0, BM), tile * BN + tl.arange(0, BN), tl.arange(0, k_size)
    there = tl.minimum(m, rows - 1)
    w = tl.load(w_ptr + k[:, None] + n[None, :] * k_size)
    scale, shift = tl.load(scale_ptr + k).to(tl.float32), tl.load(shift_ptr + k).to(tl.float32)
    if FIRST:
        env = environment(there, pid * BM, plans, MIXED)
        acc = begin(bias_ptr, env, n, n_size, BM, BN, MIXED)
    else:
        acc = begin(bias_ptr, 0, n, n_size, BM, BN, False)
    x = tl.load(x_ptr + there[:, None] * k_size + k[None, :]).to(tl.float32)
    if a > 0:
        action = actions_of(action_ptr, there, stride, w.dtype, a, AP)
        acc = add_action(acc, action, wa_ptr, n, n_size, a, AP)
    y = active(x, scale, shift, k_size, BM, G)
    acc = tl.dot(y.to(w.dtype), w, acc, input_precision="ieee")
    put_rows(y_ptr, put_ptr, acc, m, n, rows, tile, n_size, BN, STATS)


@triton.jit(do_not_specialize_on_alignment=["action_ptr"])
def row_begin_kernel(
    start_ptr, action_ptr, wa_ptr, scale_ptr, shift_ptr, w_ptr, bias_ptr, y_ptr, put_ptr, rows,
    plans, stride, size: tl.constexpr, a: tl.constexpr, STATS: tl.constexpr, MIXED: tl.constexpr,
    AP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """As `plan_begin_kernel`, of widths that are powers of two."""
    pid, tile = tl.program_id(1), tl.program_id(0)
    m, n, k = pid * BM + tl.arange(0, BM), tile * BN + tl.arange(0, BN), tl.arange(0, size)
    there = tl.minimum(m, rows - 1)
    env = environment(there, pid * BM, plans, MIXED)
    w = tl.load(w_ptr + k[:, None] + n[None, :] * size)
    action = actions_of(action_ptr, there, stride, w.dtype, a, AP)
    y = first_layer(action, env, start_ptr, wa_ptr, k, w.dtype, size, a, AP, BM, size, MIXED)
    scale, shift = tl.load(scale_ptr + k).to(tl.float32), tl.load(shift_ptr + k).to(tl.float32)
    y = active(y, scale, shift, size, BM, 0)
    acc = begin(bias_ptr, 0, n, size, BM, BN, False)
    acc = tl.dot(y.to(w.dtype), w, acc, input_precision="ieee")
    put_rows(y_ptr, put_ptr, acc, m, n, rows, tile, size, BN, STATS)


@triton.jit(do_not_specialize_on_alignment=["noise_ptr", "out_ptr"])
def row_act_kernel(
    x_ptr, scale_ptr, shift_ptr, w_ptr, bias_ptr, noise_ptr, mask_ptr, out_ptr, rows, plans,
    noise_env, stride, low: tl.constexpr, high: tl.constexpr, w: tl.constexpr, a: tl.constexpr,
    MASKED: tl.constexpr, AP: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """As `plan_act_kernel`, of widths that are powers of two."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    there, j, k = tl.minimum(m, rows - 1), tl.arange(0, AP), tl.arange(0, w)
    few = (j < a)[None, :]
    at = w_ptr + k[:, None] + j[None, :] * w
    of_mean = tl.load(at, mask=few, other=0.0)
    of_raw = tl.load(at + a * w, mask=few, other=0.0)
    scale, shift = tl.load(scale_ptr + k).to(tl.float32), tl.load(shift_ptr + k).to(tl.float32)
    x = tl.load(x_ptr + there[:, None] * w + k[None, :]).to(tl.float32)
    noise, mask = noise_of(noise_ptr, mask_ptr, there, j, plans, noise_env, a, MASKED, AP, BM)
    y = active(x, scale, shift, w, BM, 0).to(of_raw.dtype)
    mean = tl.dot(y, of_mean, tl.zeros([BM, AP], tl.float32), input_precision="ieee")
    raw = tl.dot(y, of_raw, tl.zeros([BM, AP], tl.float32), input_precision="ieee")
    put_action(out_ptr, mean, raw, noise, mask, bias_ptr, m, j, rows, stride, low, high, a)
