"""Triton kernel of `accel.mppi`: what would be a sort, gathers and sums of a few hundred scores."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tell_kernel(
    plans_ptr, score_ptr, mean_ptr, std_ptr, elites_ptr, top_ptr, weight_ptr, temperature, low,
    high, num, elites, d: tl.constexpr, N: tl.constexpr, D: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Rank one problem's candidates; average the best ones, weighted by their scores."""
    env = tl.program_id(0)
    i, j = tl.arange(0, N), tl.arange(0, D)
    there = i < num
    score = tl.load(score_ptr + env * num + i, mask=there, other=-float("inf"))
    rank = tl.zeros([N], tl.int32)
    for c in range(0, N, C):  # a rank is the number of better ones; of equals, the first is better
        k = c + tl.arange(0, C)
        other = tl.load(score_ptr + env * num + k, mask=k < num, other=-float("inf"))
        better = other[None, :] > score[:, None]
        equal = (other[None, :] == score[:, None]) & (k[None, :] < i[:, None])
        rank += tl.sum((better | equal).to(tl.int32), 1)
    chosen = there & (rank < elites)
    top = tl.max(score, 0)
    weight = tl.where(chosen, tl.exp(temperature * (score - top)), 0.0)
    weight = weight / tl.sum(weight, 0)
    tl.store(top_ptr + env * elites + rank, score, mask=chosen)
    tl.store(weight_ptr + env * elites + rank, weight, mask=chosen)
    here = there[:, None] & (j < d)[None, :]
    x = tl.load(plans_ptr + (env * num + i[:, None]) * d + j[None, :], mask=here, other=0.0)
    at = (env * elites + rank[:, None]) * d + j[None, :]
    tl.store(elites_ptr + at, x, mask=here & chosen[:, None])
    mean = tl.sum(x * weight[:, None], 0)
    off = x - mean[None, :]
    std = tl.sqrt(tl.sum(off * off * weight[:, None], 0))
    std = tl.minimum(tl.maximum(std, low), high)
    tl.store(mean_ptr + env * d + j, mean, mask=j < d)
    tl.store(std_ptr + env * d + j, std, mask=j < d)
