"""Triton kernels of `accel.rssm_scan`: one step of the gradient of DreamerV3's recurrence.

Letters as in `rssm_scan`. Weight gradients are not computed here: they wait for all steps.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dreamlab.accel.kernels.rssm_scan import ROWS, mult, sum_parts, tile


@triton.jit
def silu_slope(y):
    s = tl.sigmoid(y)
    return s * (1 + y * (1 - s))


@triton.jit
def unit_act_back(dx, p, inv, scale):
    """Return the gradient before the activation and the normalized number."""
    unit = p.to(tl.float32) * inv[:, None]
    return dx.to(tl.float32) * silu_slope(unit * scale[None, :]), unit


@triton.jit
def before_norm(dx, p_ptr, scale_ptr, inv, mean, m, cols, u: tl.constexpr, rows):
    """Return the gradient of a layer's output before norm and activation."""
    scale = tl.load(scale_ptr + cols)
    dy, unit = unit_act_back(dx, tile(p_ptr, m, u, cols, rows), inv, scale)
    return inv[:, None] * (dy * scale[None, :] - unit * mean[:, None])


@triton.jit
def sum_shares(dx_ptr, m, cols, u: tl.constexpr, rows, SPLIT: tl.constexpr):
    """Return columns of the inputs' gradient, from the shares that `hidden_back_kernel` left."""
    total = tile(dx_ptr, m, 2 * u, cols, rows)
    for share in tl.static_range(1, SPLIT):
        total += tile(dx_ptr + share * rows * 2 * u, m, 2 * u, cols, rows)
    return total


@triton.jit
def mean_product(
    dx_ptr, first: tl.constexpr, p_ptr, scale_ptr, inv, m, u: tl.constexpr, rows,
    SPLIT: tl.constexpr, BU: tl.constexpr,
):  # fmt: skip
    """Return the mean over a row of gradient times normalized number, for the norm's gradient."""
    ku = tl.arange(0, BU)
    total = tl.zeros([ROWS], tl.float32)
    for k in range(0, u, BU):
        scale = tl.load(scale_ptr + k + ku)
        dx = sum_shares(dx_ptr, m, first + k + ku, u, rows, SPLIT)
        dy, unit = unit_act_back(dx, tile(p_ptr, m, u, k + ku, rows), inv, scale)
        total += tl.sum(dy * scale[None, :] * unit, 1)
    return total / u


