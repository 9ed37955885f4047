# pyright: basic, reportMissingImports=false
"""Triton kernels of `nn.scan`: one step of DreamerV3's recurrence and of its gradient, five each.

A batch of 16 rows is one tile, so a kernel's time is that of reading its weights once. Normalising
is done by whoever reads the numbers next, from sums of squares: no kernel waits for a whole row.
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
def silu_slope(y):
    s = tl.sigmoid(y)
    return s * (1 + y * (1 - s))


@triton.jit
def mult(a, b, acc):
    return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def tile(ptr, m, stride, cols, rows):
    """Load rows m and columns cols of a matrix."""
    return tl.load(ptr + m[:, None] * stride + cols[None, :], mask=m[:, None] < rows, other=0.0)


@triton.jit
def inverse_size(p_ptr, m, u: tl.constexpr, rows, BK: tl.constexpr):
    """Return 1 / sqrt(mean p^2 + eps) of rows."""
    kk = tl.arange(0, BK)
    total = tl.zeros([ROWS], tl.float32)
    for k in range(0, u, BK):
        p = tile(p_ptr, m, u, k + kk, rows).to(tl.float32)
        total += tl.sum(p * p, 1)
    return tl.rsqrt(total / u + EPS)


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
    x_ptr,
    w_ptr,
    m,
    n,
    k_total: tl.constexpr,
    w_stride: tl.constexpr,
    rows,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Return x [rows, k] times w [n, k] transposed."""
    kk = tl.arange(0, BK)
    acc = tl.zeros([ROWS, BN], tl.float32)
    for k in range(0, k_total, BK):
        x = tile(x_ptr, m, k_total, k + kk, rows)
        w = tl.load(w_ptr + n[None, :] * w_stride + (k + kk)[:, None])
        acc = mult(x, w, acc)
    return acc


# -- forward --------------------------------------------------------------------------------------


