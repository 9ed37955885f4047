"""Triton kernels of `accel.latent_plans`: one layer of TD-MPC2's networks, in tiles.

A tile of rows and columns sees no whole rows, so a layer's output is stored before its norm, with
mean and spread of each tile's part of a row. Whoever reads it puts these together, and normalizes
and activates what it reads. Rows are plans, those of an environment side by side; past the last one
it stands in.
Letters: d latent, w hidden width, a action entries; n columns, m rows, k numbers summed over.
"""

from __future__ import annotations

import triton
import triton.language as tl

EPS = tl.constexpr(1e-5)
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def mish(x):
    """Return x tanh(softplus(x)) = x - 2 x / ((e^x + 1)^2 + 1), also where e^x is infinite."""
    e = tl.exp2(x * LOG2E) + 1.0
    root = tl.rsqrt(e * e + 1.0)  # squared: in fewer instructions than a division
    return x - 2.0 * x * (root * root)


@triton.jit
def tanh(x):
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)


@triton.jit
def symexp(x):
    """Return sign(x) (e^|x| - 1); by its series where the difference would lose digits."""
    b = tl.abs(x)
    series = b * (1.0 + b * (0.5 + b * (1.0 / 6 + b * (1.0 / 24 + b / 120))))
    y = tl.where(b < 0.1, series, tl.exp(b) - 1.0)
    return tl.where(x < 0, -y, y)


