"""Triton kernels of `accel.rssm_scan`: one step of DreamerV3's recurrence. Its gradient is beside.

A batch of 16 rows is one tile, so a kernel's time is that of reading its weights once, and of
waiting for what it reads: loads stand before what uses them, and weights come with the numbers of
a sum side by side. Normalizing is done by whoever reads the numbers next, from sums of squares: no
kernel waits for a whole row.
Letters: b rows, d memory, g blocks of w = d / g, u hidden units, s choices of c classes, z = s c.
"""

from __future__ import annotations

import triton
import triton.language as tl

ROWS = tl.constexpr(16)
EPS = tl.constexpr(1e-4)


@triton.jit
def silu(y):
    return y * tl.sigmoid(y)


@triton.jit
def mult(a, b, acc):
    return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def tile(ptr, m, stride, cols, rows):
    """Load rows m and columns cols of a matrix."""
    return tl.load(ptr + m[:, None] * stride + cols[None, :], mask=m[:, None] < rows, other=0.0)


@triton.jit
def sum_parts(part_ptr, m, parts: tl.constexpr, rows, PARTS: tl.constexpr):
    """Return the sum of a row's partial sums."""
    i = tl.arange(0, PARTS)
    mask = (m[:, None] < rows) & (i[None, :] < parts)
    return tl.sum(tl.load(part_ptr + m[:, None] * parts + i[None, :], mask=mask, other=0.0), 1)


@triton.jit
def unit_act(p, inv, scale, like):
    """Return silu(rms(p) * scale), rounded where the layers of `nn.norm` round."""
    y = (p.to(tl.float32) * inv[:, None] * scale[None, :]).to(like)
    return silu(y.to(tl.float32)).to(like)


