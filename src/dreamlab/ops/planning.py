"""Planners: searches for the sequence of actions that scores best, for many problems at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dreamlab.core.limits import Positive, PositiveInt

Score = Callable[[Float[Tensor, "b n h a"]], Float[Tensor, "b n"]]
"""Candidates of b problems to how good each is."""


@dataclass(frozen=True)
class CEMConfig:
    """The cross-entropy method with PlaNet's numbers."""

    horizon: PositiveInt = 12
    """Steps that are planned ahead."""
    iterations: PositiveInt = 10
    samples: PositiveInt = 1000
    """Candidates drawn in each iteration."""
    elites: PositiveInt = 100
    """The best candidates, from which the next ones are drawn."""
    std: Positive = 1.0
    """Deviation of the first candidates around zero."""

    def __post_init__(self) -> None:
        if self.elites > self.samples:
            raise ValueError(f"elites={self.elites} must not exceed samples={self.samples}")


def fixed_noise(config: CEMConfig, dim: int) -> Float[Tensor, "iterations 1 samples h {dim}"]:
    """Return standard normal noise that is the same at every call: for a search without chance."""
    shape = (config.iterations, 1, config.samples, config.horizon, dim)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def draw(
    mean: Float[Tensor, "b h a"],
    std: Float[Tensor, "b h a"],
    num: int,
    noise: Float[Tensor, "1 num h a"] | None = None,
) -> Float[Tensor, "b num h a"]:
    """Return candidates from normals, clipped to [-1, 1]; `noise` takes chance out of it."""
    b, h, a = mean.shape
    if noise is None:
        noise = torch.randn(b, num, h, a, device=mean.device, dtype=mean.dtype)
    return torch.addcmul(mean[:, None], std[:, None], noise).clamp_(-1, 1)


def refit(
    candidates: Float[Tensor, "b n h a"], score: Float[Tensor, "b n"], elites: int
) -> tuple[Float[Tensor, "b h a"], Float[Tensor, "b h a"]]:
    """Return the mean and deviation of each problem's best candidates."""
    best = score.topk(elites, 1, sorted=False).indices
    chosen = candidates.gather(1, best[..., None, None].expand(-1, -1, *candidates.shape[2:]))
    var, mean = torch.var_mean(chosen, 1, correction=0)
    return mean, torch.sqrt(var + 1e-6)


@torch.no_grad()
def cem(
    config: CEMConfig,
    score: Score,
    like: Float[Tensor, "b a"],
    noise: Float[Tensor, "iterations 1 samples h a"] | None = None,
) -> Float[Tensor, "b h a"]:
    """Return the mean plan of each problem after the last iteration.

    Every search starts from zero; `like` lends its batch, width, type and device.
    """
    b, a = like.shape
    mean = like.new_zeros(b, config.horizon, a)
    std = torch.full_like(mean, config.std)
    for i in range(config.iterations):
        candidates = draw(mean, std, config.samples, None if noise is None else noise[i])
        mean, std = refit(candidates, score(candidates), config.elites)
    return mean
