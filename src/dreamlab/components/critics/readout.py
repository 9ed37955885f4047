"""Meaning of a critic's outputs: a scalar, or a distribution over scalars.

Every kind decodes outputs to a scalar (`decode`), encodes a scalar as a target (`encode`), and
compares outputs with targets (`distance`). `ahead` computes the TD target from the outputs of the
next step: a scalar for most, a whole distribution for C51 and quantiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import log_softmax, mse_loss, smooth_l1_loss

from dreamlab.core.limits import Finite, Positive, Range
from dreamlab.ops.even_bins import EvenBins
from dreamlab.ops.losses import gauss_bins, project_categorical, quantile_huber

NumBins = Annotated[int, Range(2, 65_536)]


class Readout(nn.Module):
    """Meaning of the `outputs` values per prediction."""

    outputs: int

    def decode(self, out: Float[Tensor, "*b k"]) -> Float[Tensor, "*b"]:
        """Decode outputs to values."""
        raise NotImplementedError

    def encode(self, x: Float[Tensor, "*b"]) -> Float[Tensor, "*b j"]:
        """Encode values as training targets."""
        raise NotImplementedError

    def ahead(
        self, out: Float[Tensor, "*b k"], reward: Float[Tensor, "*b"], factor: Float[Tensor, "*b"]
    ) -> Float[Tensor, "*b j"]:
        """Return the TD target of a step with this reward; `out` belongs to the next step."""
        return self.encode(torch.addcmul(reward, factor, self.decode(out)))

    def distance(
        self, out: Float[Tensor, "*b k"], target: Float[Tensor, "*b j"]
    ) -> Float[Tensor, "*b"]:
        """Return the loss of outputs against an encoded target."""
        raise NotImplementedError

    def loss(self, out: Float[Tensor, "*b k"], x: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        """Return the loss of outputs against values, which receive no gradient."""
        return self.distance(out, self.encode(x.detach()))

    def priority(
        self,
        out: Float[Tensor, "*b k"],
        target: Float[Tensor, "*b j"],
        distance: Float[Tensor, "*b"],
    ) -> Float[Tensor, "*b"]:
        """Return the replay priority: the loss itself (Hessel et al. 2018)."""
        return distance


# -- numbers --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScalarConfig:
    """No options."""


class MSE(Readout):
    """A scalar output with squared error."""

    Config = ScalarConfig

    def __init__(self, config: ScalarConfig) -> None:
        super().__init__()
        self.outputs = 1

    def decode(self, out: Float[Tensor, "*b 1"]) -> Float[Tensor, "*b"]:
        return out.squeeze(-1)  # an index with an ellipsis takes three times as long

    def encode(self, x: Float[Tensor, "*b"]) -> Float[Tensor, "*b 1"]:
        return x[..., None]

    def distance(
        self, out: Float[Tensor, "*b 1"], target: Float[Tensor, "*b 1"]
    ) -> Float[Tensor, "*b"]:
        return mse_loss(out[..., 0], target[..., 0], reduction="none")

    def priority(
        self,
        out: Float[Tensor, "*b 1"],
        target: Float[Tensor, "*b 1"],
        distance: Float[Tensor, "*b"],
    ) -> Float[Tensor, "*b"]:
        """Return the absolute error."""
        return (out[..., 0] - target[..., 0]).abs()


class Huber(MSE):
    """A scalar output with Huber loss: quadratic near zero, linear beyond 1."""

    def distance(
        self, out: Float[Tensor, "*b 1"], target: Float[Tensor, "*b 1"]
    ) -> Float[Tensor, "*b"]:
        return smooth_l1_loss(out[..., 0], target[..., 0], reduction="none")


# -- probabilities of bins ------------------------------------------------------------------------


class TwoHot(Readout):
    """Logits over bins even in symlog space, with two-hot targets (TD-MPC2)."""

    Config = EvenBins
    bins: Float[Tensor, " k"]

    def __init__(self, config: EvenBins) -> None:
        super().__init__()
        self.config, self.outputs = config, config.num
        self.register_buffer("bins", config.tensor(), persistent=False)

    def decode(self, out: Float[Tensor, "*b k"]) -> Float[Tensor, "*b"]:
        return self.config.decode(out, self.bins)

    def encode(self, x: Float[Tensor, "*b"]) -> Float[Tensor, "*b k"]:
        return self.config.two_hot(x)

    def distance(
        self, out: Float[Tensor, "*b k"], target: Float[Tensor, "*b k"]
    ) -> Float[Tensor, "*b"]:
        return -(target * log_softmax(out.float(), -1)).sum(-1)

    def loss(self, out: Float[Tensor, "*b k"], x: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        """Return the cross-entropy to the two bins around each value."""
        return self.config.loss(out, x)


@dataclass(frozen=True)
class RangeConfig:
    """Range of values; those beyond it are clipped."""

    low: Finite = -10.0
    high: Finite = 10.0

    def __post_init__(self) -> None:
        if self.low >= self.high:
            raise ValueError(f"low={self.low:g} must be below high={self.high:g}")


@dataclass(frozen=True)
class HLGaussConfig(RangeConfig):
    """Farebrother et al. 2024 (arXiv:2403.03950): bin probabilities of a Gaussian."""

    bins: NumBins = 128
    sigma: Positive = 0.75
    """Standard deviation of the Gaussian in bin widths. PA-RL's code has 0.75 but divides by an
    extra square root of 2, so its effective value is 1.06: use 1.06 here.
    """


class HLGauss(Readout):
    """Logits over even bins; the target is a Gaussian around the value."""

    Config = HLGaussConfig
    edges: Float[Tensor, " j"]
    centres: Float[Tensor, " k"]

    def __init__(self, config: HLGaussConfig) -> None:
        super().__init__()
        c, self.outputs = config, config.bins
        edges = torch.linspace(c.low, c.high, c.bins + 1)
        self.sigma = c.sigma * (c.high - c.low) / c.bins
        self.register_buffer("edges", edges, persistent=False)
        self.register_buffer("centres", (edges[1:] + edges[:-1]) / 2, persistent=False)

    def decode(self, out: Float[Tensor, "*b k"]) -> Float[Tensor, "*b"]:
        return (out.float().softmax(-1) * self.centres).sum(-1)

    def encode(self, x: Float[Tensor, "*b"]) -> Float[Tensor, "*b k"]:
        return gauss_bins(x, self.edges, self.sigma)

    def distance(
        self, out: Float[Tensor, "*b k"], target: Float[Tensor, "*b k"]
    ) -> Float[Tensor, "*b"]:
        return -(target * log_softmax(out.float(), -1)).sum(-1)


@dataclass(frozen=True)
class C51Config(RangeConfig):
    """A return distribution over evenly spaced atoms."""

    atoms: NumBins = 51


class C51(Readout):
    """Logits over atoms (Bellemare et al. 2017); TD targets are projected onto them."""

    Config = C51Config
    support: Float[Tensor, " k"]

    def __init__(self, config: C51Config) -> None:
        super().__init__()
        self.outputs = config.atoms
        self.register_buffer("support", torch.linspace(config.low, config.high, config.atoms))

    def decode(self, out: Float[Tensor, "*b k"]) -> Float[Tensor, "*b"]:
        return (out.softmax(-1) * self.support).sum(-1)

    def encode(self, x: Float[Tensor, "*b"]) -> Float[Tensor, "*b k"]:
        return project_categorical(self.support, x[..., None], torch.ones_like(x)[..., None])

    def ahead(
        self, out: Float[Tensor, "*b k"], reward: Float[Tensor, "*b"], factor: Float[Tensor, "*b"]
    ) -> Float[Tensor, "*b k"]:
        """Return the projected distribution of reward plus discounted return."""
        atoms = reward[..., None] + factor[..., None] * self.support
        return project_categorical(self.support, atoms, out.softmax(-1))

    def distance(
        self, out: Float[Tensor, "*b k"], target: Float[Tensor, "*b k"]
    ) -> Float[Tensor, "*b"]:
        """Return the KL divergence between target and prediction.

        It is the cross-entropy minus a constant: a perfect prediction has loss and priority 0.
        """
        surprise = torch.xlogy(target, target) - target * log_softmax(out, -1)
        return surprise.sum(-1)


# -- quantiles ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class QuantileConfig:
    """Dabney et al. 2018 (arXiv:1710.10044)."""

    quantiles: Annotated[int, Range(1, 65_536)] = 32
    kappa: Positive = 1.0
    """Threshold of the Huber loss."""


class Quantile(Readout):
    """Quantiles of the return; a TD target shifts and scales all of them."""

    Config = QuantileConfig
    levels: Float[Tensor, " k"]

    def __init__(self, config: QuantileConfig) -> None:
        super().__init__()
        self.outputs, self.kappa = config.quantiles, config.kappa
        levels = (2 * torch.arange(config.quantiles) + 1) / (2 * config.quantiles)
        self.register_buffer("levels", levels, persistent=False)

    def decode(self, out: Float[Tensor, "*b k"]) -> Float[Tensor, "*b"]:
        return out.mean(-1)

    def encode(self, x: Float[Tensor, "*b"]) -> Float[Tensor, "*b 1"]:
        return x[..., None]

    def ahead(
        self, out: Float[Tensor, "*b k"], reward: Float[Tensor, "*b"], factor: Float[Tensor, "*b"]
    ) -> Float[Tensor, "*b k"]:
        """Return samples of reward plus discounted return, one per quantile."""
        return reward[..., None] + factor[..., None] * out

    def distance(
        self, out: Float[Tensor, "*b k"], target: Float[Tensor, "*b j"]
    ) -> Float[Tensor, "*b"]:
        return quantile_huber(out, target, self.levels, self.kappa)
