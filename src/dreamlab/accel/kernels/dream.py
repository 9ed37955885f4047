"""Triton kernels of `accel.dream`: one step of DreamerV3's imagination, without gradients.

A thousand rows make whole matrix products, which are tiled over rows and columns; layers whose rows
do not depend on each other run one after the other in a single kernel, a few rows per tile. The
hidden layer is normalized by whoever reads it next, from shares of its sums of squares.
Letters: d memory, g blocks of w = d / g, u hidden units, v units of the actor, s choices of c
classes, z = s c, f = d + z. A state's row of f numbers is `stride` apart from the next.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dreamlab.accel.kernels.rssm_scan import inverse_of, mult, store_part, unit_act

EPS = tl.constexpr(1e-4)


@triton.jit
def rows_of(tile, BM: tl.constexpr, rows):
    """Return the rows of a tile, those that exist: past the end the last row stands in."""
    m = tile * BM + tl.arange(0, BM)
    return m, tl.minimum(m, rows - 1)


@triton.jit
def add_product(acc, a_ptr, a_row, w_ptr, n, w_stride, size: tl.constexpr, BK: tl.constexpr):
    """Add rows [m, k] times weights [n, k] transposed; `a_row` is where each row starts."""
    kk = tl.arange(0, BK)
    for k in range(0, size, BK):
        a = tl.load(a_ptr + a_row[:, None] + (k + kk)[None, :])
        w = tl.load(w_ptr + n[None, :] * w_stride + (k + kk)[:, None])
        acc = mult(a, w, acc)
    return acc


@triton.jit(do_not_specialize=["skip"])
def dream_memory_kernel(
    h_ptr, stride, wo_ptr, bo_ptr, o_ptr, wa_ptr, a_ptr, wp_ptr, bp_ptr, p_ptr, rows, skip,
    d: tl.constexpr, u: tl.constexpr, v: tl.constexpr, wa_stride: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """All layers that read the memory: the prior's first, the actor's first, the cell's input.

    `a` is only the memory's part of the actor's first layer, not rounded. The first `skip` tiles of
    columns are left out, as the last are if the grid ends before them.
    """
    pid = tl.program_id(0) + skip
    of_o: tl.constexpr = u // BN
    of_a: tl.constexpr = v // BN
    is_o, is_a = pid < of_o, (pid >= of_o) & (pid < of_o + of_a)
    at = pid - tl.where(is_o, 0, tl.where(is_a, of_o, of_o + of_a))
    n = at * BN + tl.arange(0, BN)
    m, there = rows_of(tl.program_id(1), BM, rows)
    w_ptr = tl.where(is_o, wo_ptr, tl.where(is_a, wa_ptr, wp_ptr))
    w_stride = tl.where(is_a, wa_stride, d)
    acc = tl.zeros([BM, BN], tl.float32)
    acc = add_product(acc, h_ptr, there * stride, w_ptr, n, w_stride, d, BK)
    if is_a:
        tl.store(a_ptr + m[:, None] * v + n[None, :], acc, mask=m[:, None] < rows)
    else:
        bias = tl.load(tl.where(is_o, bo_ptr, bp_ptr) + n).to(tl.float32)
        y = (acc + bias[None, :]).to(o_ptr.dtype.element_ty)
        out = tl.where(is_o, o_ptr, p_ptr)
        tl.store(out + m[:, None] * u + n[None, :], y, mask=m[:, None] < rows)


@triton.jit
def dream_stoch_kernel(
    z_ptr, stride, wa_ptr, ba_ptr, part_ptr, a_ptr, wp_ptr, bp_ptr, p_ptr, rows,
    z_dim: tl.constexpr, u: tl.constexpr, v: tl.constexpr, wa_stride: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """All layers that read the sample: the actor's first, which `part` began, and the cell's."""
    pid = tl.program_id(0)
    of_a: tl.constexpr = v // BN
    is_a = pid < of_a
    n = (pid - tl.where(is_a, 0, of_a)) * BN + tl.arange(0, BN)
    m, there = rows_of(tl.program_id(1), BM, rows)
    mask = m[:, None] < rows
    w_ptr, w_stride = tl.where(is_a, wa_ptr, wp_ptr), tl.where(is_a, wa_stride, z_dim)
    acc = tl.zeros([BM, BN], tl.float32)
    if is_a:
        acc += tl.load(part_ptr + m[:, None] * v + n[None, :], mask=mask, other=0.0)
    acc = add_product(acc, z_ptr, there * stride, w_ptr, n, w_stride, z_dim, BK)
    y = acc + tl.load(tl.where(is_a, ba_ptr, bp_ptr) + n).to(tl.float32)[None, :]
    out = tl.where(is_a, a_ptr, p_ptr) + m[:, None] * tl.where(is_a, v, u) + n[None, :]
    tl.store(out, y.to(a_ptr.dtype.element_ty), mask=mask)


@triton.jit
def normed_row(p_ptr, scale_ptr, m, rows, u: tl.constexpr, U: tl.constexpr):
    """Return whole rows of a layer's output [m, u], normalized and activated; 0 past `u`."""
    k = tl.arange(0, U)
    like = p_ptr.dtype.element_ty
    mask = (m[:, None] < rows) & (k[None, :] < u)
    p = tl.load(p_ptr + m[:, None] * u + k[None, :], mask=mask, other=0.0).to(tl.float32)
    inv = tl.rsqrt(tl.sum(p * p, 1) / u + EPS)
    return unit_act(p, inv, tl.load(scale_ptr + k, mask=k < u, other=0.0), like)


