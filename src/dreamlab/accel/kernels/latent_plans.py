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
    acc0, acc1, x_ptr, w_ptr, m, n, k_size: tl.constexpr, n_size: tl.constexpr, SK: tl.constexpr,
    SN: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Add x w to the sums of both halves of a row; `n` are the columns of the first."""
    kk = tl.arange(0, BK)
    for k in range(0, k_size, BK):
        x = tl.load(x_ptr + m[:, None] * k_size + (k + kk)[None, :])
        w0 = block(w_ptr, k + kk, n, n_size, SK, SN, n_size >= BN)
        w1 = block(w_ptr, k + kk, BN + n, n_size, SK, SN, n_size == 2 * BN)
        acc0 = tl.dot(x, w0, acc0, input_precision="ieee")
        acc1 = tl.dot(x, w1, acc1, input_precision="ieee")
    return acc0, acc1


@triton.jit
def add_action(
    acc0, acc1, action, w_ptr, n, a: tl.constexpr, n_size: tl.constexpr, AP: tl.constexpr,
    BN: tl.constexpr,
):  # fmt: skip
    """Add the action's part of a first layer; its weight is [a, n]."""
    j = tl.arange(0, AP)
    at = w_ptr + j[:, None] * n_size + n[None, :]
    there = j[:, None] < a
    w0 = tl.load(at, mask=there & (n[None, :] < n_size), other=0.0)
    w1 = tl.load(at + BN, mask=there & (BN + n[None, :] < n_size), other=0.0)
    action = action.to(w0.dtype)
    acc0 = tl.dot(action, w0, acc0, input_precision="ieee")
    return acc0, tl.dot(action, w1, acc1, input_precision="ieee")


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
def put_half(ptr, y, m, n, size: tl.constexpr, FULL: tl.constexpr):
    at = ptr + m[:, None] * size + n[None, :]
    if FULL:
        tl.store(at, y.to(ptr.dtype.element_ty))
    else:
        tl.store(at, y.to(ptr.dtype.element_ty), mask=n[None, :] < size)


@triton.jit
def put_hidden(ptr, acc0, acc1, scale_ptr, shift_ptr, m, n, size: tl.constexpr, BN: tl.constexpr):
    """Normalize, activate and store whole rows, to be read by other threads of this program."""
    inv, off = moments(acc0, acc1, n, size, BN)
    y0 = mish(unit(acc0, inv, off, scale_ptr, shift_ptr, n, size, size >= BN))
    put_half(ptr, y0, m, n, size, size >= BN)
    y1 = mish(unit(acc1, inv, off, scale_ptr, shift_ptr, BN + n, size, size == 2 * BN))
    put_half(ptr, y1, m, BN + n, size, size == 2 * BN)
    tl.debug_barrier()


