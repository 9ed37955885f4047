"""Lightweight action distributions without validation: they run at every environment step."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn import functional as F

LOG_2PI = math.log(2 * math.pi)


class Dist(Protocol):
    """Interface of distributions; log-probabilities are summed over action entries."""

    def sample(self) -> Shaped[Tensor, " ..."]: ...
    def mode(self) -> Shaped[Tensor, " ..."]: ...
    def log_prob(self, value: Shaped[Tensor, " ..."]) -> Float[Tensor, "*b"]: ...
    def entropy(self) -> Float[Tensor, "*b"]: ...


class Categorical:
    """One of n classes; `value` holds class indices."""

    def __init__(self, logits: Float[Tensor, "*b n"]) -> None:
        self.logits = logits

    def sample(self) -> Int[Tensor, "*b"]:
        # the Gumbel trick: half the cost of multinomial on small batches
        noise = torch.empty_like(self.logits).exponential_().log_()
        return (self.logits - noise).argmax(-1)

    def mode(self) -> Int[Tensor, "*b"]:
        return self.logits.argmax(-1)

    def log_prob(self, value: Int[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        if self.logits.ndim == 2:  # one operation instead of three
            return -F.cross_entropy(self.logits, value, reduction="none")
        return F.log_softmax(self.logits, -1).gather(-1, value[..., None])[..., 0]

    def entropy(self) -> Float[Tensor, "*b"]:
        logp = F.log_softmax(self.logits, -1)
        return -(logp.exp() * logp).sum(-1)


class MultiCategorical:
    """Several independent choices; `logits` are the concatenated logits of each."""

    def __init__(self, logits: Float[Tensor, "*b n"], classes: tuple[int, ...]) -> None:
        self.parts = [Categorical(part) for part in logits.split(classes, -1)]

    def sample(self) -> Int[Tensor, "*b k"]:
        return torch.stack([p.sample() for p in self.parts], -1)

    def mode(self) -> Int[Tensor, "*b k"]:
        return torch.stack([p.mode() for p in self.parts], -1)

    def log_prob(self, value: Int[Tensor, "*b k"]) -> Float[Tensor, "*b"]:
        pairs = zip(self.parts, value.unbind(-1), strict=True)
        return torch.stack([p.log_prob(v) for p, v in pairs], -1).sum(-1)

    def entropy(self) -> Float[Tensor, "*b"]:
        return torch.stack([p.entropy() for p in self.parts], -1).sum(-1)


class Gaussian:
    """Independent Gaussians."""

    def __init__(self, mean: Float[Tensor, "*b a"], log_std: Float[Tensor, "*#b a"]) -> None:
        self.mean, self.log_std = mean, log_std

    def sample(self) -> Float[Tensor, "*b a"]:
        return self.mean + self.log_std.exp() * torch.randn_like(self.mean)

    def mode(self) -> Float[Tensor, "*b a"]:
        return self.mean

    def log_prob(self, value: Float[Tensor, "*b a"]) -> Float[Tensor, "*b"]:
        unit = (value - self.mean) * (-self.log_std).exp()
        return (-0.5 * (unit.square() + LOG_2PI) - self.log_std).sum(-1)

    def entropy(self) -> Float[Tensor, "*b"]:
        return (0.5 * (1 + LOG_2PI) + self.log_std).expand_as(self.mean).sum(-1)


class TanhGaussian:
    """Gaussians squashed into (-1, 1)."""

    def __init__(self, mean: Float[Tensor, "*b a"], log_std: Float[Tensor, "*#b a"]) -> None:
        self.mean, self.log_std = mean, log_std

    def sample(self) -> Float[Tensor, "*b a"]:
        return (self.mean + self.log_std.exp() * torch.randn_like(self.mean)).tanh()

    def sample_with_log_prob(self) -> tuple[Float[Tensor, "*b a"], Float[Tensor, "*b"]]:
        """Return a reparameterized sample and its log-probability."""
        noise = torch.randn_like(self.mean)
        raw = self.mean + self.log_std.exp() * noise
        normal = -0.5 * (noise.square() + LOG_2PI) - self.log_std
        return raw.tanh(), (normal - log_tanh_slope(raw)).sum(-1)

    def mode(self) -> Float[Tensor, "*b a"]:
        return self.mean.tanh()

    def log_prob(self, value: Float[Tensor, "*b a"]) -> Float[Tensor, "*b"]:
        raw = value.clamp(-1 + 1e-6, 1 - 1e-6).atanh()
        unit = (raw - self.mean) * (-self.log_std).exp()
        normal = -0.5 * (unit.square() + LOG_2PI) - self.log_std
        return (normal - log_tanh_slope(raw)).sum(-1)

    def entropy(self) -> Float[Tensor, "*b"]:
        """Return a single-sample estimate: there is no closed form."""
        return -self.sample_with_log_prob()[1]


def log_tanh_slope(x: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """Compute log(1 - tanh(x)^2), stable in the tails."""
    return 2 * (math.log(2) - x - F.softplus(-2 * x))
