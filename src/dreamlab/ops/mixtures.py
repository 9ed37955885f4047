"""Gaussian mixtures, one for each entry of a vector: an MDN predicts 3 k parameters each."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


def split_mixture(
    params: Float[Tensor, "*b d k3"],
) -> tuple[Float[Tensor, "*b d k"], Float[Tensor, "*b d k"], Float[Tensor, "*b d k"]]:
    """Split parameters into logits, means and log-deviations of the components."""
    logits, mean, log_std = params.chunk(3, -1)
    return logits, mean, log_std


def mixture_log_prob(
    params: Float[Tensor, "*b d k3"], value: Float[Tensor, "*b d"]
) -> Float[Tensor, "*b d"]:
    """Return the log-density of each entry under its mixture."""
    logits, mean, log_std = split_mixture(params)
    distance = (value[..., None] - mean) * torch.exp(-log_std)
    log_normal = -0.5 * distance.square() - log_std - 0.5 * math.log(2 * math.pi)
    return torch.logsumexp(F.log_softmax(logits, -1) + log_normal, -1)


def sample_mixture(
    params: Float[Tensor, "*b d k3"], noise: Float[Tensor, "*b d 2"], temperature: float = 1.0
) -> Float[Tensor, "*b d"]:
    """Sample mixtures from two standard normals per entry: one for the component, one within it.

    A higher temperature flattens the component weights and widens the Gaussians: logits are divided
    by it, deviations multiplied by its square root.
    """
    logits, mean, log_std = split_mixture(params)
    share = F.softmax(logits / temperature, -1).cumsum(-1)
    chance = 0.5 * (1 + torch.erf(noise[..., :1] * 2**-0.5))
    # rounding may leave the last cumulative sum below 1, and `chance` may be 1
    chosen = (chance > share[..., :-1]).sum(-1, keepdim=True)
    std = log_std.gather(-1, chosen).exp() * temperature**0.5
    return (mean.gather(-1, chosen) + std * noise[..., 1:])[..., 0]