@triton.jit
def put_latent(
    ptr, acc0, acc1, scale_ptr, shift_ptr, m, n, size: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, G: tl.constexpr,
):  # fmt: skip
    """Normalize latents, apply softmax to groups, and store them likewise."""
    inv, off = moments(acc0, acc1, n, size, BN)
    y0 = unit(acc0, inv, off, scale_ptr, shift_ptr, n, size, size >= BN)
    put_half(ptr, grouped_softmax(y0, BM, BN, G), m, n, size, size >= BN)
    y1 = unit(acc1, inv, off, scale_ptr, shift_ptr, BN + n, size, size == 2 * BN)
    put_half(ptr, grouped_softmax(y1, BM, BN, G), m, BN + n, size, size == 2 * BN)
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
    x_ptr, moved, start_ptr, w1_ptr, s1_ptr, h1_ptr, w2_ptr, b2_ptr, s2_ptr, h2_ptr,
    w3_ptr, b3_ptr, noise, mask, low: tl.constexpr, high: tl.constexpr, y1_ptr, y2_ptr, m,
    d: tl.constexpr, w: tl.constexpr, a: tl.constexpr, BM: tl.constexpr, AP: tl.constexpr,
    BW: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Return the policy prior's actions [rows, AP] for noise."""
    n = tl.arange(0, BW)
    acc0, acc1 = start_halves(start_ptr, n, w, BM, BW)
    if moved:
        acc0, acc1 = affine_halves(acc0, acc1, x_ptr, w1_ptr, m, n, d, w, 1, d, BW, BK)
    put_hidden(y1_ptr, acc0, acc1, s1_ptr, h1_ptr, m, n, w, BW)
    acc0, acc1 = start_halves(b2_ptr, n, w, BM, BW)
    acc0, acc1 = affine_halves(acc0, acc1, y1_ptr, w2_ptr, m, n, w, w, 1, w, BW, BK)
    put_hidden(y2_ptr, acc0, acc1, s2_ptr, h2_ptr, m, n, w, BW)
    j, kk = tl.arange(0, AP), tl.arange(0, BK)
    there = (j < a)[None, :]
    mean = tl.zeros([BM, AP], tl.float32)
    raw = tl.zeros([BM, AP], tl.float32)
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
    x_ptr, moved, action, start_ptr, w1_ptr, wa_ptr, s1_ptr, h1_ptr, w2_ptr, b2_ptr, s2_ptr,
    h2_ptr, w3_ptr, b3_ptr, s3_ptr, h3_ptr, y1_ptr, y2_ptr, out_ptr, m, G: tl.constexpr,
    d: tl.constexpr, w: tl.constexpr, a: tl.constexpr, BM: tl.constexpr, AP: tl.constexpr,
    BD: tl.constexpr, BW: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Store the latents after actions [rows, AP]."""
    n, nd = tl.arange(0, BW), tl.arange(0, BD)
    acc0, acc1 = start_halves(start_ptr, n, w, BM, BW)
    acc0, acc1 = add_action(acc0, acc1, action, wa_ptr, n, a, w, AP, BW)
    if moved:
        acc0, acc1 = affine_halves(acc0, acc1, x_ptr, w1_ptr, m, n, d, w, 1, d, BW, BK)
    put_hidden(y1_ptr, acc0, acc1, s1_ptr, h1_ptr, m, n, w, BW)
    acc0, acc1 = start_halves(b2_ptr, n, w, BM, BW)
    acc0, acc1 = affine_halves(acc0, acc1, y1_ptr, w2_ptr, m, n, w, w, 1, w, BW, BK)
    put_hidden(y2_ptr, acc0, acc1, s2_ptr, h2_ptr, m, n, w, BW)
    acc0, acc1 = start_halves(b3_ptr, nd, d, BM, BD)
    acc0, acc1 = affine_halves(acc0, acc1, y2_ptr, w3_ptr, m, nd, w, d, 1, w, BD, BK)
    put_latent(out_ptr, acc0, acc1, s3_ptr, h3_ptr, m, nd, d, BM, BD, G)


@triton.jit
def roll_kernel(
    actions_ptr, noise_ptr, mask_ptr, states_ptr, out_ptr, y1_ptr, y2_ptr,
    start_ptr, w1_ptr, wa_ptr, s1_ptr, h1_ptr, w2_ptr, b2_ptr, s2_ptr, h2_ptr,
    w3_ptr, b3_ptr, s3_ptr, h3_ptr,
    pstart_ptr, pw1_ptr, ps1_ptr, ph1_ptr, pw2_ptr, pb2_ptr, ps2_ptr, ph2_ptr, pw3_ptr, pb3_ptr,
    envs, plans, tiles, noise_env, noise_step,
    low: tl.constexpr, high: tl.constexpr, H: tl.constexpr, G: tl.constexpr,
    d: tl.constexpr, w: tl.constexpr, a: tl.constexpr, MASKED: tl.constexpr, POLICY: tl.constexpr,
    BM: tl.constexpr, AP: tl.constexpr, BD: tl.constexpr, BW: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Roll out the dynamics for a tile of one environment's plans.

    With `POLICY`, the policy chooses the actions, which are what is written. Else they are given;
    the states after them are written, and the policy's action in the last one.
    """
    pid = tl.program_id(0)
    env = pid // tiles
    local = (pid % tiles) * BM + tl.arange(0, BM)
    m = pid * BM + tl.arange(0, BM)
    size = tl.num_programs(0) * BM * d
    j = tl.arange(0, AP)
    here = (local < plans)[:, None] & (j < a)[None, :]
    mask = tl.full([1, AP], 1.0, tl.float32)
    if MASKED:
        mask = tl.load(mask_ptr + env * a + j, mask=j < a, other=0.0).to(tl.float32)[None, :]
    row = env * plans + local
    noise_at = noise_ptr + env * noise_env + local[:, None] * a + j[None, :]
    for t in tl.range(0, H, disable_licm=True):
        moved = t > 0  # else the state is the environment's, whose part of the sums is the start
        begin = (tl.where(moved, envs, 0) + env) * w
        x_ptr = states_ptr + (t - 1) * size
        at = row[:, None] * (H * a) + t * a + j[None, :]
        if POLICY:
            noise = tl.load(noise_at + t * noise_step, mask=here, other=0.0).to(tl.float32)
            action = policy(
                x_ptr, moved, pstart_ptr + begin, pw1_ptr, ps1_ptr, ph1_ptr, pw2_ptr, pb2_ptr,
                ps2_ptr, ph2_ptr, pw3_ptr, pb3_ptr, noise, mask, low, high, y1_ptr, y2_ptr, m,
                d, w, a, BM, AP, BW, BK,
            )  # fmt: skip
            tl.store(out_ptr + at, action, mask=here)
        else:
            action = tl.load(actions_ptr + at, mask=here, other=0.0)
        if (not POLICY) or (t < H - 1):
            dynamics(
                x_ptr, moved, action, start_ptr + begin, w1_ptr, wa_ptr, s1_ptr, h1_ptr, w2_ptr,
                b2_ptr, s2_ptr, h2_ptr, w3_ptr, b3_ptr, s3_ptr, h3_ptr, y1_ptr, y2_ptr,
                states_ptr + t * size, m, G, d, w, a, BM, AP, BD, BW, BK,
            )  # fmt: skip
    if not POLICY:
        noise = tl.load(noise_at, mask=here, other=0.0).to(tl.float32)
        action = policy(
            states_ptr + (H - 1) * size, True, pstart_ptr + (envs + env) * w, pw1_ptr, ps1_ptr,
            ph1_ptr, pw2_ptr, pb2_ptr, ps2_ptr, ph2_ptr, pw3_ptr, pb3_ptr, noise, mask, low, high,
            y1_ptr, y2_ptr, m, d, w, a, BM, AP, BW, BK,
        )  # fmt: skip
        tl.store(out_ptr + row[:, None] * a + j[None, :], action, mask=here)


