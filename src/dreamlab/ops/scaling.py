"""Scaling of targets for networks: symlog, and values as two-hot distributions."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from dreamlab.core import world

Bins = Literal["symexp", "symlog"]


def symlog(x: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """Compute sign(x) ln(1 + |x|): linear near zero, logarithmic far from it."""
    return torch.sign(x) * torch.log1p(x.abs())


def symexp(x: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """Compute the inverse of `symlog`."""
    return torch.sign(x) * torch.expm1(x.abs())


def symexp_bins(num: int, reach: float = 20.0) -> Float[Tensor, " num"]:
    """Return bins from -e^reach to e^reach, dense around zero, exactly symmetric."""
    half = symexp(torch.linspace(-reach, 0, (num + 1) // 2))
    mirrored = -(half[:-1] if num % 2 else half).flip(0)
    return torch.cat([half, mirrored])


def symmetric_mean(logits: Float[Tensor, "*b n"], bins: Float[Tensor, " n"]) -> Float[Tensor, "*b"]:
    """Compute the mean over symmetric bins, exactly 0 for a symmetric distribution.

    Bins reach 4.85e8: summed from left to right, rounding errors alone would amount to thousands.
    Opposite weights are subtracted before the multiplication, and normalized at the end: a compiler
    that fuses multiply and add would round only one of two equal terms.
    """
    up = (bins.shape[0] + 1) // 2
    weights = torch.exp(logits - logits.amax(-1, keepdim=True))
    tilt = weights[..., up:] - weights[..., : bins.shape[0] // 2].flip(-1)
    return (tilt * bins[up:]).sum(-1) / weights.sum(-1)


def two_hot_loss(
    logits: Float[Tensor, "*b n"], target: Float[Tensor, "*b"], bins: Float[Tensor, " n"]
) -> Float[Tensor, "*b"]:
    """Compute the cross-entropy to the two bins around each target, weighted by proximity."""
    target = target.detach().contiguous()
    last = bins.shape[0] - 1
    above = torch.searchsorted(bins, target, right=True)
    below = (above - 1).clamp(0, last)
    above = above.clamp(0, last)
    to_below, to_above = (bins[below] - target).abs(), (bins[above] - target).abs()
    same = below == above
    to_below, to_above = to_below.masked_fill(same, 1.0), to_above.masked_fill(same, 1.0)
    share = to_above / (to_below + to_above)
    log_prob = torch.log_softmax(logits.float(), -1)
    low = log_prob.gather(-1, below[..., None])[..., 0]
    high = log_prob.gather(-1, above[..., None])[..., 0]
    return -(share * low + (1 - share) * high)


@torch.no_grad()
def update_return_range(
    x: Float[Tensor, "*b"],
    quantiles: Float[Tensor, " 2"],
    ends: tuple[Float[Tensor, ""], Float[Tensor, ""]],
    rate: float,
) -> Float[Tensor, ""]:
    """Move both `ends` towards these quantiles of x; return their distance, at least 1.

    Quantiles are over the values of all processes.
    """
    marks = torch.quantile(world.gathered(x.flatten()), quantiles)
    for end, mark in zip(ends, marks.unbind(), strict=True):
        end.lerp_(mark, rate)
    return (ends[1] - ends[0]).clamp(min=1.0)


@torch.no_grad()
def update_spread(
    x: Float[Tensor, " n"],
    quantiles: Float[Tensor, " 2"],
    spread: Float[Tensor, ""],
    rate: float,
) -> Float[Tensor, ""]:
    """Move `spread` towards the distance of these quantiles of x, at least 1; return a copy."""
    low, high = torch.quantile(world.gathered(x.float()), quantiles).unbind()
    spread.lerp_((high - low).clamp(min=1.0), rate)
    return spread.clone()