@triton.jit
def look_kernel(
    h_ptr, wd_ptr, bd_ptr, tok_ptr, o_ptr, w0_ptr, b0_ptr, keep_ptr, p0_ptr,
    rows, d: tl.constexpr, u: tl.constexpr, wd_stride: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """From the new memory: the posterior's first layer, and the next step's first input layer."""
    pid = tl.program_id(0)
    m = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    nn = tl.arange(0, BN)
    if pid * BN < u:
        n = pid * BN + nn
        acc = linear_rows(h_ptr, wd_ptr, m, n, d, wd_stride, rows, BN, BK)
        acc += tl.load(bd_ptr + n).to(tl.float32)[None, :]
        acc += tile(tok_ptr, m, u, n, rows).to(tl.float32)
        tl.store(o_ptr + m[:, None] * u + n[None, :], acc, mask=m[:, None] < rows)
    else:
        n = pid * BN - u + nn
        acc = linear_rows(h_ptr, w0_ptr, m, n, d, d, rows, BN, BK)
        keep = tl.load(keep_ptr + m, mask=m < rows, other=0.0).to(tl.float32)
        acc = acc * keep[:, None] + tl.load(b0_ptr + n).to(tl.float32)[None, :]
        tl.store(p0_ptr + m[:, None] * u + n[None, :], acc, mask=m[:, None] < rows)


@triton.jit
def stoch_kernel(
    z_ptr,
    w1_ptr,
    b1_ptr,
    keep_ptr,
    p1_ptr,
    rows,
    z_dim: tl.constexpr,
    u: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """The input layer of the random part."""
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    m = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    acc = linear_rows(z_ptr, w1_ptr, m, n, z_dim, z_dim, rows, BN, BK)
    keep = tl.load(keep_ptr + m, mask=m < rows, other=0.0).to(tl.float32)
    acc = acc * keep[:, None] + tl.load(b1_ptr + n).to(tl.float32)[None, :]
    tl.store(p1_ptr + m[:, None] * u + n[None, :], acc, mask=m[:, None] < rows)


@triton.jit
def hidden_kernel(
    h_ptr, keep_ptr, p0_ptr, s0_ptr, p1_ptr, s1_ptr, x2_ptr, w_ptr, b_ptr, q_ptr, part_ptr,
    rows, d: tl.constexpr, w: tl.constexpr, u: tl.constexpr, parts: tl.constexpr, BN: tl.constexpr, BW: tl.constexpr, BU: tl.constexpr,
):  # fmt: skip
    """The hidden layer by blocks, and its share of the sum of squares."""
    pid = tl.program_id(0)
    tiles = w // BN
    g, n = pid // tiles, (pid % tiles) * BN + tl.arange(0, BN)
    m = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    like = q_ptr.dtype.element_ty
    keep = tl.load(keep_ptr + m, mask=m < rows, other=0.0)
    inv0 = inverse_size(p0_ptr, m, u, rows, BU)
    inv1 = inverse_size(p1_ptr, m, u, rows, BU)
    kw, ku = tl.arange(0, BW), tl.arange(0, BU)
    weight = w_ptr + g * (w + 3 * u) * w + n[None, :]
    acc = tl.zeros([ROWS, BN], tl.float32)
    for k in range(0, w, BW):
        x = tile(h_ptr, m, d, g * w + k + kw, rows) * keep.to(like)[:, None]
        acc = mult(x, tl.load(weight + (k + kw)[:, None] * w), acc)
    for k in range(0, u, BU):
        x = unit_act(tile(p0_ptr, m, u, k + ku, rows), inv0, tl.load(s0_ptr + k + ku), like)
        acc = mult(x, tl.load(weight + (w + k + ku)[:, None] * w), acc)
        x = unit_act(tile(p1_ptr, m, u, k + ku, rows), inv1, tl.load(s1_ptr + k + ku), like)
        acc = mult(x, tl.load(weight + (w + u + k + ku)[:, None] * w), acc)
        x = tile(x2_ptr, m, u, k + ku, rows)
        acc = mult(x, tl.load(weight + (w + 2 * u + k + ku)[:, None] * w), acc)
    q = (acc + tl.load(b_ptr + g * w + n).to(tl.float32)[None, :]).to(like)
    tl.store(q_ptr + m[:, None] * d + g * w + n[None, :], q, mask=m[:, None] < rows)
    q = q.to(tl.float32)
    tl.store(part_ptr + m * parts + pid, tl.sum(q * q, 1), mask=m < rows)


@triton.jit
def gates_kernel(
    h_ptr, keep_ptr, q_ptr, part_ptr, scale_ptr, w_ptr, b_ptr, gate_ptr, inv_ptr, out_ptr,
    rows, d: tl.constexpr, w: tl.constexpr, parts: tl.constexpr, PARTS: tl.constexpr, BN: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """The gates by blocks, and the memory after this step."""
    pid = tl.program_id(0)
    tiles = w // BN
    g, n = pid // tiles, (pid % tiles) * BN + tl.arange(0, BN)
    m = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    like = q_ptr.dtype.element_ty
    inv = tl.rsqrt(sum_parts(part_ptr, m, parts, rows, PARTS) / d + EPS)
    if pid == 0:
        tl.store(inv_ptr + m, inv, mask=m < rows)
    kw = tl.arange(0, BW)
    weight = w_ptr + g * w * 3 * w + n[None, :]
    reset = tl.zeros([ROWS, BN], tl.float32)
    cand = tl.zeros([ROWS, BN], tl.float32)
    update = tl.zeros([ROWS, BN], tl.float32)
    for k in range(0, w, BW):
        cols = g * w + k + kw
        y = unit_act(tile(q_ptr, m, d, cols, rows), inv, tl.load(scale_ptr + cols), like)
        rows_of = weight + (k + kw)[:, None] * (3 * w)
        reset = mult(y, tl.load(rows_of), reset)
        cand = mult(y, tl.load(rows_of + w), cand)
        update = mult(y, tl.load(rows_of + 2 * w), update)
    bias, mask = b_ptr + g * 3 * w + n, m[:, None] < rows
    reset = (reset + tl.load(bias).to(tl.float32)[None, :]).to(like)
    cand = (cand + tl.load(bias + w).to(tl.float32)[None, :]).to(like)
    update = (update + tl.load(bias + 2 * w).to(tl.float32)[None, :]).to(like)
    gate = gate_ptr + m[:, None] * (3 * d) + g * 3 * w + n[None, :]
    tl.store(gate, reset, mask=mask)
    tl.store(gate + w, cand, mask=mask)
    tl.store(gate + 2 * w, update, mask=mask)
    keep = tl.load(keep_ptr + m, mask=m < rows, other=0.0).to(tl.float32)
    memory = tile(h_ptr, m, d, g * w + n, rows).to(tl.float32) * keep[:, None]
    mixed = tl.sigmoid(reset.to(tl.float32)) * cand.to(tl.float32)
    new = 2 * tl.sigmoid(2 * mixed) - 1
    open_ = tl.sigmoid(update.to(tl.float32) - 1)
    new = open_ * new + (1 - open_) * memory
    tl.store(out_ptr + m[:, None] * d + g * w + n[None, :], new, mask=mask)


@triton.jit
def sample_kernel(
    o_ptr, scale_ptr, w_ptr, b_ptr, noise_ptr, logit_ptr, z_ptr, unimix: tl.constexpr, rows, u: tl.constexpr,
    S: tl.constexpr, C: tl.constexpr, VARS: tl.constexpr, CP: tl.constexpr, BU: tl.constexpr,
):  # fmt: skip
    """The posterior's logits of a few choices, and a sample of each."""
    j = tl.arange(0, VARS * CP)
    var, cls = tl.program_id(0) * VARS + j // CP, j % CP
    n, there = var * C + cls, (cls < C) & (var < S)
    m = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    like = o_ptr.dtype.element_ty
    inv = inverse_size(o_ptr, m, u, rows, BU)
    ku = tl.arange(0, BU)
    acc = tl.zeros([ROWS, VARS * CP], tl.float32)
    for k in range(0, u, BU):
        x = unit_act(tile(o_ptr, m, u, k + ku, rows), inv, tl.load(scale_ptr + k + ku), like)
        weight = tl.load(w_ptr + n[None, :] * u + (k + ku)[:, None], mask=there[None, :], other=0.0)
        acc = mult(x, weight, acc)
    bias = tl.load(b_ptr + n, mask=there, other=0.0).to(tl.float32)
    logit = (acc + bias[None, :]).to(like)
    mask, at = (m[:, None] < rows) & there[None, :], m[:, None] * (S * C) + n[None, :]
    tl.store(logit_ptr + at, logit, mask=mask)
    noise = tl.load(noise_ptr + at, mask=mask, other=0.0)
    x = tl.where(there[None, :], logit.to(tl.float32), float("-inf"))
    x = tl.reshape(x, [ROWS, VARS, CP])
    x = tl.where(x == float("-inf"), -1e30, x)
    e = tl.exp(x - tl.max(x, 2)[:, :, None])
    probs = (1 - unimix) * (e / tl.sum(e, 2)[:, :, None]) + unimix / C
    score = tl.log(probs) + tl.reshape(noise.to(tl.float32), [ROWS, VARS, CP])
    score = tl.where(tl.reshape(tl.broadcast_to(there[None, :], [ROWS, VARS * CP]),
                                [ROWS, VARS, CP]), score, -1e30)  # fmt: skip
    best = tl.argmax(score, 2)
    hot = tl.arange(0, CP)[None, None, :] == best[:, :, None]
    tl.store(z_ptr + at, tl.reshape(hot, [ROWS, VARS * CP]).to(like), mask=mask)


# -- backward -------------------------------------------------------------------------------------


@triton.jit
def unit_act_back(dx, p, inv, scale):
    """Return the gradient before the activation and the normalised number."""
    unit = p.to(tl.float32) * inv[:, None]
    return dx.to(tl.float32) * silu_slope(unit * scale[None, :]), unit


@triton.jit
def mean_product(
    dx_ptr,
    dx_stride: tl.constexpr,
    p_ptr,
    scale_ptr,
    inv,
    m,
    u: tl.constexpr,
    rows,
    BU: tl.constexpr,
):
    """Return the mean over a row of gradient times normalised number, for the norm's gradient."""
    ku = tl.arange(0, BU)
    total = tl.zeros([ROWS], tl.float32)
    for k in range(0, u, BU):
        scale = tl.load(scale_ptr + k + ku)
        dx = tile(dx_ptr, m, dx_stride, k + ku, rows)
        dy, unit = unit_act_back(dx, tile(p_ptr, m, u, k + ku, rows), inv, scale)
        total += tl.sum(dy * scale[None, :] * unit, 1)
    return total / u


@triton.jit
def before_norm(
    dx_ptr, dx_stride: tl.constexpr, p_ptr, scale_ptr, inv, mean, m, cols, u: tl.constexpr, rows
):
    """Return the gradient of a layer's output before norm and activation."""
    scale = tl.load(scale_ptr + cols)
    dx = tile(dx_ptr, m, dx_stride, cols, rows)
    dy, unit = unit_act_back(dx, tile(p_ptr, m, u, cols, rows), inv, scale)
    return inv[:, None] * (dy * scale[None, :] - unit * mean[:, None])


@triton.jit
def sample_back_kernel(
    gz_ptr, dz_ptr, gl_ptr, logit_ptr, w_ptr, dl_ptr, do_ptr, unimix: tl.constexpr, rows, u: tl.constexpr,
    S: tl.constexpr, C: tl.constexpr, VARS: tl.constexpr, CP: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """From sample and logits back to the posterior's hidden layer."""
    pid = tl.program_id(0)
    n = pid * BN + tl.arange(0, BN)
    m = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    like = dl_ptr.dtype.element_ty
    j = tl.arange(0, VARS * CP)
    acc = tl.zeros([ROWS, BN], tl.float32)
    for first in range(0, S, VARS):
        var, cls = first + j // CP, j % CP
        col, there = var * C + cls, (cls < C) & (var < S)
        mask, at = (m[:, None] < rows) & there[None, :], m[:, None] * (S * C) + col[None, :]
        x = tl.load(logit_ptr + at, mask=mask, other=0.0).to(tl.float32)
        x = tl.reshape(tl.where(there[None, :], x, -1e30), [ROWS, VARS, CP])
        e = tl.exp(x - tl.max(x, 2)[:, :, None])
        p = e / tl.sum(e, 2)[:, :, None]
        dz = tl.load(gz_ptr + at, mask=mask, other=0.0).to(tl.float32)
        dz += tl.load(dz_ptr + at, mask=mask, other=0.0)
        dp = tl.reshape(dz * (1 - unimix), [ROWS, VARS, CP])
        dl = tl.reshape(p * (dp - tl.sum(p * dp, 2)[:, :, None]), [ROWS, VARS * CP])
        dl = (dl + tl.load(gl_ptr + at, mask=mask, other=0.0).to(tl.float32)).to(like)
        if pid == 0:
            tl.store(dl_ptr + at, dl, mask=mask)
        weight = tl.load(w_ptr + col[:, None] * u + n[None, :], mask=there[:, None], other=0.0)
        acc = mult(dl, weight, acc)
    tl.store(do_ptr + m[:, None] * u + n[None, :], acc, mask=m[:, None] < rows)


@triton.jit
def memory_back_kernel(
    do_ptr, o_ptr, so_ptr, wd_ptr, dpo_ptr, dp0_ptr, keep_next_ptr, w0_ptr, gh_ptr, dh_ptr,
    gate_ptr, h_ptr, keep_ptr, dgate_ptr, direct_ptr,
    rows, d: tl.constexpr, w: tl.constexpr, u: tl.constexpr, wd_stride: tl.constexpr, BN: tl.constexpr, BU: tl.constexpr,
):  # fmt: skip
    """Gather the memory's gradient from its four readers, then pass it through the gates."""
    pid = tl.program_id(0)
    n = pid * BN + tl.arange(0, BN)
    m = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    like = dgate_ptr.dtype.element_ty
    mask = m[:, None] < rows
    ku = tl.arange(0, BU)
    inv = inverse_size(o_ptr, m, u, rows, BU)
    mean = mean_product(do_ptr, u, o_ptr, so_ptr, inv, m, u, rows, BU)
    keep_next = tl.load(keep_next_ptr + m, mask=m < rows, other=0.0).to(like)
    acc = tl.zeros([ROWS, BN], tl.float32)
    for k in range(0, u, BU):
        dpo = before_norm(do_ptr, u, o_ptr, so_ptr, inv, mean, m, k + ku, u, rows).to(like)
        if pid == 0:
            tl.store(dpo_ptr + m[:, None] * u + (k + ku)[None, :], dpo, mask=mask)
        acc = mult(dpo, tl.load(wd_ptr + (k + ku)[:, None] * wd_stride + n[None, :]), acc)
        dp0 = tile(dp0_ptr, m, u, k + ku, rows) * keep_next[:, None]
        acc = mult(dp0, tl.load(w0_ptr + (k + ku)[:, None] * d + n[None, :]), acc)
    at = m[:, None] * d + n[None, :]
    dh = acc + tl.load(gh_ptr + at, mask=mask, other=0.0).to(tl.float32)
    dh += tl.load(dh_ptr + at, mask=mask, other=0.0)
    g = (pid * BN) // w
    gate_at = m[:, None] * (3 * d) + g * 2 * w + n[None, :]  # g 3 w + (n - g w)
    reset = tl.sigmoid(tl.load(gate_ptr + gate_at, mask=mask, other=0.0).to(tl.float32))
    cand = tl.load(gate_ptr + gate_at + w, mask=mask, other=0.0).to(tl.float32)
    update = tl.load(gate_ptr + gate_at + 2 * w, mask=mask, other=0.0).to(tl.float32)
    update = tl.sigmoid(update - 1)
    keep = tl.load(keep_ptr + m, mask=m < rows, other=0.0).to(tl.float32)
    memory = tl.load(h_ptr + at, mask=mask, other=0.0).to(tl.float32) * keep[:, None]
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
    dgate_ptr, w_ptr, q_ptr, inv_ptr, scale_ptr, dy_ptr, part_ptr,
    rows, d: tl.constexpr, w: tl.constexpr, parts: tl.constexpr, BN: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """From the gates back to the hidden layer's activation, and a share of its row's product."""
    pid = tl.program_id(0)
    tiles = w // BN
    g, n = pid // tiles, (pid % tiles) * BN + tl.arange(0, BN)
    m = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    kw = tl.arange(0, BW)
    weight = w_ptr + g * w * 3 * w + n[None, :] * (3 * w)
    acc = tl.zeros([ROWS, BN], tl.float32)
    for k in range(0, 3 * w, BW):
        dgate = tile(dgate_ptr, m, 3 * d, g * 3 * w + k + kw, rows)
        acc = mult(dgate, tl.load(weight + (k + kw)[:, None]), acc)
    inv = tl.load(inv_ptr + m, mask=m < rows, other=0.0)
    scale = tl.load(scale_ptr + g * w + n)
    dy, unit = unit_act_back(acc, tile(q_ptr, m, d, g * w + n, rows), inv, scale)
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
    PARTS: tl.constexpr, BLOCKS: tl.constexpr, BN: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """From the hidden layer back to the memory before, and to the two recurrent inputs."""
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
        for k in range(0, w, BW):
            cols = g * w + k + kw
            dq = before_hidden(dy_ptr, q_ptr, scale_ptr, inv, mean, m, cols, d, rows).to(like)
            if pid % tiles == 0:
                tl.store(dq_ptr + m[:, None] * d + cols[None, :], dq, mask=mask)
            acc = mult(dq, tl.load(w_ptr + g * size + n[None, :] * w + (k + kw)[:, None]), acc)
        at = m[:, None] * d + g * w + n[None, :]
        keep = tl.load(keep_ptr + m, mask=m < rows, other=0.0).to(tl.float32)
        dh = (acc + tl.load(direct_ptr + at, mask=mask, other=0.0)) * keep[:, None]
        tl.store(dh_ptr + at, dh, mask=mask)
    else:
        n = (pid - parts) * BN + nn
        for g in range(0, BLOCKS):
            for k in range(0, w, BW):
                cols = g * w + k + kw
                dq = before_hidden(dy_ptr, q_ptr, scale_ptr, inv, mean, m, cols, d, rows).to(like)
                weight = w_ptr + g * size + (w + n)[None, :] * w + (k + kw)[:, None]
                acc = mult(dq, tl.load(weight), acc)
        tl.store(dx_ptr + m[:, None] * (2 * u) + n[None, :], acc, mask=mask)


@triton.jit
def inputs_back_kernel(
    dx_ptr, p0_ptr, s0_ptr, p1_ptr, s1_ptr, w1_ptr, keep_ptr, dp0_ptr, dp1_ptr, dz_ptr,
    rows, z_dim: tl.constexpr, u: tl.constexpr, tiles: tl.constexpr, BN: tl.constexpr, BU: tl.constexpr,
):  # fmt: skip
    """From the input layers back to the random part; the memory's is left to the step before."""
    pid = tl.program_id(0)
    m = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    like = dp0_ptr.dtype.element_ty
    mask = m[:, None] < rows
    ku = tl.arange(0, BU)
    if pid < tiles:
        n = pid * BN + tl.arange(0, BN)
        inv = inverse_size(p1_ptr, m, u, rows, BU)
        mean = mean_product(dx_ptr + u, 2 * u, p1_ptr, s1_ptr, inv, m, u, rows, BU)
        acc = tl.zeros([ROWS, BN], tl.float32)
        for k in range(0, u, BU):
            cols = k + ku
            dp = before_norm(dx_ptr + u, 2 * u, p1_ptr, s1_ptr, inv, mean, m, cols, u, rows)
            dp = dp.to(like)
            if pid == 0:
                tl.store(dp1_ptr + m[:, None] * u + cols[None, :], dp, mask=mask)
            acc = mult(dp, tl.load(w1_ptr + cols[:, None] * z_dim + n[None, :]), acc)
        keep = tl.load(keep_ptr + m, mask=m < rows, other=0.0).to(tl.float32)
        tl.store(dz_ptr + m[:, None] * z_dim + n[None, :], acc * keep[:, None], mask=mask)
    else:
        inv = inverse_size(p0_ptr, m, u, rows, BU)
        mean = mean_product(dx_ptr, 2 * u, p0_ptr, s0_ptr, inv, m, u, rows, BU)
        for k in range(0, u, BU):
            cols = k + ku
            dp = before_norm(dx_ptr, 2 * u, p0_ptr, s0_ptr, inv, mean, m, cols, u, rows)
            tl.store(dp0_ptr + m[:, None] * u + cols[None, :], dp.to(like), mask=mask)
