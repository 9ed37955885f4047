"""Losses shared by several algorithms."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dreamlab.accel.dispatch import use_fused
from dreamlab.accel.fused_losses import fused_surrogate


def huber(error: Float[Tensor, "*b"], delta: float = 1.0) -> Float[Tensor, "*b"]:
    """Compute the Huber loss: quadratic near zero, linear beyond `delta`."""
    size = error.abs()
    return torch.where(size <= delta, 0.5 * error.square(), delta * (size - 0.5 * delta))


def project_categorical(
    support: Float[Tensor, " n"], target: Float[Tensor, "*b m"], probs: Float[Tensor, "*b m"]
) -> Float[Tensor, "*b n"]:
    """Project `probs` on the atoms `target` onto `support`.

    Each atom's probability is split between its two neighbors in proportion to proximity (Bellemare
    et al. 2017, algorithm 1). `support` is evenly spaced.
    """
    low, step = support[0], support[1] - support[0]
    last = support.shape[0] - 1
    at = ((target - low) / step).clamp(0, last)
    below = at.floor().long().clamp(max=last - 1)
    above_share = at - below
    out = probs.new_zeros(*probs.shape[:-1], last + 1)
    out.scatter_add_(-1, below, probs * (1 - above_share))
    return out.scatter_add_(-1, below + 1, probs * above_share)


def gauss_bins(
    x: Float[Tensor, "*b"], edges: Float[Tensor, " n"], sigma: float
) -> Float[Tensor, "*b m"]:
    """Return the probability of each bin under a Gaussian around each value, summing to 1.

    The HL-Gauss target of Imani and White 2018; values beyond the bins are clipped to their ends.
    """
    y = x.clamp(edges[0], edges[-1])
    cdf = torch.erf((edges - y[..., None]) / (2**0.5 * sigma))
    return cdf.diff(dim=-1) / (cdf[..., -1:] - cdf[..., :1])


def quantile_huber(
    quantiles: Float[Tensor, "*b k"],
    samples: Float[Tensor, "*b j"],
    levels: Float[Tensor, " k"],
    kappa: float,
) -> Float[Tensor, "*b"]:
    """Compute the quantile regression loss: sum over quantiles, mean over samples.

    Dabney et al. 2018, eq. 9 and 10; `levels` are the quantile levels.
    """
    error = samples[..., None, :] - quantiles[..., :, None]
    weight = (levels[:, None] - (error.detach() < 0).to(error.dtype)).abs()
    return (weight * huber(error, kappa) / kappa).mean(-1).sum(-1)


def clipped_surrogate(
    change: Float[Tensor, "*b"], advantage: Float[Tensor, "*b"], clip: Any
) -> Float[Tensor, "*b"]:
    """Compute min(r A, clip(r, 1 - clip, 1 + clip) A), with r = exp(change) (Schulman 2017, eq. 7).

    `change` is the current log-probability minus that when acting; only it receives gradients.
    """
    if use_fused():
        return fused_surrogate(change, advantage, clip)
    ratio = change.exp()
    return torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