@triton.jit
def value_kernel(
    states_ptr, actions_ptr, last_ptr, pair_ptr, gains_ptr, y1_ptr, y2_ptr, centre_ptr,
    rstart_ptr, rw1_ptr, rwa_ptr, rs1_ptr, rh1_ptr, rw2_ptr, rb2_ptr, rs2_ptr, rh2_ptr,
    rw3_ptr, rb3_ptr,
    qstart_ptr, qw1_ptr, qs1_ptr, qh1_ptr, qw2_ptr, qb2_ptr, qs2_ptr, qh2_ptr, qw3_ptr, qb3_ptr,
    envs, plans, H: tl.constexpr, step: tl.constexpr, d: tl.constexpr, w: tl.constexpr,
    a: tl.constexpr, HB: tl.constexpr, BM: tl.constexpr, AP: tl.constexpr, BW: tl.constexpr,
    BK: tl.constexpr,
):  # fmt: skip
    """The reward of one step of a tile of plans, or one critic's value of where they end."""
    pid = tl.program_id(0)
    job = tl.program_id(1)
    m = pid * BM + tl.arange(0, BM)
    rows = tl.num_programs(0) * BM
    env = (pid * BM) // plans
    j, n, nb = tl.arange(0, AP), tl.arange(0, BW), tl.arange(0, 2 * HB)
    here = (j < a)[None, :]
    place = tl.num_programs(1) - 1 - job  # the critics first: the reward at step 0 is less work
    if job < 2:
        head = tl.load(pair_ptr + job).to(tl.int32)
        place = H + job
        x_ptr = states_ptr + (H - 1) * rows * d
        start_ptr = qstart_ptr + (head * envs + env) * w
        w1_ptr = qw1_ptr + head * (step * w)
        wa_ptr = w1_ptr + (step - a) * w
        s1_ptr, h1_ptr = qs1_ptr + head * w, qh1_ptr + head * w
        w2_ptr, b2_ptr = qw2_ptr + head * (w * w), qb2_ptr + head * w
        s2_ptr, h2_ptr = qs2_ptr + head * w, qh2_ptr + head * w
        w3_ptr, b3_ptr = qw3_ptr + head * (w * 2 * HB), qb3_ptr + head * (2 * HB)
        action_ptr, stride = last_ptr, a
    else:
        x_ptr = states_ptr + (place - 1) * rows * d
        start_ptr = rstart_ptr + (tl.where(place == 0, 0, envs) + env) * w
        w1_ptr, wa_ptr, s1_ptr, h1_ptr = rw1_ptr, rwa_ptr, rs1_ptr, rh1_ptr
        w2_ptr, b2_ptr, s2_ptr, h2_ptr = rw2_ptr, rb2_ptr, rs2_ptr, rh2_ptr
        w3_ptr, b3_ptr = rw3_ptr, rb3_ptr
        action_ptr, stride = actions_ptr + place * a, H * a
    y1_ptr += job * rows * w
    y2_ptr += job * rows * w
    action = tl.load(action_ptr + m[:, None] * stride + j[None, :], mask=here, other=0.0)
    acc0, acc1 = start_halves(start_ptr, n, w, BM, BW)
    acc0, acc1 = add_action(acc0, acc1, action, wa_ptr, n, a, w, AP, BW)
    if place > 0:
        acc0, acc1 = affine_halves(acc0, acc1, x_ptr, w1_ptr, m, n, d, w, w, 1, BW, BK)
    put_hidden(y1_ptr, acc0, acc1, s1_ptr, h1_ptr, m, n, w, BW)
    acc0, acc1 = start_halves(b2_ptr, n, w, BM, BW)
    acc0, acc1 = affine_halves(acc0, acc1, y1_ptr, w2_ptr, m, n, w, w, w, 1, BW, BK)
    put_hidden(y2_ptr, acc0, acc1, s2_ptr, h2_ptr, m, n, w, BW)
    acc = start_rows(b3_ptr, nb, 2 * HB, True, BM, 2 * HB)
    acc = affine(acc, y2_ptr, w3_ptr, m, nb, w, 2 * HB, 2 * HB, 1, 2 * HB, BK)
    e = tl.exp2((acc - tl.max(acc, 1)[:, None]) * LOG2E)
    # opposite bins side by side, subtracted first: exactly 0 for uniform logits
    up, down = tl.split(tl.permute(tl.reshape(e, [BM, 2, HB]), (0, 2, 1)))
    centre = tl.load(centre_ptr + tl.arange(0, HB))
    mean = tl.sum((up - down) * centre[None, :], 1) / tl.sum(e, 1)
    tl.store(gains_ptr + place * rows + m, symexp(mean))
