"""Triton kernel of `accel.mppi`: what would be a sort, gathers and sums of a few hundred scores."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def ordered(score, there):
    """Return unsigned integers in the order of the scores; the least for what is not there."""
    bits = (score + 0.0).to(tl.int32, bitcast=True)  # + 0: there is one 0 only
    bits = tl.where(bits < 0, ~bits, bits ^ -0x80000000)
    return tl.where(there, bits, 0).to(tl.uint32, bitcast=True)


@triton.jit
def least(key, elites, N: tl.constexpr):
    """Return the key of the last elite, two bits at a time: the largest that so many keys reach."""
    # three counts in one sum
    whole: tl.constexpr = tl.int32 if N < 1024 else tl.int64
    size: tl.constexpr = 10 if N < 1024 else 20
    most: tl.constexpr = (1 << size) - 1
    found = tl.full([1], 0, tl.uint32)
    bit = tl.full([1], 1 << 30, tl.uint32)
    for _ in range(16):
        one = (key >= (found | bit)).to(whole)
        two = (key >= (found | (bit * 2))).to(whole)
        three = (key >= (found | (bit * 3))).to(whole)
        counts = tl.sum(one + (two << size) + (three << (2 * size)), 0)
        digit = ((counts & most) >= elites).to(tl.uint32)
        digit += (((counts >> size) & most) >= elites).to(tl.uint32)
        digit += ((counts >> (2 * size)) >= elites).to(tl.uint32)
        found = found | (bit * digit)
        bit = bit >> 2
    return found


@triton.jit
def slots(key, i, elites, there, MOST: tl.constexpr):
    """Return a place for each elite, in the order of candidates, and which candidates are elites.

    Of equals, the first is better.
    """
    last = least(key, elites, MOST // 2)
    above, equal = key > last, (key == last) & there
    wanted = elites - tl.sum(above.to(tl.int32), 0)
    both = tl.cumsum(above.to(tl.int32) + equal.to(tl.int32) * MOST, 0)
    better, same = both % MOST, both // MOST  # so many up to here
    chosen = above | (equal & (same <= wanted))
    return better + tl.minimum(same, wanted) - 1, chosen


@triton.jit
def tell_kernel(
    plans_ptr, score_ptr, mean_ptr, std_ptr, elites_ptr, top_ptr, weight_ptr, temperature, low,
    high, num, elites, d: tl.constexpr, N: tl.constexpr, E: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Choose and order one problem's best candidates; average them, weighted by their scores."""
    env = tl.program_id(0)
    i, e, j = tl.arange(0, N), tl.arange(0, E), tl.arange(0, D)
    there = i < num
    score = tl.load(score_ptr + env * num + i, mask=there, other=-float("inf"))
    slot, chosen = slots(ordered(score, there), i, elites, there, 2 * N)
    top_ptr += env * elites
    weight_ptr += env * elites
    tl.store(top_ptr + slot, score, mask=chosen)
    tl.store(weight_ptr + slot, i.to(tl.float32), mask=chosen)
    tl.debug_barrier()  # what one thread stored another reads
    here = e < elites
    best = tl.load(top_ptr + e, mask=here, other=-float("inf"))
    index = tl.load(weight_ptr + e, mask=here, other=0.0).to(tl.int32)
    few = here[:, None] & (j < d)[None, :]
    x = tl.load(plans_ptr + (env * num + index[:, None]) * d + j[None, :], mask=few, other=0.0)
    tl.debug_barrier()  # all is read before it is overwritten
    better = best[None, :] > best[:, None]
    equal = (best[None, :] == best[:, None]) & (e[None, :] < e[:, None])
    rank = tl.sum((better | equal).to(tl.int32), 1)
    weight = tl.where(here, tl.exp(temperature * (best - tl.max(best, 0))), 0.0)
    weight = weight / tl.sum(weight, 0)
    tl.store(top_ptr + rank, best, mask=here)
    tl.store(weight_ptr + rank, weight, mask=here)
    tl.store(elites_ptr + (env * elites + rank[:, None]) * d + j[None, :], x, mask=few)
    mean = tl.sum(x * weight[:, None], 0)
    off = x - mean[None, :]
    std = tl.sqrt(tl.sum(off * off * weight[:, None], 0))
    std = tl.minimum(tl.maximum(std, low), high)
    tl.store(mean_ptr + env * d + j, mean, mask=j < d)
    tl.store(std_ptr + env * d + j, std, mask=j < d)
