"""Triton kernels of `accel.latent_plans`: networks of TD-MPC2 on a tile of rows, layer after layer.

Rows do not depend on each other, so a tile goes through whole networks in one kernel. A layer's
output is whole rows of at most 512 numbers: they are normalized where they are summed up, in two
halves, because a thread has no registers for more. Then they go through global memory, which is the
cache here, to be read in pieces by the next layer. The time is that of reading the weights once per
tile, so the loop over them is what is pipelined.
Letters: d latent, w hidden width, a action entries; n columns, m rows, k numbers summed over.
"""

from __future__ import annotations

import triton
import triton.language as tl

EPS = tl.constexpr(1e-5)
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def columns(ptr, n, size: tl.constexpr, FULL: tl.constexpr):
    """Load numbers n of a vector as float32; its padding is 0."""
    if FULL:
        return tl.load(ptr + n).to(tl.float32)
    return tl.load(ptr + n, mask=n < size, other=0.0).to(tl.float32)


@triton.jit
def block(ptr, k, n, n_size: tl.constexpr, SK: tl.constexpr, SN: tl.constexpr, FULL: tl.constexpr):
    """Load rows k and columns n of a weight whose strides are SK and SN."""
    at = ptr + k[:, None] * SK + n[None, :] * SN
    if FULL:
        return tl.load(at)
    return tl.load(at, mask=n[None, :] < n_size, other=0.0)


