"""The Gaussian distribution truncated to [-1, 1]."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from dreamlab.nn.dists import LOG_2PI

EDGE = 1e-6  # margin of samples to the bounds, where the density ends


class TruncatedNormal:
    """Independent Gaussians truncated to [-1, 1].

    Samples use the inverse CDF, so gradients flow through them. Log-probabilities and entropies are
    summed over the entries.
    """

    def __init__(self, mean: Float[Tensor, "*b a"], std: Float[Tensor, "*b a"]) -> None:
        self.mean, self.std = mean, std
        self.low, self.high = (-1 - mean) / std, (1 - mean) / std
        self.below = _mass_below(self.low)
        self.mass = (_mass_below(self.high) - self.below).clamp(min=1e-8)

    def sample(self) -> Float[Tensor, "*b a"]:
        """Return a reparameterized sample."""
        share = self.below + torch.rand_like(self.mean) * self.mass
        unit = math.sqrt(2) * torch.erfinv((2 * share - 1).clamp(-1 + EDGE, 1 - EDGE))
        value = self.mean + self.std * unit
        return value + (value.clamp(-1 + EDGE, 1 - EDGE) - value).detach()

    def mode(self) -> Float[Tensor, "*b a"]:
        return self.mean.clamp(-1, 1)

    def log_prob(self, value: Float[Tensor, "*b a"]) -> Float[Tensor, "*b"]:
        unit = (value - self.mean) / self.std
        density = -0.5 * (unit.square() + LOG_2PI) - self.std.log()
        return (density - self.mass.log()).sum(-1)

    def entropy(self) -> Float[Tensor, "*b"]:
        edges = self.low * _density(self.low) - self.high * _density(self.high)
        whole = 0.5 * (1 + LOG_2PI) + self.std.log() + self.mass.log()
        return (whole + 0.5 * edges / self.mass).sum(-1)


def _density(x: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    return (-0.5 * (x.square() + LOG_2PI)).exp()


def _mass_below(x: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    return 0.5 * (1 + torch.erf(x / math.sqrt(2)))
