"""Mixtures of normals, one for each number of a vector: what an MDN describes by 3 k numbers."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


def split_mixture(
    params: Float[Tensor, "*b d k3"],
) -> tuple[Float[Tensor, "*b d k"], Float[Tensor, "*b d k"], Float[Tensor, "*b d k"]]:
    """Return logits, means and log-deviations of the components."""
    logits, mean, log_std = params.chunk(3, -1)
    return logits, mean, log_std


def mixture_log_prob(
    params: Float[Tensor, "*b d k3"], value: Float[Tensor, "*b d"]
) -> Float[Tensor, "*b d"]:
    """Return the log-density of each number under its own mixture."""
    logits, mean, log_std = split_mixture(params)
    distance = (value[..., None] - mean) * torch.exp(-log_std)
    log_normal = -0.5 * distance.square() - log_std - 0.5 * math.log(2 * math.pi)
    return torch.logsumexp(F.log_softmax(logits, -1) + log_normal, -1)


def sample_mixture(
    params: Float[Tensor, "*b d k3"], noise: Float[Tensor, "*b d 2"], temperature: float = 1.0
) -> Float[Tensor, "*b d"]:
    """Return numbers made of two standard normals each: one chooses a component, one moves in it.

    A higher temperature makes the choice more even and the normals wider: logits are divided by
    it, deviations multiplied by its root.
    """
    logits, mean, log_std = split_mixture(params)
    share = F.softmax(logits / temperature, -1).cumsum(-1)
    chance = 0.5 * (1 + torch.erf(noise[..., :1] * 2**-0.5))
    # rounding may leave the last sum below 1, and chance may be 1
    chosen = (chance > share[..., :-1]).sum(-1, keepdim=True)
    std = log_std.gather(-1, chosen).exp() * temperature**0.5
    return (mean.gather(-1, chosen) + std * noise[..., 1:])[..., 0]
