"""Heads on latent states: rewards and values as distributions, continuation, actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from dreamlab.core.limits import Decay, Positive, Range
from dreamlab.core.types import ArraySpec
from dreamlab.nn.dists import Categorical, Dist, Gaussian, MultiCategorical
from dreamlab.nn.layers import NetConfig, NormMLP, dense, filled_up
from dreamlab.ops.scaling import Bins, symexp, symexp_bins, symlog, symmetric_mean, two_hot_loss


@dataclass(frozen=True)
class TwoHotConfig(NetConfig):
    """Layers, and the bins of the value."""

    num_bins: Annotated[int, Range(2, 65_536)] = 255
    bins: Bins = "symexp"
    """`symlog` is that of DreamerV3 in 2023."""


@dataclass(frozen=True)
class PolicyConfig(NetConfig):
    """Layers, and bounds on the randomness of actions."""

    unimix: Decay = 0.0
    """Uniform share of categorical actions; 0.01 in DreamerV3 until 2024."""
    min_std: Positive = 0.1
    max_std: Positive = 1.0

    def __post_init__(self) -> None:
        if self.min_std > self.max_std:
            raise ValueError(f"min_std={self.min_std} must be at most max_std={self.max_std}")


class TwoHotHead(nn.Module):
    """A scalar as a distribution over bins; its initial output is exactly 0.

    `symexp` bins are far apart for large values, and the value is their mean; `symlog` bins are
    even in symlog space, and the value is symexp of their mean (DreamerV3 in 2023).
    """

    Config = TwoHotConfig
    bins: Float[Tensor, " n"]

    def __init__(self, config: TwoHotConfig, in_dim: int) -> None:
        super().__init__()
        c = config
        self.net = NormMLP(in_dim, c.units, c.layers, c)
        self.out = dense(self.net.out_dim, c.num_bins, scale=0.0)
        self.kind = c.bins
        even = torch.linspace(-20, 20, c.num_bins)
        bins = symexp_bins(c.num_bins) if c.bins == "symexp" else even
        self.register_buffer("bins", bins, persistent=False)

    def forward(self, feature: Float[Tensor, "*b d"]) -> Float[Tensor, "*b n"]:
        """Return the bin logits."""
        return filled_up(self.out, self.net(feature)).float()

    def mean(self, logits: Float[Tensor, "*b n"]) -> Float[Tensor, "*b"]:
        """Decode logits to scalars."""
        mean = symmetric_mean(logits, self.bins)
        return mean if self.kind == "symexp" else symexp(mean)

    def loss(
        self, logits: Float[Tensor, "*b n"], target: Float[Tensor, "*b"]
    ) -> Float[Tensor, "*b"]:
        """Return the cross-entropy to the two-hot target."""
        return two_hot_loss(logits, target if self.kind == "symexp" else symlog(target), self.bins)


class BinaryHead(nn.Module):
    """Predicts the logit of a probability."""

    Config = NetConfig

    def __init__(self, config: NetConfig, in_dim: int) -> None:
        super().__init__()
        self.net = NormMLP(in_dim, config.units, config.layers, config)
        self.out = dense(self.net.out_dim, 1)

    def forward(self, feature: Float[Tensor, "*b d"]) -> Float[Tensor, "*b"]:
        """Return logits."""
        return self.out(self.net(feature)).float()[..., 0]

    def loss(self, logits: Float[Tensor, "*b"], target: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        """Return the binary cross-entropy."""
        return F.binary_cross_entropy_with_logits(logits, target, reduction="none")


class LatentPolicy(nn.Module):
    """Policy on latent states: categorical, or Gaussian with bounded mean and deviation.

    Continuous samples are neither squashed nor clipped; the environment clips executed actions.
    """

    Config = PolicyConfig

    def __init__(self, config: PolicyConfig, in_dim: int, action: ArraySpec) -> None:
        super().__init__()
        c = self.config = config
        self.action = action
        self.net = NormMLP(in_dim, c.units, c.layers, c)
        classes = action.classes
        if classes is None:
            self.mean = dense(self.net.out_dim, action.size, scale=0.01)
            self.stddev = dense(self.net.out_dim, action.size, scale=0.01)
            self.dim = action.size
        else:
            self.dim = classes if isinstance(classes, int) else sum(classes)
            self.logits = dense(self.net.out_dim, self.dim, scale=0.01)

    def forward(self, feature: Float[Tensor, "*b d"]) -> Dist:
        """Return the action distribution; log-probabilities are summed over action entries."""
        return self.dist(self.net(feature))

    def dist(self, x: Float[Tensor, "*b u"]) -> Dist:
        """Return the distribution from the last hidden layer."""
        if self.action.classes is None:
            low, high = self.config.min_std, self.config.max_std
            std = (high - low) * torch.sigmoid(self.stddev(x).float() + 2) + low
            return Gaussian(torch.tanh(self.mean(x).float()), std.log())
        logits = self.logits(x).float()
        if isinstance(self.action.classes, int):
            return Categorical(_mix(logits, self.config.unimix))
        parts = [_mix(part, self.config.unimix) for part in logits.split(self.action.classes, -1)]
        return MultiCategorical(torch.cat(parts, -1), self.action.classes)

    def shaped(self, flat: Shaped[Tensor, " ..."]) -> Shaped[Tensor, " ..."]:
        """Return sampled actions in the environment's shape."""
        if self.action.classes is None:
            return flat.unflatten(-1, self.action.shape) if len(self.action.shape) != 1 else flat
        return flat


def _mix(logits: Float[Tensor, "*b n"], unimix: float) -> Float[Tensor, "*b n"]:
    if not unimix:
        return logits
    probs = (1 - unimix) * torch.softmax(logits, -1) + unimix / logits.shape[-1]
    return probs.log()
