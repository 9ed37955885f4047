"""Losses that more than one algorithm uses."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from dreamlab.accel.dispatch import use_fused
from dreamlab.accel.fused_losses import fused_surrogate


def huber(error: Float[Tensor, "*b"], delta: float = 1.0) -> Float[Tensor, "*b"]:
    """Return the squared error near zero and the absolute one beyond `delta`."""
    size = error.abs()
    return torch.where(size <= delta, 0.5 * error.square(), delta * (size - 0.5 * delta))


def project_categorical(
    support: Float[Tensor, " n"], target: Float[Tensor, "b n"], probs: Float[Tensor, "b n"]
) -> Float[Tensor, "b n"]:
    """Return the distribution on `support` nearest to `probs` on the atoms `target`.

    Each atom's probability is shared by its two neighbours in proportion to nearness
    (Bellemare et al. 2017, algorithm 1). `support` is evenly spaced.
    """
    low, step = support[0], support[1] - support[0]
    last = support.shape[0] - 1
    at = ((target - low) / step).clamp(0, last)
    below = at.floor().long().clamp(max=last - 1)
    above_share = at - below
    out = torch.zeros_like(probs)
    out.scatter_add_(1, below, probs * (1 - above_share))
    return out.scatter_add_(1, below + 1, probs * above_share)


def clipped_surrogate(
    change: Float[Tensor, "*b"], advantage: Float[Tensor, "*b"], clip: Any
) -> Float[Tensor, "*b"]:
    """Return min(r A, clip(r, 1 - clip, 1 + clip) A), with r = exp(change) (Schulman 2017, eq. 7).

    `change` is the log-probability now less that when acting; gradients flow through it alone.
    """
    if use_fused():
        return fused_surrogate(change, advantage, clip)
    ratio = change.exp()
    return torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