@triton.jit
def sample_back_kernel(
    gz_ptr, dz_ptr, gl_ptr, logit_ptr, w_ptr, o_ptr, inv_ptr, scale_ptr, dl_ptr, do_ptr, part_ptr,
    unimix: tl.constexpr, rows,
    u: tl.constexpr, S: tl.constexpr, C: tl.constexpr, VARS: tl.constexpr, CP: tl.constexpr,
    BN: tl.constexpr,
):  # fmt: skip
    """From sample and logits back to the posterior's hidden layer."""
    pid = tl.program_id(0)
    n = pid * BN + tl.arange(0, BN)
    m = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    like = dl_ptr.dtype.element_ty
    j = tl.arange(0, VARS * CP)
    inv = tl.load(inv_ptr + m, mask=m < rows, other=0.0)
    scale, o = tl.load(scale_ptr + n), tile(o_ptr, m, u, n, rows)
    acc = tl.zeros([ROWS, BN], tl.float32)
    for first in range(0, S, VARS):
        var, cls = first + j // CP, j % CP
        col, there = var * C + cls, (cls < C) & (var < S)
        mask, at = (m[:, None] < rows) & there[None, :], m[:, None] * (S * C) + col[None, :]
        ways = w_ptr + n[None, :] * (S * C) + col[:, None]
        weight = tl.load(ways, mask=there[:, None], other=0.0)
        x = tl.load(logit_ptr + at, mask=mask, other=0.0).to(tl.float32)
        dz = tl.load(gz_ptr + at, mask=mask, other=0.0).to(tl.float32)
        dz += tl.load(dz_ptr + at, mask=mask, other=0.0)
        gl = tl.load(gl_ptr + at, mask=mask, other=0.0).to(tl.float32)
        x = tl.reshape(tl.where(there[None, :], x, -1e30), [ROWS, VARS, CP])
        e = tl.exp(x - tl.max(x, 2)[:, :, None])
        p = e / tl.sum(e, 2)[:, :, None]
        dp = tl.reshape(dz * (1 - unimix), [ROWS, VARS, CP])
        dl = tl.reshape(p * (dp - tl.sum(p * dp, 2)[:, :, None]), [ROWS, VARS * CP])
        dl = (dl + gl).to(like)
        if pid == 0:
            tl.store(dl_ptr + at, dl, mask=mask)
        acc = mult(dl, weight, acc)
    acc = acc.to(like)
    tl.store(do_ptr + m[:, None] * u + n[None, :], acc, mask=m[:, None] < rows)
    dy, unit = unit_act_back(acc, o, inv, scale)
    total = tl.sum(dy * scale[None, :] * unit, 1)
    tl.store(part_ptr + m * (u // BN) + pid, total, mask=m < rows)


@triton.jit
def memory_back_kernel(
    do_ptr, do_part, o_ptr, inv_ptr, so_ptr, wd_ptr, dpo_ptr, dp0_ptr, keep_next_ptr, w0_ptr,
    gh_ptr, dh_ptr, gate_ptr, h_ptr, keep_ptr, dgate_ptr, direct_ptr, rows,
    d: tl.constexpr, w: tl.constexpr, u: tl.constexpr, PARTS: tl.constexpr, BN: tl.constexpr,
    BU: tl.constexpr,
):  # fmt: skip
    """Gather the memory's gradient from its four readers, then pass it through the gates."""
    pid = tl.program_id(0)
    n = pid * BN + tl.arange(0, BN)
    m = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    like = dgate_ptr.dtype.element_ty
    mask = m[:, None] < rows
    ku = tl.arange(0, BU)
    inv = tl.load(inv_ptr + m, mask=m < rows, other=0.0)
    mean = sum_parts(do_part, m, u // BN, rows, PARTS) / u
    keep_next = tl.load(keep_next_ptr + m, mask=m < rows, other=0.0).to(like)
    at = m[:, None] * d + n[None, :]
    dh = tl.load(gh_ptr + at, mask=mask, other=0.0).to(tl.float32)
    dh += tl.load(dh_ptr + at, mask=mask, other=0.0)
    gate_at = m[:, None] * (3 * d) + (pid * BN) // w * 2 * w + n[None, :]  # block 3 w + rest
    reset = tl.load(gate_ptr + gate_at, mask=mask, other=0.0).to(tl.float32)
    cand = tl.load(gate_ptr + gate_at + w, mask=mask, other=0.0).to(tl.float32)
    update = tl.load(gate_ptr + gate_at + 2 * w, mask=mask, other=0.0).to(tl.float32)
    keep = tl.load(keep_ptr + m, mask=m < rows, other=0.0).to(tl.float32)
    memory = tl.load(h_ptr + at, mask=mask, other=0.0).to(tl.float32) * keep[:, None]
    acc = tl.zeros([ROWS, BN], tl.float32)
    for k in range(0, u, BU):
        wd = tl.load(wd_ptr + n[None, :] * u + (k + ku)[:, None])
        w0 = tl.load(w0_ptr + n[None, :] * u + (k + ku)[:, None])
        do, dp0 = tile(do_ptr, m, u, k + ku, rows), tile(dp0_ptr, m, u, k + ku, rows)
        dpo = before_norm(do, o_ptr, so_ptr, inv, mean, m, k + ku, u, rows).to(like)
        acc = mult(dp0 * keep_next[:, None], w0, acc)
        if pid == 0:
            tl.store(dpo_ptr + m[:, None] * u + (k + ku)[None, :], dpo, mask=mask)
        acc = mult(dpo, wd, acc)
    dh += acc
    reset, update = tl.sigmoid(reset), tl.sigmoid(update - 1)
    new = 2 * tl.sigmoid(2 * reset * cand) - 1
    dmixed = dh * update * (1 - new * new)
    dreset = dmixed * cand * reset * (1 - reset)
    dupdate = dh * (new - memory) * update * (1 - update)
    tl.store(dgate_ptr + gate_at, dreset.to(like), mask=mask)
    tl.store(dgate_ptr + gate_at + w, (dmixed * reset).to(like), mask=mask)
    tl.store(dgate_ptr + gate_at + 2 * w, dupdate.to(like), mask=mask)
    tl.store(direct_ptr + at, dh * (1 - update), mask=mask)


@triton.jit
def gates_back_kernel(
    dgate_ptr, w_ptr, q_ptr, inv_ptr, scale_ptr, dy_ptr, part_ptr, rows, d: tl.constexpr,
    w: tl.constexpr, parts: tl.constexpr, BN: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """From the gates back to the hidden layer's activation, and a fraction of its row's product."""
    pid = tl.program_id(0)
    tiles = w // BN
    g, n = pid // tiles, (pid % tiles) * BN + tl.arange(0, BN)
    m = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    kw = tl.arange(0, BW)
    weight = w_ptr + g * w * 3 * w + n[None, :] * (3 * w)
    inv = tl.load(inv_ptr + m, mask=m < rows, other=0.0)
    scale, q = tl.load(scale_ptr + g * w + n), tile(q_ptr, m, d, g * w + n, rows)
    acc = tl.zeros([ROWS, BN], tl.float32)
    for k in range(0, 3 * w, BW):
        ways = tl.load(weight + (k + kw)[:, None])
        dgate = tile(dgate_ptr, m, 3 * d, g * 3 * w + k + kw, rows)
        acc = mult(dgate, ways, acc)
    dy, unit = unit_act_back(acc, q, inv, scale)
    at = m[:, None] * d + g * w + n[None, :]
    tl.store(dy_ptr + at, dy, mask=m[:, None] < rows)
    total = tl.sum(dy * scale[None, :] * unit, 1)
    tl.store(part_ptr + m * parts + pid, total, mask=m < rows)


@triton.jit
def before_hidden(dy_ptr, q_ptr, scale_ptr, inv, mean, m, cols, d: tl.constexpr, rows):
    """Return the gradient of the hidden layer's output before its norm."""
    dy = tile(dy_ptr, m, d, cols, rows).to(tl.float32)
    unit = tile(q_ptr, m, d, cols, rows).to(tl.float32) * inv[:, None]
    return inv[:, None] * (dy * tl.load(scale_ptr + cols)[None, :] - unit * mean[:, None])


@triton.jit
def hidden_back_kernel(
    dy_ptr, q_ptr, inv_ptr, scale_ptr, part_ptr, w_ptr, direct_ptr, keep_ptr, dq_ptr, dh_ptr,
    dx_ptr, rows, d: tl.constexpr, w: tl.constexpr, u: tl.constexpr, parts: tl.constexpr,
    PARTS: tl.constexpr, BLOCKS: tl.constexpr, SPLIT: tl.constexpr, BN: tl.constexpr,
    BW: tl.constexpr,
):  # fmt: skip
    """From the hidden layer back to the memory before, and to the two recurrent inputs.

    These are read by every block, so their gradient is a sum over blocks: in `SPLIT` shares.
    """
    pid = tl.program_id(0)
    m = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    like = dq_ptr.dtype.element_ty
    mask = m[:, None] < rows
    nn, kw = tl.arange(0, BN), tl.arange(0, BW)
    inv = tl.load(inv_ptr + m, mask=m < rows, other=0.0)
    mean = sum_parts(part_ptr, m, parts, rows, PARTS) / d
    acc = tl.zeros([ROWS, BN], tl.float32)
    size = (w + 3 * u) * w
    if pid < parts:
        tiles = w // BN
        g, n = pid // tiles, (pid % tiles) * BN + nn
        at = m[:, None] * d + g * w + n[None, :]
        keep = tl.load(keep_ptr + m, mask=m < rows, other=0.0).to(tl.float32)
        direct = tl.load(direct_ptr + at, mask=mask, other=0.0)
        for k in range(0, w, BW):
            cols = g * w + k + kw
            ways = tl.load(w_ptr + g * size + n[None, :] * w + (k + kw)[:, None])
            dq = before_hidden(dy_ptr, q_ptr, scale_ptr, inv, mean, m, cols, d, rows).to(like)
            if pid % tiles == 0:
                tl.store(dq_ptr + m[:, None] * d + cols[None, :], dq, mask=mask)
            acc = mult(dq, ways, acc)
        tl.store(dh_ptr + at, (acc + direct) * keep[:, None], mask=mask)
    else:
        share, n = (pid - parts) % SPLIT, (pid - parts) // SPLIT * BN + nn
        for i in range(0, BLOCKS // SPLIT):
            g = share * (BLOCKS // SPLIT) + i
            for k in range(0, w, BW):
                cols = g * w + k + kw
                weight = w_ptr + g * size + (w + n)[None, :] * w + (k + kw)[:, None]
                ways = tl.load(weight)
                dq = before_hidden(dy_ptr, q_ptr, scale_ptr, inv, mean, m, cols, d, rows).to(like)
                acc = mult(dq, ways, acc)
        at = (share * rows + m[:, None]) * (2 * u) + n[None, :]
        tl.store(dx_ptr + at, acc, mask=mask)


@triton.jit
def inputs_back_kernel(
    dx_ptr, p0_ptr, inv0_ptr, s0_ptr, p1_ptr, inv1_ptr, s1_ptr, w1_ptr, keep_ptr, dp0_ptr,
    dp1_ptr, dz_ptr, rows, z_dim: tl.constexpr, u: tl.constexpr, tiles: tl.constexpr,
    SPLIT: tl.constexpr, BN: tl.constexpr, BU: tl.constexpr,
):  # fmt: skip
    """From the input layers back to the random part; the memory's is left to the step before."""
    pid = tl.program_id(0)
    m = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    like = dp0_ptr.dtype.element_ty
    mask = m[:, None] < rows
    ku = tl.arange(0, BU)
    if pid < tiles:
        n = pid * BN + tl.arange(0, BN)
        inv = tl.load(inv1_ptr + m, mask=m < rows, other=0.0)
        mean = mean_product(dx_ptr, u, p1_ptr, s1_ptr, inv, m, u, rows, SPLIT, BU)
        acc = tl.zeros([ROWS, BN], tl.float32)
        for k in range(0, u, BU):
            cols = k + ku
            ways = tl.load(w1_ptr + n[None, :] * u + cols[:, None])
            dx = sum_shares(dx_ptr, m, u + cols, u, rows, SPLIT)
            dp = before_norm(dx, p1_ptr, s1_ptr, inv, mean, m, cols, u, rows).to(like)
            if pid == 0:
                tl.store(dp1_ptr + m[:, None] * u + cols[None, :], dp, mask=mask)
            acc = mult(dp, ways, acc)
        keep = tl.load(keep_ptr + m, mask=m < rows, other=0.0).to(tl.float32)
        tl.store(dz_ptr + m[:, None] * z_dim + n[None, :], acc * keep[:, None], mask=mask)
    else:
        inv = tl.load(inv0_ptr + m, mask=m < rows, other=0.0)
        mean = mean_product(dx_ptr, 0, p0_ptr, s0_ptr, inv, m, u, rows, SPLIT, BU)
        for k in range(0, u, BU):
            cols = k + ku
            dx = sum_shares(dx_ptr, m, cols, u, rows, SPLIT)
            dp = before_norm(dx, p0_ptr, s0_ptr, inv, mean, m, cols, u, rows)
            tl.store(dp0_ptr + m[:, None] * u + cols[None, :], dp.to(like), mask=mask)


@triton.jit
def layer_kernel(
    p_ptr, inv_ptr, scale_ptr, back_ptr, dp_ptr, x_ptr, part_ptr, num, n: tl.constexpr,
    back_row: tl.constexpr, back_share: tl.constexpr, SHARES: tl.constexpr, ACT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Of all steps at once: what a layer put out, and shares of the sums over its rows.

    These are the gradients of the norm's scale and, from `dp`, of the layer's bias. `back` is the
    gradient after the activation, or before it if not `ACT`.
    """
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    cols = tl.program_id(0) * BN + tl.arange(0, BN)
    mask, at = (m < num)[:, None], m[:, None] * n + cols[None, :]
    like = x_ptr.dtype.element_ty
    dp = tl.load(dp_ptr + at, mask=mask, other=0.0).to(tl.float32)
    inv = tl.load(inv_ptr + m, mask=m < num, other=0.0)
    unit = tl.load(p_ptr + at, mask=mask, other=0.0).to(tl.float32) * inv[:, None]
    y = unit * tl.load(scale_ptr + cols)[None, :]
    rounded = y.to(like).to(tl.float32)
    tl.store(x_ptr + at, (rounded * tl.sigmoid(rounded)).to(like), mask=mask)
    ways = back_ptr + m[:, None] * back_row + cols[None, :]
    dy = tl.load(ways, mask=mask, other=0.0).to(tl.float32)
    for share in tl.static_range(1, SHARES):
        dy += tl.load(ways + share * back_share, mask=mask, other=0.0).to(tl.float32)
    if ACT:
        dy *= silu_slope(y)
    part = part_ptr + tl.program_id(1) * 2 * n + cols
    tl.store(part, tl.sum(dy * unit, 0))
    tl.store(part + n, tl.sum(dp, 0))