@triton.jit
def linear_rows(
    x_ptr, w_ptr, m, n, k_total: tl.constexpr, w_stride: tl.constexpr, rows, BN: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    """Return x [rows, k] times w [n, k] transposed."""
    kk = tl.arange(0, BK)
    acc = tl.zeros([ROWS, BN], tl.float32)
    for k in range(0, k_total, BK):
        w = tl.load(w_ptr + n[None, :] * w_stride + (k + kk)[:, None])
        x = tile(x_ptr, m, k_total, k + kk, rows)
        acc = mult(x, w, acc)
    return acc


@triton.jit
def store_part(part_ptr, pid, x, m, parts: tl.constexpr, rows):
    """Store this tile's share of each row's sum of squares."""
    x = x.to(tl.float32)
    tl.store(part_ptr + m * parts + pid, tl.sum(x * x, 1), mask=m < rows)


@triton.jit
def inverse_of(part_ptr, m, size: tl.constexpr, parts: tl.constexpr, rows, PARTS: tl.constexpr):
    """Return 1 / sqrt(mean x^2 + eps) of rows, from shares of their sums of squares."""
    return tl.rsqrt(sum_parts(part_ptr, m, parts, rows, PARTS) / size + EPS)


@triton.jit
def turn_kernel(x_ptr, out_ptr, rows, cols, stride, first, BLOCK: tl.constexpr):
    """Transpose matrices [rows, cols], `first` apart, whose rows are `stride` apart."""
    n = tl.program_id(2).to(tl.int64)
    r = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = n * first + r[:, None] * stride + c[None, :]
    x = tl.load(x_ptr + at, mask=(r < rows)[:, None] & (c < cols)[None, :], other=0.0)
    to = n * rows * cols + c[:, None] * rows + r[None, :]
    tl.store(out_ptr + to, tl.trans(x), mask=(c < cols)[:, None] & (r < rows)[None, :])


@triton.jit
def look_kernel(
    h_ptr, wd_ptr, bd_ptr, tok_ptr, o_ptr, o_part, w0_ptr, b0_ptr, keep_ptr, p0_ptr, p0_part, rows,
    d: tl.constexpr, u: tl.constexpr, wd_stride: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """From the new memory: the posterior's first layer, and the next step's first input layer."""
    pid = tl.program_id(0)
    m = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    nn = tl.arange(0, BN)
    like = o_ptr.dtype.element_ty
    if pid * BN < u:
        n = pid * BN + nn
        acc = linear_rows(h_ptr, wd_ptr, m, n, d, wd_stride, rows, BN, BK)
        acc += tl.load(bd_ptr + n).to(tl.float32)[None, :]
        acc = (acc + tile(tok_ptr, m, u, n, rows).to(tl.float32)).to(like)
        tl.store(o_ptr + m[:, None] * u + n[None, :], acc, mask=m[:, None] < rows)
        store_part(o_part, pid, acc, m, u // BN, rows)
    else:
        pid = pid - u // BN
        n = pid * BN + nn
        acc = linear_rows(h_ptr, w0_ptr, m, n, d, d, rows, BN, BK)
        keep = tl.load(keep_ptr + m, mask=m < rows, other=0.0).to(tl.float32)
        acc = acc * keep[:, None] + tl.load(b0_ptr + n).to(tl.float32)[None, :]
        acc = acc.to(like)
        tl.store(p0_ptr + m[:, None] * u + n[None, :], acc, mask=m[:, None] < rows)
        store_part(p0_part, pid, acc, m, u // BN, rows)


@triton.jit
def stoch_kernel(
    z_ptr, w1_ptr, b1_ptr, keep_ptr, p1_ptr, p1_part, rows, z_dim: tl.constexpr, u: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The input layer of the random part."""
    pid = tl.program_id(0)
    n = pid * BN + tl.arange(0, BN)
    m = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    acc = linear_rows(z_ptr, w1_ptr, m, n, z_dim, z_dim, rows, BN, BK)
    keep = tl.load(keep_ptr + m, mask=m < rows, other=0.0).to(tl.float32)
    acc = acc * keep[:, None] + tl.load(b1_ptr + n).to(tl.float32)[None, :]
    acc = acc.to(p1_ptr.dtype.element_ty)
    tl.store(p1_ptr + m[:, None] * u + n[None, :], acc, mask=m[:, None] < rows)
    store_part(p1_part, pid, acc, m, u // BN, rows)


@triton.jit
def hidden_kernel(
    h_ptr, keep_ptr, p0_ptr, p0_part, inv0_ptr, s0_ptr, p1_ptr, p1_part, inv1_ptr, s1_ptr, x2_ptr,
    w_ptr, b_ptr, q_ptr, part_ptr, rows,
    d: tl.constexpr, w: tl.constexpr, u: tl.constexpr, parts: tl.constexpr,
    PARTS: tl.constexpr, BN: tl.constexpr, BW: tl.constexpr, BU: tl.constexpr,
):  # fmt: skip
    """The hidden layer by blocks, and its share of the sum of squares."""
    pid = tl.program_id(0)
    tiles = w // BN
    g, n = pid // tiles, (pid % tiles) * BN + tl.arange(0, BN)
    m = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    like = q_ptr.dtype.element_ty
    keep = tl.load(keep_ptr + m, mask=m < rows, other=0.0)
    inv0 = inverse_of(p0_part, m, u, u // BN, rows, PARTS)
    inv1 = inverse_of(p1_part, m, u, u // BN, rows, PARTS)
    if pid == 0:
        tl.store(inv0_ptr + m, inv0, mask=m < rows)
        tl.store(inv1_ptr + m, inv1, mask=m < rows)
    kw, ku = tl.arange(0, BW), tl.arange(0, BU)
    weight = w_ptr + (g * w + n[None, :]) * (w + 3 * u)
    acc = tl.zeros([ROWS, BN], tl.float32)
    if w != u:
        for k in range(0, w, BW):
            wh = tl.load(weight + (k + kw)[:, None])
            x = tile(h_ptr, m, d, g * w + k + kw, rows) * keep.to(like)[:, None]
            acc = mult(x, wh, acc)
    for k in range(0, u, BU):
        ways = weight + (w + k + ku)[:, None]
        w0, w1, w2 = tl.load(ways), tl.load(ways + u), tl.load(ways + 2 * u)
        x0, x1 = tile(p0_ptr, m, u, k + ku, rows), tile(p1_ptr, m, u, k + ku, rows)
        x2 = tile(x2_ptr, m, u, k + ku, rows)
        s0, s1 = tl.load(s0_ptr + k + ku), tl.load(s1_ptr + k + ku)
        if w == u:
            wh = tl.load(weight + (k + ku)[:, None])
            x = tile(h_ptr, m, d, g * w + k + ku, rows) * keep.to(like)[:, None]
            acc = mult(x, wh, acc)
        acc = mult(x2, w2, acc)
        acc = mult(unit_act(x0, inv0, s0, like), w0, acc)
        acc = mult(unit_act(x1, inv1, s1, like), w1, acc)
    q = (acc + tl.load(b_ptr + g * w + n).to(tl.float32)[None, :]).to(like)
    tl.store(q_ptr + m[:, None] * d + g * w + n[None, :], q, mask=m[:, None] < rows)
    store_part(part_ptr, pid, q, m, parts, rows)


@triton.jit
def gates_kernel(
    h_ptr, keep_ptr, q_ptr, part_ptr, scale_ptr, w_ptr, b_ptr, gate_ptr, inv_ptr, out_ptr, rows,
    d: tl.constexpr, w: tl.constexpr, parts: tl.constexpr, PARTS: tl.constexpr, BN: tl.constexpr,
    BW: tl.constexpr,
):  # fmt: skip
    """The gates by blocks, and the memory after this step."""
    pid = tl.program_id(0)
    tiles = w // BN
    g, n = pid // tiles, (pid % tiles) * BN + tl.arange(0, BN)
    m = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    like = q_ptr.dtype.element_ty
    inv = inverse_of(part_ptr, m, d, parts, rows, PARTS)
    if pid == 0:
        tl.store(inv_ptr + m, inv, mask=m < rows)
    kw = tl.arange(0, BW)
    weight = w_ptr + (g * 3 * w + n[None, :]) * w
    mask = m[:, None] < rows
    keep = tl.load(keep_ptr + m, mask=m < rows, other=0.0).to(tl.float32)
    memory = tile(h_ptr, m, d, g * w + n, rows).to(tl.float32) * keep[:, None]
    reset = tl.zeros([ROWS, BN], tl.float32)
    cand = tl.zeros([ROWS, BN], tl.float32)
    update = tl.zeros([ROWS, BN], tl.float32)
    for k in range(0, w, BW):
        cols = g * w + k + kw
        ways = weight + (k + kw)[:, None]
        wr, wc, wu = tl.load(ways), tl.load(ways + w * w), tl.load(ways + 2 * w * w)
        y = unit_act(tile(q_ptr, m, d, cols, rows), inv, tl.load(scale_ptr + cols), like)
        reset, cand, update = mult(y, wr, reset), mult(y, wc, cand), mult(y, wu, update)
    bias = b_ptr + g * 3 * w + n
    reset = (reset + tl.load(bias).to(tl.float32)[None, :]).to(like)
    cand = (cand + tl.load(bias + w).to(tl.float32)[None, :]).to(like)
    update = (update + tl.load(bias + 2 * w).to(tl.float32)[None, :]).to(like)
    gate = gate_ptr + m[:, None] * (3 * d) + g * 3 * w + n[None, :]
    tl.store(gate, reset, mask=mask)
    tl.store(gate + w, cand, mask=mask)
    tl.store(gate + 2 * w, update, mask=mask)
    mixed = tl.sigmoid(reset.to(tl.float32)) * cand.to(tl.float32)
    new = 2 * tl.sigmoid(2 * mixed) - 1
    open_ = tl.sigmoid(update.to(tl.float32) - 1)
    new = open_ * new + (1 - open_) * memory
    tl.store(out_ptr + m[:, None] * d + g * w + n[None, :], new, mask=mask)


@triton.jit
def sample_kernel(
    o_ptr, o_part, inv_ptr, scale_ptr, w_ptr, b_ptr, noise_ptr, logit_ptr, z_ptr,
    unimix: tl.constexpr, rows, u: tl.constexpr, parts: tl.constexpr, PARTS: tl.constexpr,
    S: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, BU: tl.constexpr,
):  # fmt: skip
    """The posterior's logits of one choice, and a sample of it."""
    cls = tl.arange(0, CP)
    n, there = tl.program_id(0) * C + cls, (cls < C)[None, :]
    m = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    like = o_ptr.dtype.element_ty
    mask, at = (m[:, None] < rows) & there, m[:, None] * (S * C) + n[None, :]
    noise = tl.load(noise_ptr + at, mask=mask, other=0.0).to(tl.float32)
    bias = tl.load(b_ptr + n, mask=cls < C, other=0.0).to(tl.float32)
    inv = inverse_of(o_part, m, u, parts, rows, PARTS)
    if tl.program_id(0) == 0:
        tl.store(inv_ptr + m, inv, mask=m < rows)
    ku = tl.arange(0, BU)
    acc = tl.zeros([ROWS, CP], tl.float32)
    for k in range(0, u, BU):
        weight = tl.load(w_ptr + n[None, :] * u + (k + ku)[:, None], mask=there, other=0.0)
        x = unit_act(tile(o_ptr, m, u, k + ku, rows), inv, tl.load(scale_ptr + k + ku), like)
        acc = mult(x, weight, acc)
    logit = (acc + bias[None, :]).to(like)
    tl.store(logit_ptr + at, logit, mask=mask)
    x = tl.where(there, logit.to(tl.float32), -1e30)
    e = tl.exp(x - tl.max(x, 1)[:, None])
    probs = (1 - unimix) * (e / tl.sum(e, 1)[:, None]) + unimix / C
    score = tl.where(there, tl.log(probs) + noise, -1e30)
    hot = cls[None, :] == tl.argmax(score, 1)[:, None]
    tl.store(z_ptr + at, hot.to(like), mask=mask)