@triton.jit
def affine(
    acc, x_ptr, w_ptr, m, n, k_size: tl.constexpr, n_size: tl.constexpr, SK: tl.constexpr,
    SN: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Add x w to the sums: rows m of x [rows, k] times w, whose strides are SK and SN."""
    kk = tl.arange(0, BK)
    for k in range(0, k_size, BK):
        x = tl.load(x_ptr + m[:, None] * k_size + (k + kk)[None, :])
        w = block(w_ptr, k + kk, n, n_size, SK, SN, n_size == BN)
        acc = tl.dot(x, w, acc, input_precision="ieee")
    return acc


@triton.jit
def affine_halves(
    acc0, acc1, x_ptr, w_ptr, m, n, begin, end: tl.constexpr, x_size: tl.constexpr,
    n_size: tl.constexpr, SK: tl.constexpr, SN: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Add x w to the sums of both halves of a row; `n` are the columns of the first.

    Of the rows m of x [rows, x_size] only the columns from `begin` to `end` are read.
    """
    kk = tl.arange(0, BK)
    for k in range(begin, end, BK):
        x = tl.load(x_ptr + m[:, None] * x_size + (k + kk)[None, :])
        w0 = block(w_ptr, k + kk, n, n_size, SK, SN, n_size >= BN)
        w1 = block(w_ptr, k + kk, BN + n, n_size, SK, SN, n_size == 2 * BN)
        acc0 = tl.dot(x, w0, acc0, input_precision="ieee")
        acc1 = tl.dot(x, w1, acc1, input_precision="ieee")
    return acc0, acc1


@triton.jit
def moments(y0, y1, n, size: tl.constexpr, BN: tl.constexpr):
    """Return factor and summand that normalize whole rows, given in halves; padding is 0."""
    mean = (tl.sum(y0, 1) + tl.sum(y1, 1)) / size
    c0, c1 = y0 - mean[:, None], y1 - mean[:, None]
    if size < BN:
        c0 = tl.where(n[None, :] < size, c0, 0.0)
    if size < 2 * BN:
        c1 = tl.where(BN + n[None, :] < size, c1, 0.0)
    var = (tl.sum(c0 * c0, 1) + tl.sum(c1 * c1, 1)) / size
    inv = tl.rsqrt(var + EPS)
    return inv, -mean * inv


@triton.jit
def unit(y, inv, off, scale_ptr, shift_ptr, n, size: tl.constexpr, FULL: tl.constexpr):
    """Normalize a half of a row; as it is not stored, it is not rounded."""
    scale, shift = columns(scale_ptr, n, size, FULL), columns(shift_ptr, n, size, FULL)
    return (y * inv[:, None] + off[:, None]) * scale[None, :] + shift[None, :]


@triton.jit
def mish(x):
    """Return x tanh(softplus(x)), as a fraction of e^x."""
    e = tl.exp2(tl.minimum(x, 20.0) * LOG2E)
    t = e * (e + 2.0)
    root = tl.rsqrt(t + 2.0)  # squared: in fewer instructions than a division
    return x * (t * (root * root))


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
def put_half(ptr, y, m, n, size: tl.constexpr, stride: tl.constexpr, FULL: tl.constexpr):
    at = ptr + m[:, None] * stride + n[None, :]
    if FULL:
        tl.store(at, y.to(ptr.dtype.element_ty))
    else:
        tl.store(at, y.to(ptr.dtype.element_ty), mask=n[None, :] < size)


@triton.jit
def put_hidden(ptr, acc0, acc1, scale_ptr, shift_ptr, m, n, size: tl.constexpr, BN: tl.constexpr):
    """Normalize, activate and store whole rows, to be read by other threads of this program."""
    inv, off = moments(acc0, acc1, n, size, BN)
    y0 = mish(unit(acc0, inv, off, scale_ptr, shift_ptr, n, size, size >= BN))
    put_half(ptr, y0, m, n, size, size, size >= BN)
    y1 = mish(unit(acc1, inv, off, scale_ptr, shift_ptr, BN + n, size, size == 2 * BN))
    put_half(ptr, y1, m, BN + n, size, size, size == 2 * BN)
    tl.debug_barrier()


@triton.jit
def put_latent(
    ptr, acc0, acc1, scale_ptr, shift_ptr, m, n, size: tl.constexpr, stride: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, G: tl.constexpr,
):  # fmt: skip
    """Normalize latents, apply softmax to groups, and store them in rows of a larger size."""
    inv, off = moments(acc0, acc1, n, size, BN)
    y0 = unit(acc0, inv, off, scale_ptr, shift_ptr, n, size, size >= BN)
    put_half(ptr, grouped_softmax(y0, BM, BN, G), m, n, size, stride, size >= BN)
    y1 = unit(acc1, inv, off, scale_ptr, shift_ptr, BN + n, size, size == 2 * BN)
    put_half(ptr, grouped_softmax(y1, BM, BN, G), m, BN + n, size, stride, size == 2 * BN)
    tl.debug_barrier()


@triton.jit
def start_rows(ptr, n, size: tl.constexpr, FULL: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Return sums that start at the same vector in every row."""
    return tl.zeros([BM, BN], tl.float32) + columns(ptr, n, size, FULL)[None, :]


@triton.jit
def start_halves(ptr, n, size: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    first = start_rows(ptr, n, size, size >= BN, BM, BN)
    return first, start_rows(ptr, BN + n, size, size == 2 * BN, BM, BN)


@triton.jit
def policy(
    x_ptr, begin, start_ptr, w1_ptr, s1_ptr, h1_ptr, w2_ptr, b2_ptr, s2_ptr, h2_ptr, w3_ptr,
    b3_ptr, noise, mask, low: tl.constexpr, high: tl.constexpr, y1_ptr, y2_ptr, m,
    d: tl.constexpr, w: tl.constexpr, a: tl.constexpr, BM: tl.constexpr, SIDE: tl.constexpr,
    BW: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Return the policy prior's actions [rows, SIDE] for noise."""
    n = tl.arange(0, BW)
    acc0, acc1 = start_halves(start_ptr, n, w, BM, BW)
    acc0, acc1 = affine_halves(acc0, acc1, x_ptr, w1_ptr, m, n, begin, d, d + SIDE, w, 1, d, BW, BK)
    put_hidden(y1_ptr, acc0, acc1, s1_ptr, h1_ptr, m, n, w, BW)
    acc0, acc1 = start_halves(b2_ptr, n, w, BM, BW)
    acc0, acc1 = affine_halves(acc0, acc1, y1_ptr, w2_ptr, m, n, 0, w, w, w, 1, w, BW, BK)
    put_hidden(y2_ptr, acc0, acc1, s2_ptr, h2_ptr, m, n, w, BW)
    j, kk = tl.arange(0, SIDE), tl.arange(0, BK)
    there = (j < a)[None, :]
    mean = tl.zeros([BM, SIDE], tl.float32)
    raw = tl.zeros([BM, SIDE], tl.float32)
    for k in range(0, w, BK):
        x = tl.load(y2_ptr + m[:, None] * w + (k + kk)[None, :])
        at = w3_ptr + (k + kk)[:, None] + j[None, :] * w
        mean = tl.dot(x, tl.load(at, mask=there, other=0.0), mean, input_precision="ieee")
        raw = tl.dot(x, tl.load(at + a * w, mask=there, other=0.0), raw, input_precision="ieee")
    mean += tl.load(b3_ptr + j, mask=j < a, other=0.0).to(tl.float32)[None, :]
    raw += tl.load(b3_ptr + a + j, mask=j < a, other=0.0).to(tl.float32)[None, :]
    mean = mean * mask
    std = tl.exp((low + 0.5 * (high - low) * (tanh(raw) + 1.0)) * mask)
    return tanh(mean + noise * mask * std)


@triton.jit
def dynamics(
    x_ptr, begin, start_ptr, w1_ptr, s1_ptr, h1_ptr, w2_ptr, b2_ptr, s2_ptr, h2_ptr, w3_ptr,
    b3_ptr, s3_ptr, h3_ptr, y1_ptr, y2_ptr, out_ptr, m, G: tl.constexpr, d: tl.constexpr,
    w: tl.constexpr, a: tl.constexpr, BM: tl.constexpr, SIDE: tl.constexpr, BD: tl.constexpr,
    BW: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Store the latents after those and the actions of x [rows, d + SIDE]."""
    n, nd = tl.arange(0, BW), tl.arange(0, BD)
    end: tl.constexpr = d + (a + BK - 1) // BK * BK
    size: tl.constexpr = d + SIDE
    acc0, acc1 = start_halves(start_ptr, n, w, BM, BW)
    acc0, acc1 = affine_halves(
        acc0, acc1, x_ptr, w1_ptr, m, n, begin, end, size, w, 1, size, BW, BK
    )
    put_hidden(y1_ptr, acc0, acc1, s1_ptr, h1_ptr, m, n, w, BW)
    acc0, acc1 = start_halves(b2_ptr, n, w, BM, BW)
    acc0, acc1 = affine_halves(acc0, acc1, y1_ptr, w2_ptr, m, n, 0, w, w, w, 1, w, BW, BK)
    put_hidden(y2_ptr, acc0, acc1, s2_ptr, h2_ptr, m, n, w, BW)
    acc0, acc1 = start_halves(b3_ptr, nd, d, BM, BD)
    acc0, acc1 = affine_halves(acc0, acc1, y2_ptr, w3_ptr, m, nd, 0, w, w, d, 1, w, BD, BK)
    put_latent(out_ptr, acc0, acc1, s3_ptr, h3_ptr, m, nd, d, size, BM, BD, G)


@triton.jit
def roll_kernel(
    actions_ptr, noise_ptr, mask_ptr, x_ptr, y1_ptr, y2_ptr,
    start_ptr, w1_ptr, s1_ptr, h1_ptr, w2_ptr, b2_ptr, s2_ptr, h2_ptr, w3_ptr, b3_ptr, s3_ptr,
    h3_ptr,
    pstart_ptr, pw1_ptr, ps1_ptr, ph1_ptr, pw2_ptr, pb2_ptr, ps2_ptr, ph2_ptr, pw3_ptr, pb3_ptr,
    envs, plans, tiles, noise_env, noise_step,
    low: tl.constexpr, high: tl.constexpr, H: tl.constexpr, G: tl.constexpr,
    d: tl.constexpr, w: tl.constexpr, a: tl.constexpr, MASKED: tl.constexpr, POLICY: tl.constexpr,
    BM: tl.constexpr, SIDE: tl.constexpr, BD: tl.constexpr, BW: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Roll out the dynamics for a tile of one environment's plans.

    Writes x [H + 1, rows, d + SIDE], the input of each step: a latent (none at first: it is the
    environment's) and an action, padded by zeros; the last action is the policy's. With `POLICY`,
    all are the policy's, and are written to `actions`.
    """
    pid = tl.program_id(0)
    env = pid // tiles
    local = (pid % tiles) * BM + tl.arange(0, BM)
    m = pid * BM + tl.arange(0, BM)
    size = tl.num_programs(0) * BM * (d + SIDE)
    j = tl.arange(0, SIDE)
    here = (local < plans)[:, None] & (j < a)[None, :]
    mask = tl.full([1, SIDE], 1.0, tl.float32)
    if MASKED:
        mask = tl.load(mask_ptr + env * a + j, mask=j < a, other=0.0).to(tl.float32)[None, :]
    row = env * plans + local
    noise_at = noise_ptr + env * noise_env + local[:, None] * a + j[None, :]
    for t in tl.range(0, H, disable_licm=True):
        begin = d // (1 + d * t)  # at first only the action is read, ...
        start = (tl.where(t == 0, 0, envs) + env) * w  # ... the rest is in the sums' start
        at = actions_ptr + row[:, None] * (H * a) + t * a + j[None, :]
        if POLICY:
            noise = tl.load(noise_at + t * noise_step, mask=here, other=0.0).to(tl.float32)
            action = policy(
                x_ptr, begin, pstart_ptr + start, pw1_ptr, ps1_ptr, ph1_ptr, pw2_ptr, pb2_ptr,
                ps2_ptr, ph2_ptr, pw3_ptr, pb3_ptr, noise, mask, low, high, y1_ptr, y2_ptr, m,
                d, w, a, BM, SIDE, BW, BK,
            )  # fmt: skip
            tl.store(at, action, mask=here)
        else:
            action = tl.load(at, mask=here, other=0.0)
        if (not POLICY) or (t < H - 1):
            put_half(x_ptr + d, action, m, j, a, d + SIDE, True)
            tl.debug_barrier()
            dynamics(
                x_ptr, begin, start_ptr + start, w1_ptr, s1_ptr, h1_ptr, w2_ptr, b2_ptr, s2_ptr,
                h2_ptr, w3_ptr, b3_ptr, s3_ptr, h3_ptr, y1_ptr, y2_ptr, x_ptr + size, m, G, d, w,
                a, BM, SIDE, BD, BW, BK,
            )  # fmt: skip
        x_ptr += size
    if not POLICY:
        noise = tl.load(noise_at, mask=here, other=0.0).to(tl.float32)
        action = policy(
            x_ptr, 0, pstart_ptr + (envs + env) * w, pw1_ptr, ps1_ptr, ph1_ptr, pw2_ptr, pb2_ptr,
            ps2_ptr, ph2_ptr, pw3_ptr, pb3_ptr, noise, mask, low, high, y1_ptr, y2_ptr, m, d, w, a,
            BM, SIDE, BW, BK,
        )  # fmt: skip
        put_half(x_ptr + d, tl.where(here, action, 0.0), m, j, a, d + SIDE, True)


@triton.jit
def value_kernel(
    x_ptr, pair_ptr, gains_ptr, y1_ptr, y2_ptr, centre_ptr,
    rstart_ptr, rw1_ptr, rs1_ptr, rh1_ptr, rw2_ptr, rb2_ptr, rs2_ptr, rh2_ptr, rw3_ptr, rb3_ptr,
    qstart_ptr, qw1_ptr, qs1_ptr, qh1_ptr, qw2_ptr, qb2_ptr, qs2_ptr, qh2_ptr, qw3_ptr, qb3_ptr,
    envs, plans, H: tl.constexpr, d: tl.constexpr, w: tl.constexpr, a: tl.constexpr,
    HB: tl.constexpr, BM: tl.constexpr, SIDE: tl.constexpr, BW: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The reward of one step of a tile of plans, or half of one critic's value of their ends."""
    pid, job = tl.program_id(0), tl.program_id(1)
    m = pid * BM + tl.arange(0, BM)
    rows, env = tl.num_programs(0) * BM, (pid * BM) // plans
    n, nb = tl.arange(0, BW), tl.arange(0, 2 * HB)
    end: tl.constexpr = d + (a + BK - 1) // BK * BK
    size: tl.constexpr = d + SIDE
    place = tl.num_programs(1) - 1 - job  # the critics first: the reward at step 0 is less work
    if job < 2:
        head = tl.load(pair_ptr + job).to(tl.int32)
        place = H + job
        x_ptr += H * rows * size
        start_ptr = qstart_ptr + (head * envs + env) * w
        w1_ptr = qw1_ptr + head * (size * w)
        s1_ptr, h1_ptr = qs1_ptr + head * w, qh1_ptr + head * w
        w2_ptr, b2_ptr = qw2_ptr + head * (w * w), qb2_ptr + head * w
        s2_ptr, h2_ptr = qs2_ptr + head * w, qh2_ptr + head * w
        w3_ptr, b3_ptr = qw3_ptr + head * (w * 2 * HB), qb3_ptr + head * (2 * HB)
    else:
        x_ptr += place * rows * size
        start_ptr = rstart_ptr + (tl.where(place == 0, 0, envs) + env) * w
        w1_ptr, s1_ptr, h1_ptr = rw1_ptr, rs1_ptr, rh1_ptr
        w2_ptr, b2_ptr, s2_ptr, h2_ptr = rw2_ptr, rb2_ptr, rs2_ptr, rh2_ptr
        w3_ptr, b3_ptr = rw3_ptr, rb3_ptr
    y1_ptr += job * rows * w
    y2_ptr += job * rows * w
    acc0, acc1 = start_halves(start_ptr, n, w, BM, BW)
    begin = d // (1 + d * place)
    acc0, acc1 = affine_halves(acc0, acc1, x_ptr, w1_ptr, m, n, begin, end, size, w, w, 1, BW, BK)
    put_hidden(y1_ptr, acc0, acc1, s1_ptr, h1_ptr, m, n, w, BW)
    acc0, acc1 = start_halves(b2_ptr, n, w, BM, BW)
    acc0, acc1 = affine_halves(acc0, acc1, y1_ptr, w2_ptr, m, n, 0, w, w, w, w, 1, BW, BK)
    put_hidden(y2_ptr, acc0, acc1, s2_ptr, h2_ptr, m, n, w, BW)
    acc = start_rows(b3_ptr, nb, 2 * HB, True, BM, 2 * HB)
    acc = affine(acc, y2_ptr, w3_ptr, m, nb, w, 2 * HB, 2 * HB, 1, 2 * HB, BK)
    e = tl.exp2((acc - tl.max(acc, 1)[:, None]) * LOG2E)
    # opposite bins side by side, subtracted first: exactly 0 for uniform logits
    up, down = tl.split(tl.permute(tl.reshape(e, [BM, 2, HB]), (0, 2, 1)))
    centre = tl.load(centre_ptr + tl.arange(0, HB))
    mean = tl.sum((up - down) * centre[None, :], 1) / tl.sum(e, 1)
    tl.store(gains_ptr + place * rows + m, symexp(mean) * tl.where(job < 2, 0.5, 1.0))