@triton.jit
def more_layers(
    x, w_ptr, b_ptr, scale_ptr, y_ptr, m, rows, u: tl.constexpr, U: tl.constexpr,
    LAYERS: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Apply hidden layers to whole rows x [m, U]; `y` [layers, rows, u] is room for each."""
    k = tl.arange(0, U)
    like = y_ptr.dtype.element_ty
    for i in tl.static_range(LAYERS):
        y = y_ptr + i * rows * u
        for first in range(0, u, BN):
            n = first + tl.arange(0, BN)
            at = w_ptr + i * u * u + n[None, :] * u + k[:, None]
            w = tl.load(at, mask=(k < u)[:, None], other=0.0)
            acc = mult(x, w, tl.zeros([x.shape[0], BN], tl.float32))
            acc += tl.load(b_ptr + i * u + n).to(tl.float32)[None, :]
            tl.store(y + m[:, None] * u + n[None, :], acc.to(like), mask=m[:, None] < rows)
        tl.debug_barrier()  # what one thread stored another reads
        x = normed_row(y, scale_ptr + i * u, m, rows, u, U)
    return x


@triton.jit
def output_of(x, w_ptr, b_ptr, v: tl.constexpr, V: tl.constexpr, num: tl.constexpr,
              NUM: tl.constexpr):  # fmt: skip
    """Return an output layer of whole rows x [m, V], rounded as that of `nn.Linear`; 0 past it."""
    k, n = tl.arange(0, V), tl.arange(0, NUM)
    mask = (k < v)[:, None] & (n < num)[None, :]
    w = tl.load(w_ptr + n[None, :] * v + k[:, None], mask=mask, other=0.0)
    y = mult(x, w, tl.zeros([x.shape[0], NUM], tl.float32))
    y += tl.load(b_ptr + n, mask=n < num, other=0.0).to(tl.float32)[None, :]
    return y.to(x.dtype).to(tl.float32)


@triton.jit
def sample_number(
    x, w_ptr, b_ptr, spread_ptr, spread_b_ptr, noise, low: tl.constexpr, high: tl.constexpr,
    v: tl.constexpr, V: tl.constexpr, num: tl.constexpr, NUM: tl.constexpr,
):  # fmt: skip
    """Return bounded Gaussian actions, as `LatentPolicy` samples them."""
    mean = 2 * tl.sigmoid(2 * output_of(x, w_ptr, b_ptr, v, V, num, NUM)) - 1
    spread = output_of(x, spread_ptr, spread_b_ptr, v, V, num, NUM)
    return mean + ((high - low) * tl.sigmoid(spread + 2) + low) * noise


@triton.jit
def sample_class(
    x, w_ptr, b_ptr, noise, unimix: tl.constexpr, v: tl.constexpr, V: tl.constexpr,
    num: tl.constexpr, NUM: tl.constexpr,
):  # fmt: skip
    """Return the index of the class that `Categorical` samples; `noise` is exponential."""
    there = (tl.arange(0, NUM) < num)[None, :]
    logit = tl.where(there, output_of(x, w_ptr, b_ptr, v, V, num, NUM), -1e30)
    if unimix > 0:
        e = tl.exp(logit - tl.max(logit, 1)[:, None])
        logit = tl.log((1 - unimix) * (e / tl.sum(e, 1)[:, None]) + unimix / num)
    return tl.argmax(tl.where(there, logit - tl.log(noise), -1e30), 1)


@triton.jit
def read_action(
    flat, w_ptr, b_ptr, scale_ptr, like, u: tl.constexpr, U: tl.constexpr, num: tl.constexpr,
    NUM: tl.constexpr,
):  # fmt: skip
    """Return the cell's input layer of flat actions [m, NUM], normalized and activated."""
    k, n = tl.arange(0, U), tl.arange(0, NUM)
    mask = (n < num)[:, None] & (k < u)[None, :]
    w = tl.load(w_ptr + k[None, :] * num + n[:, None], mask=mask, other=0.0)
    p = mult(flat.to(like), w, tl.zeros([flat.shape[0], U], tl.float32))
    p += tl.load(b_ptr + k, mask=k < u, other=0.0).to(tl.float32)[None, :]
    p = p.to(like).to(tl.float32)
    inv = tl.rsqrt(tl.sum(p * p, 1) / u + EPS)
    return unit_act(p, inv, tl.load(scale_ptr + k, mask=k < u, other=0.0), like)


@triton.jit
def dream_policy_kernel(
    a_ptr, w_ptr, b_ptr, scale_ptr, y_ptr, out_ptr, p0_ptr, s0_ptr, p1_ptr, s1_ptr, x_ptr,
    mean_ptr, mean_b_ptr, spread_ptr, spread_b_ptr, noise_ptr, act_ptr, act_stride, w2_ptr, b2_ptr,
    s2_ptr, low: tl.constexpr, high: tl.constexpr, unimix: tl.constexpr, rows,
    u: tl.constexpr, U: tl.constexpr, v: tl.constexpr, V: tl.constexpr, LAYERS: tl.constexpr,
    KIND: tl.constexpr, num: tl.constexpr, NUM: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The actor after its first layer, and all that the cell reads besides the memory itself.

    `KIND` of actions: 1 numbers, 2 a class; 0 leaves them to the caller, with the last layer.
    """
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    k, cols, each = tl.arange(0, U), tl.arange(0, V), tl.arange(0, NUM)
    like = a_ptr.dtype.element_ty
    there = m[:, None] < rows
    mask, at = there & (k < u)[None, :], x_ptr + m[:, None] * (3 * u) + k[None, :]
    tl.store(at, normed_row(p0_ptr, s0_ptr, m, rows, u, U), mask=mask)
    tl.store(at + u, normed_row(p1_ptr, s1_ptr, m, rows, u, U), mask=mask)
    x = normed_row(a_ptr, scale_ptr, m, rows, v, V)
    x = more_layers(x, w_ptr, b_ptr, scale_ptr + v, y_ptr, m, rows, v, V, LAYERS, BN)
    if KIND == 0:
        tl.store(out_ptr + m[:, None] * v + cols[None, :], x, mask=there & (cols < v)[None, :])
    else:
        few = there & (each < num)[None, :]
        noise = tl.load(noise_ptr + m[:, None] * num + each[None, :], mask=few, other=1.0)
        if KIND == 1:
            flat = sample_number(x, mean_ptr, mean_b_ptr, spread_ptr, spread_b_ptr, noise, low,
                                 high, v, V, num, NUM)  # fmt: skip
            tl.store(act_ptr + m[:, None] * act_stride + each[None, :], flat, mask=few)
            flat = flat / tl.maximum(tl.abs(flat), 1.0)
        else:
            index = sample_class(x, mean_ptr, mean_b_ptr, noise, unimix, v, V, num, NUM)
            tl.store(act_ptr + m * act_stride, index.to(tl.int64), mask=m < rows)
            flat = tl.where(each[None, :] == index[:, None], 1.0, 0.0)
        x2 = read_action(flat, w2_ptr, b2_ptr, s2_ptr, like, u, U, num, NUM)
        tl.store(at + 2 * u, x2, mask=mask)


@triton.jit
def dream_hidden_kernel(
    h_ptr, stride, x_ptr, w_ptr, b_ptr, q_ptr, part_ptr, rows,
    d: tl.constexpr, w: tl.constexpr, u: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The hidden layer by blocks, from a block's own memory and what all blocks share."""
    pid = tl.program_id(0)
    g, n = pid // (w // BN), (pid % (w // BN)) * BN + tl.arange(0, BN)
    m, there = rows_of(tl.program_id(1), BM, rows)
    kk = tl.arange(0, BK)
    size: tl.constexpr = w + 3 * u
    acc = tl.zeros([BM, BN], tl.float32)
    for k in range(0, size, BK):
        own = k < w
        at = tl.where(own, h_ptr + g * w + k, x_ptr + k - w)
        a = tl.load(at + there[:, None] * tl.where(own, stride, 3 * u) + kk[None, :])
        weight = tl.load(w_ptr + (g * size + k + kk)[:, None] * w + n[None, :])
        acc = mult(a, weight, acc)
    q = (acc + tl.load(b_ptr + g * w + n).to(tl.float32)[None, :]).to(q_ptr.dtype.element_ty)
    tl.store(q_ptr + m[:, None] * d + g * w + n[None, :], q, mask=m[:, None] < rows)
    store_part(part_ptr, pid, q, m, d // BN, rows)


@triton.jit
def dream_gates_kernel(
    h_ptr, stride, q_ptr, part_ptr, scale_ptr, w_ptr, b_ptr, out_ptr, rows,
    d: tl.constexpr, w: tl.constexpr, parts: tl.constexpr, PARTS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The gates by blocks, and the memory after this step."""
    pid = tl.program_id(0)
    g, n = pid // (w // BN), (pid % (w // BN)) * BN + tl.arange(0, BN)
    m, there = rows_of(tl.program_id(1), BM, rows)
    like = q_ptr.dtype.element_ty
    inv = inverse_of(part_ptr, m, d, parts, rows, PARTS)
    kk = tl.arange(0, BK)
    reset = tl.zeros([BM, BN], tl.float32)
    cand = tl.zeros([BM, BN], tl.float32)
    update = tl.zeros([BM, BN], tl.float32)
    for k in range(0, w, BK):
        ways = w_ptr + (g * w + k + kk)[:, None] * (3 * w) + n[None, :]
        wr, wc, wu = tl.load(ways), tl.load(ways + w), tl.load(ways + 2 * w)
        q = tl.load(q_ptr + there[:, None] * d + (g * w + k + kk)[None, :])
        y = unit_act(q, inv, tl.load(scale_ptr + g * w + k + kk), like)
        reset, cand, update = mult(y, wr, reset), mult(y, wc, cand), mult(y, wu, update)
    bias = b_ptr + g * 3 * w + n
    reset = (reset + tl.load(bias).to(tl.float32)[None, :]).to(like).to(tl.float32)
    cand = (cand + tl.load(bias + w).to(tl.float32)[None, :]).to(like).to(tl.float32)
    update = (update + tl.load(bias + 2 * w).to(tl.float32)[None, :]).to(like).to(tl.float32)
    new = 2 * tl.sigmoid(2 * tl.sigmoid(reset) * cand) - 1
    open_ = tl.sigmoid(update - 1)
    at, mask = m[:, None] * stride + (g * w + n)[None, :], m[:, None] < rows
    memory = tl.load(h_ptr + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + at, (open_ * new + (1 - open_) * memory).to(like), mask=mask)


@triton.jit
def dream_prior_kernel(
    o_ptr, w_ptr, b_ptr, scale_ptr, y_ptr, wl_ptr, bl_ptr, noise_ptr, z_ptr, stride, rows,
    unimix: tl.constexpr, u: tl.constexpr, U: tl.constexpr, LAYERS: tl.constexpr,
    S: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, AT_ONCE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The prior after its first layer, and a sample of each choice, `AT_ONCE` choices at once."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    like = o_ptr.dtype.element_ty
    x = normed_row(o_ptr, scale_ptr, m, rows, u, U)
    x = more_layers(x, w_ptr, b_ptr, scale_ptr + u, y_ptr, m, rows, u, U, LAYERS, BN)
    k, i = tl.arange(0, U), tl.arange(0, AT_ONCE * CP)
    cls = i % CP
    for first in range(0, S, AT_ONCE):
        choice = first + i // CP
        n, there = choice * C + cls, (cls < C) & (choice < S)
        at = wl_ptr + n[None, :] * u + k[:, None]
        w = tl.load(at, mask=(k < u)[:, None] & there[None, :], other=0.0)
        mask, place = (m[:, None] < rows) & there[None, :], m[:, None] * (S * C) + n[None, :]
        noise = tl.load(noise_ptr + place, mask=mask, other=0.0).to(tl.float32)
        logit = mult(x, w, tl.zeros([BM, AT_ONCE * CP], tl.float32))
        logit += tl.load(bl_ptr + n, mask=there, other=0.0).to(tl.float32)[None, :]
        logit = tl.where(there[None, :], logit.to(like).to(tl.float32), -1e30)
        logit = tl.reshape(logit, [BM, AT_ONCE, CP])
        e = tl.exp(logit - tl.max(logit, 2)[:, :, None])
        probs = (1 - unimix) * (e / tl.sum(e, 2)[:, :, None]) + unimix / C
        score = tl.log(probs) + tl.reshape(noise, [BM, AT_ONCE, CP])
        each = tl.arange(0, CP)[None, None, :]
        score = tl.where(each < C, score, -1e30)
        hot = tl.reshape(each == tl.argmax(score, 2)[:, :, None], [BM, AT_ONCE * CP])
        sample = tl.where(hot, 1.0, 0.0).to(like)
        tl.store(z_ptr + m[:, None] * stride + n[None, :], sample, mask=mask)