@triton.jit
def grouped_softmax(y, BM: tl.constexpr, BN: tl.constexpr, G: tl.constexpr):
    """Apply softmax to every group of G columns."""
    y = tl.reshape(y, [BM, BN // G, G])
    y = tl.exp2((y - tl.max(y, 2)[:, :, None]) * LOG2E)
    y = y * (1.0 / tl.sum(y, 2))[:, :, None]
    return tl.reshape(y, [BM, BN])


@triton.jit
def moments(part_ptr, m, size: tl.constexpr, parts: tl.constexpr, PARTS: tl.constexpr):
    """Return factor and summand that normalize rows, from the parts' means and spreads."""
    p = tl.arange(0, PARTS)
    there = (p < parts)[None, :]
    at = part_ptr + m[:, None] * (2 * parts) + p[None, :]
    mean = tl.load(at, mask=there, other=0.0)
    spread = tl.load(at + parts, mask=there, other=0.0)
    middle = tl.sum(mean, 1) / parts
    off = tl.where(there, mean - middle[:, None], 0.0)
    var = tl.sum(spread + off * off * (size // parts), 1) / size
    inv = tl.rsqrt(var + EPS)
    return inv, -middle * inv


@triton.jit
def normal(y, size: tl.constexpr):
    """Return factor and summand that normalize whole rows."""
    mean = tl.sum(y, 1) / size
    off = y - mean[:, None]
    inv = tl.rsqrt(tl.sum(off * off, 1) / size + EPS)
    return inv, -mean * inv


@triton.jit
def activated(
    x, inv, off, scale_ptr, shift_ptr, k, BM: tl.constexpr, BK: tl.constexpr, G: tl.constexpr
):  # fmt: skip
    """Normalize columns k of rows; then apply softmax to groups of G, or Mish if G is 0."""
    scale, shift = tl.load(scale_ptr + k).to(tl.float32), tl.load(shift_ptr + k).to(tl.float32)
    y = (x.to(tl.float32) * inv[:, None] + off[:, None]) * scale[None, :] + shift[None, :]
    return mish(y) if G == 0 else grouped_softmax(y, BM, BK, G)


@triton.jit
def add_product(
    acc, x_ptr, m, inv, off, scale_ptr, shift_ptr, w_ptr, n, size: tl.constexpr, SK: tl.constexpr,
    SN: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, G: tl.constexpr,
):  # fmt: skip
    """Add activated rows m of x [rows, size] times a weight whose strides are SK and SN."""
    kk = tl.arange(0, BK)
    for k in range(0, size, BK):
        x = tl.load(x_ptr + m[:, None] * size + (k + kk)[None, :])
        w = tl.load(w_ptr + (k + kk)[:, None] * SK + n[None, :] * SN)
        y = activated(x, inv, off, scale_ptr, shift_ptr, k + kk, BM, BK, G)
        acc = tl.dot(y.to(w.dtype), w, acc, input_precision="ieee")
    return acc


@triton.jit
def begin(
    ptr, env, n, size: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, MIXED: tl.constexpr
):  # fmt: skip
    """Return what a tile's sums begin with: a vector for each row if `MIXED`, else one for all."""
    if MIXED:
        sums = tl.load(ptr + env[:, None] * size + n[None, :]).to(tl.float32)
    else:
        vector = tl.load(ptr + env * size + n).to(tl.float32)
        sums = tl.zeros([BM, BN], tl.float32) + vector[None, :]
    return sums


@triton.jit
def environment(m, first, plans, MIXED: tl.constexpr):
    """Return the environment of each row, or if a tile has rows of one only, that one."""
    return m // plans if MIXED else first // plans


@triton.jit
def actions_of(ptr, m, stride, like, a: tl.constexpr, AP: tl.constexpr):
    j = tl.arange(0, AP)
    x = tl.load(ptr + m[:, None] * stride + j[None, :], mask=(j < a)[None, :], other=0.0)
    return x.to(like)


@triton.jit
def add_action(acc, action, w_ptr, n, size: tl.constexpr, a: tl.constexpr, AP: tl.constexpr):
    """Add the action's part of a first layer; its weight is [a, size]."""
    j = tl.arange(0, AP)
    at = w_ptr + j[:, None] * size + n[None, :]
    w = tl.load(at, mask=(j < a)[:, None], other=0.0)
    return tl.dot(action, w, acc, input_precision="ieee")


@triton.jit
def noise_of(
    noise_ptr, mask_ptr, m, j, plans, noise_env, a: tl.constexpr, MASKED: tl.constexpr,
    AP: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Return the noise of rows' actions, and which entries of these are valid."""
    few = (j < a)[None, :]
    env = m // plans
    place = env * noise_env + (m % plans) * a
    noise = tl.load(noise_ptr + place[:, None] + j[None, :], mask=few, other=0.0).to(tl.float32)
    mask = tl.full([BM, AP], 1.0, tl.float32)
    if MASKED:
        mask = tl.load(mask_ptr + env[:, None] * a + j[None, :], mask=few, other=0.0)
        mask = mask.to(tl.float32)
    return noise, mask


@triton.jit
def put_action(
    out_ptr, mean, raw, noise, mask, bias_ptr, m, j, rows, stride, low: tl.constexpr,
    high: tl.constexpr, a: tl.constexpr,
):  # fmt: skip
    """Store the actions that the policy's outputs make of noise."""
    mean += tl.load(bias_ptr + j, mask=j < a, other=0.0).to(tl.float32)[None, :]
    raw += tl.load(bias_ptr + a + j, mask=j < a, other=0.0).to(tl.float32)[None, :]
    std = tl.exp((low + 0.5 * (high - low) * (tanh(raw) + 1.0)) * mask)
    action = tanh(mean * mask + noise * mask * std)
    there = (j < a)[None, :] & (m < rows)[:, None]
    tl.store(out_ptr + m[:, None] * stride + j[None, :], action, mask=there)


@triton.jit
def gain_of(logits, centre_ptr, BM: tl.constexpr, HB: tl.constexpr):
    """Return what logits of 2 HB bins, opposite ones half of the columns apart, stand for."""
    e = tl.exp2((logits - tl.max(logits, 1)[:, None]) * LOG2E)
    # opposite bins side by side, subtracted first: exactly 0 for uniform logits
    up, down = tl.split(tl.permute(tl.reshape(e, [BM, 2, HB]), (0, 2, 1)))
    centre = tl.load(centre_ptr + tl.arange(0, HB))
    mean = tl.sum((up - down) * centre[None, :], 1) / tl.sum(e, 1)
    return symexp(mean)


@triton.jit
def first_layer(
    action, env, start_ptr, wa_ptr, n, like, size: tl.constexpr, a: tl.constexpr, AP: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, MIXED: tl.constexpr,
):  # fmt: skip
    """Return columns n of the first layer at the environment's latent, which is in the start."""
    y = begin(start_ptr, env, n, size, BM, BN, MIXED)
    if a > 0:
        y = add_action(y, action, wa_ptr, n, size, a, AP)
    return y.to(like).to(tl.float32)


@triton.jit
def first_moments(
    action, env, start_ptr, wa_ptr, like, size: tl.constexpr, a: tl.constexpr, AP: tl.constexpr,
    BM: tl.constexpr, BK: tl.constexpr, MIXED: tl.constexpr,
):  # fmt: skip
    """Return factor and summand that normalize the first layer at the environment's latent."""
    kk = tl.arange(0, BK)
    mean = tl.zeros([BM], tl.float32)
    spread = tl.zeros([BM], tl.float32)
    for k in range(0, size, BK):
        y = first_layer(
            action, env, start_ptr, wa_ptr, k + kk, like, size, a, AP, BM, BK, MIXED
        )  # fmt: skip
        more = tl.sum(y, 1) / BK
        off = y - more[:, None]
        step = more - mean
        share = BK / (k + BK + 0.0)
        spread += tl.sum(off * off, 1) + step * step * (k * share)
        mean += step * share
    inv = tl.rsqrt(spread / size + EPS)
    return inv, -mean * inv


@triton.jit
def put(
    y_ptr, part_ptr, acc, m, n, rows, tile, size: tl.constexpr, BN: tl.constexpr
):  # fmt: skip
    """Store a tile before the norm, with mean and spread of its part of each row."""
    y = acc.to(y_ptr.dtype.element_ty)
    there = m < rows
    tl.store(y_ptr + m[:, None] * size + n[None, :], y, mask=there[:, None])
    y = y.to(tl.float32)
    mean = tl.sum(y, 1) / BN
    off = y - mean[:, None]
    at = part_ptr + m * (2 * (size // BN)) + tile
    tl.store(at, mean, mask=there)
    tl.store(at + size // BN, tl.sum(off * off, 1), mask=there)


@triton.jit(do_not_specialize_on_alignment=["action_ptr"])
def plan_layer_kernel(
    x_ptr, part_ptr, scale_ptr, shift_ptr, w_ptr, bias_ptr, action_ptr, wa_ptr, y_ptr, put_ptr,
    rows, plans, stride, k_size: tl.constexpr, n_size: tl.constexpr, a: tl.constexpr,
    G: tl.constexpr, parts: tl.constexpr, PARTS: tl.constexpr, FIRST: tl.constexpr,
    MIXED: tl.constexpr, AP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A layer of the dynamics or the policy; weights are [out, in].

    `FIRST` layers add the bias of the row's environment, and the action if a > 0.
    """
    pid, tile = tl.program_id(1), tl.program_id(0)
    m, n = pid * BM + tl.arange(0, BM), tile * BN + tl.arange(0, BN)
    there = tl.minimum(m, rows - 1)
    like = y_ptr.dtype.element_ty
    inv, off = moments(part_ptr, there, k_size, parts, PARTS)
    if FIRST:
        env = environment(there, pid * BM, plans, MIXED)
        acc = begin(bias_ptr, env, n, n_size, BM, BN, MIXED)
        if a > 0:
            action = actions_of(action_ptr, there, stride, like, a, AP)
            acc = add_action(acc, action, wa_ptr, n, n_size, a, AP)
    else:
        acc = begin(bias_ptr, 0, n, n_size, BM, BN, False)
    acc = add_product(
        acc, x_ptr, there, inv, off, scale_ptr, shift_ptr, w_ptr, n, k_size, 1, k_size, BM, BK, G
    )  # fmt: skip
    put(y_ptr, put_ptr, acc, m, n, rows, tile, n_size, BN)


@triton.jit(do_not_specialize_on_alignment=["action_ptr"])
def plan_begin_kernel(
    start_ptr, action_ptr, wa_ptr, scale_ptr, shift_ptr, w_ptr, bias_ptr, y_ptr, put_ptr,
    rows, plans, stride, size: tl.constexpr, a: tl.constexpr, MIXED: tl.constexpr,
    AP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The first two layers at the environment's latent, where the first is hardly any work."""
    pid, tile = tl.program_id(1), tl.program_id(0)
    m, n = pid * BM + tl.arange(0, BM), tile * BN + tl.arange(0, BN)
    there = tl.minimum(m, rows - 1)
    like = y_ptr.dtype.element_ty
    kk = tl.arange(0, BK)
    env = environment(there, pid * BM, plans, MIXED)
    action = actions_of(action_ptr, there, stride, like, a, AP)
    inv, off = first_moments(
        action, env, start_ptr, wa_ptr, like, size, a, AP, BM, BK, MIXED
    )  # fmt: skip
    acc = begin(bias_ptr, 0, n, size, BM, BN, False)
    for k in range(0, size, BK):
        w = tl.load(w_ptr + (k + kk)[:, None] + n[None, :] * size)
        y = first_layer(
            action, env, start_ptr, wa_ptr, k + kk, like, size, a, AP, BM, BK, MIXED
        )  # fmt: skip
        y = activated(y, inv, off, scale_ptr, shift_ptr, k + kk, BM, BK, 0)
        acc = tl.dot(y.to(like), w, acc, input_precision="ieee")
    put(y_ptr, put_ptr, acc, m, n, rows, tile, size, BN)


@triton.jit(do_not_specialize_on_alignment=["noise_ptr", "out_ptr"])
def plan_act_kernel(
    x_ptr, part_ptr, scale_ptr, shift_ptr, w_ptr, bias_ptr, noise_ptr, mask_ptr,
    out_ptr, rows, plans, noise_env, stride, low: tl.constexpr, high: tl.constexpr, w: tl.constexpr,
    a: tl.constexpr, parts: tl.constexpr, PARTS: tl.constexpr, MASKED: tl.constexpr,
    AP: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The policy's output layer [2 a, w], and the actions it makes of noise."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    there, j, kk = tl.minimum(m, rows - 1), tl.arange(0, AP), tl.arange(0, BK)
    few = (j < a)[None, :]
    noise, mask = noise_of(noise_ptr, mask_ptr, there, j, plans, noise_env, a, MASKED, AP, BM)
    inv, off = moments(part_ptr, there, w, parts, PARTS)
    mean = tl.zeros([BM, AP], tl.float32)
    raw = tl.zeros([BM, AP], tl.float32)
    for k in range(0, w, BK):
        x = tl.load(x_ptr + there[:, None] * w + (k + kk)[None, :])
        at = w_ptr + (k + kk)[:, None] + j[None, :] * w
        of_mean = tl.load(at, mask=few, other=0.0)
        of_raw = tl.load(at + a * w, mask=few, other=0.0)
        y = activated(x, inv, off, scale_ptr, shift_ptr, k + kk, BM, BK, 0).to(of_raw.dtype)
        mean = tl.dot(y, of_mean, mean, input_precision="ieee")
        raw = tl.dot(y, of_raw, raw, input_precision="ieee")
    put_action(out_ptr, mean, raw, noise, mask, bias_ptr, m, j, rows, stride, low, high, a)
