"""Planners: batched searches for the action sequence with the highest score.

All of them share one protocol: `start` a search, `ask` it for candidates, `tell` it their scores;
`search` is the loop around these. Planners are stateless: the state of a search is its `Plan`, so a
search can continue from the last one (`shifted`), or include plans proposed by a policy. Actions
are in [-1, 1].
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from dreamlab.accel import mppi
from dreamlab.accel.dispatch import use_triton
from dreamlab.core.limits import NonNegative, Positive, PositiveInt

PLANNERS = __name__
"""Module in which `_target_` looks up planners."""
Plans = Float[Tensor, "b h a"]
"""One plan for each of b problems: h actions of size a."""
Candidates = Float[Tensor, "b n h a"]
Scores = Float[Tensor, "b n"]
Noise = Float[Tensor, "#b n h a"]
Score = Callable[[Candidates], Scores]
"""Maps candidates of b problems to scores; higher is better."""


@dataclass(frozen=True)
class PlannerConfig:
    """Options shared by all planners."""

    horizon: PositiveInt
    """Planning horizon in steps."""
    iterations: PositiveInt
    samples: PositiveInt
    """Candidates scored per iteration, including proposed ones."""
    elites: PositiveInt
    """Number of best candidates from which the next ones are sampled."""
    std: Positive
    """Initial standard deviation of the candidates."""

    def __post_init__(self) -> None:
        if self.elites > self.samples:
            raise ValueError(f"elites={self.elites} must not exceed samples={self.samples}")


@dataclass(frozen=True)
class Plan:
    """State of a search: its sampling distribution, and the elites of the last iteration."""

    mean: Float[Tensor, "b h a"]
    """The plan as a single action sequence."""
    std: Float[Tensor, "b h a"]
    elites: Float[Tensor, "b e h a"]
    score: Float[Tensor, "b e"]
    weight: Float[Tensor, "b e"]
    """Weight of each elite in the mean; they sum to 1."""


C = TypeVar("C", bound=PlannerConfig)
P = TypeVar("P", bound=Plan)


class Planner(ABC, Generic[C, P]):
    """A search over plans [b, n, h, a], deterministic given the noise."""

    Config: Any

    def __init__(self, config: C) -> None:
        self.config = config

    @abstractmethod
    def start(self, mean: Plans, std: Plans) -> P:
        """Return the state of a search before any scores."""

    @abstractmethod
    def ask(self, plan: P, noise: Noise) -> Candidates:
        """Return candidates in [-1, 1] from standard normal noise."""

    @abstractmethod
    def tell(self, plan: P, candidates: Candidates, score: Scores) -> P:
        """Update the search with the scores of its candidates."""

    def zeros(self, like: Float[Tensor, "b a"]) -> Float[Tensor, "b h a"]:
        """Return the zero plan with the batch, width, dtype and device of `like`."""
        b, a = like.shape  # `len` would be a constant in an exported plan
        return like.new_zeros(b, self.config.horizon, a)

    def fixed_noise(self, dim: int) -> Float[Tensor, "iterations 1 samples h {dim}"]:
        """Return noise that is the same at every call, for a deterministic search."""
        c = self.config
        shape = (c.iterations, 1, c.samples, c.horizon, dim)
        return torch.randn(shape, generator=torch.Generator().manual_seed(0))

    @torch.no_grad()
    def search(
        self,
        score: Score,
        mean: Float[Tensor, "b h a"],
        std: Float[Tensor, "b h a"] | None = None,
        proposed: Float[Tensor, "b k h a"] | None = None,
        noise: Float[Tensor, "iterations b_or_1 samples h a"] | None = None,
    ) -> P:
        """Run all iterations and return the final state of the search.

        The search starts at `mean` with deviation `std`, by default the config's. The `proposed`
        plans (of a policy) are among the candidates of every iteration. A given `noise` makes it
        deterministic.
        """
        c = self.config
        plan = self.start(mean, torch.full_like(mean, c.std) if std is None else std)
        num = c.samples - (0 if proposed is None else proposed.shape[1])
        assert num > 0, "more plans are proposed than are scored"
        for i in range(c.iterations):
            drawn = _noise(mean, num) if noise is None else noise[i, :, :num]
            candidates = self.ask(plan, drawn)
            if proposed is not None:
                candidates = torch.cat([proposed, candidates], 1)
            plan = self.tell(plan, candidates, score(candidates))
        return plan


def shifted(mean: Float[Tensor, "b h a"]) -> Float[Tensor, "b h a"]:
    """Drop the first action of a plan, to start the next search from the rest."""
    return torch.cat([mean[:, 1:], torch.zeros_like(mean[:, :1])], 1)


def _noise(mean: Plans, num: int) -> Candidates:
    b, h, a = mean.shape
    return torch.randn(b, num, h, a, device=mean.device, dtype=mean.dtype)


def draw(
    mean: Float[Tensor, "b h a"], std: Float[Tensor, "b h a"], noise: Float[Tensor, "#b n h a"]
) -> Float[Tensor, "b n h a"]:
    """Sample candidates from Gaussians, clipped to [-1, 1]."""
    return torch.addcmul(mean[:, None], std[:, None], noise).clamp_(-1, 1)


def best(
    candidates: Float[Tensor, "b n h a"], score: Float[Tensor, "b n"], num: int, order: bool = False
) -> tuple[Float[Tensor, "b e h a"], Float[Tensor, "b e"]]:
    """Return the candidates with the highest scores, and the scores; sorted if `order`."""
    top = score.topk(num, 1, sorted=order)
    index = top.indices[..., None, None].expand(-1, -1, *candidates.shape[2:])
    return candidates.gather(1, index), top.values


def _unknown(mean: Plans, std: Plans, num: int) -> Plan:
    """Return a plan without scored candidates."""
    elites = mean[:, None].expand(-1, num, -1, -1)
    score = torch.full_like(elites[:, :, 0, 0], -math.inf)
    return Plan(mean, std, elites, score, torch.full_like(score, 1 / num))


# -- the cross-entropy method ---------------------------------------------------------------------


@dataclass(frozen=True)
class CEMConfig(PlannerConfig):
    """PlaNet's hyperparameters (Hafner et al. 2019, arXiv:1811.04551)."""

    horizon: PositiveInt = 12
    iterations: PositiveInt = 10
    samples: PositiveInt = 1000
    elites: PositiveInt = 100
    std: Positive = 1.0


class CEM(Planner[CEMConfig, Plan]):
    """The cross-entropy method: sample from a Gaussian fitted to the last elites."""

    Config = CEMConfig

    def start(self, mean: Plans, std: Plans) -> Plan:
        return _unknown(mean, std, self.config.elites)

    def ask(self, plan: Plan, noise: Noise) -> Candidates:
        return draw(plan.mean, plan.std, noise)

    def tell(self, plan: Plan, candidates: Candidates, score: Scores) -> Plan:
        elites, score = best(candidates, score, self.config.elites)
        var, mean = torch.var_mean(elites, 1, correction=0)
        return Plan(mean, torch.sqrt(var + 1e-6), elites, score, plan.weight)


# -- model-predictive path integrals --------------------------------------------------------------


@dataclass(frozen=True)
class MPPIConfig(PlannerConfig):
    """Hyperparameters of TD-MPC2 (Hansen et al. 2024, arXiv:2310.16828)."""

    horizon: PositiveInt = 3
    iterations: PositiveInt = 6
    samples: PositiveInt = 512
    elites: PositiveInt = 64
    """Number of best candidates that are averaged; `samples` averages all."""
    std: Positive = 2.0
    temperature: NonNegative = 0.5
    """Inverse temperature of the elite weights: exp(temperature * score)."""
    min_std: Positive = 0.05
    max_std: Positive = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_std > self.max_std:
            raise ValueError(f"min_std={self.min_std:g} must not exceed max_std={self.max_std:g}")


class MPPI(Planner[MPPIConfig, Plan]):
    """Sample around the last elites, averaged with weights that grow with their scores."""

    Config = MPPIConfig

    def start(self, mean: Plans, std: Plans) -> Plan:
        return _unknown(mean, std, self.config.elites)

    def ask(self, plan: Plan, noise: Noise) -> Candidates:
        return draw(plan.mean, plan.std, noise)

    def tell(self, plan: Plan, candidates: Candidates, score: Scores) -> Plan:
        c = self.config
        if use_triton(score) and mppi.fits(candidates):
            bounds = (c.temperature, c.min_std, c.max_std)
            return Plan(*mppi.tell(candidates.contiguous(), score.contiguous(), c.elites, *bounds))
        elites, score = best(candidates, score, c.elites)
        weight = F.softmax(c.temperature * score, 1)
        mean = _weighted(elites, weight)
        var = _weighted((elites - mean[:, None]).square(), weight)
        return Plan(mean, var.sqrt().clamp(c.min_std, c.max_std), elites, score, weight)


def _weighted(x: Float[Tensor, "b e h a"], weight: Float[Tensor, "b e"]) -> Float[Tensor, "b h a"]:
    return (weight[..., None, None] * x).sum(1)


# -- random shooting ------------------------------------------------------------------------------


@dataclass(frozen=True)
class RandomShootingConfig(PlannerConfig):
    """A single iteration whose best candidate is the plan."""

    horizon: PositiveInt = 12
    iterations: PositiveInt = 1
    """More iterations need less memory than more samples; the best of all iterations wins."""
    samples: PositiveInt = 1000
    elites: PositiveInt = 1
    """Number of best candidates to keep."""
    std: Positive = 3**-0.5
    """Standard deviation of the uniform candidates; the default covers all of [-1, 1]."""


@dataclass(frozen=True)
class Shots(Plan):
    """The best candidates so far, and the center of the sampling range."""

    centre: Float[Tensor, "b h a"]


class RandomShooting(Planner[RandomShootingConfig, Shots]):
    """Sample uniform candidates, independent of earlier scores, and keep the best."""

    Config = RandomShootingConfig

    def start(self, mean: Plans, std: Plans) -> Shots:
        plan = _unknown(mean, std, self.config.elites)
        only = torch.zeros_like(plan.weight)
        only[:, 0] = 1
        return Shots(mean, std, plan.elites, plan.score, only, mean)

    def ask(self, plan: Shots, noise: Noise) -> Candidates:
        return draw(plan.centre, 3**0.5 * plan.std, torch.erf(noise / 2**0.5))

    def tell(self, plan: Shots, candidates: Candidates, score: Scores) -> Shots:
        known, scores = torch.cat([plan.elites, candidates], 1), torch.cat([plan.score, score], 1)
        elites, score = best(known, scores, self.config.elites, order=True)
        return replace(plan, mean=elites[:, 0], elites=elites, score=score)


# -- evolution of a covariance --------------------------------------------------------------------


@dataclass(frozen=True)
class CMAESConfig(PlannerConfig):
    """Half of the candidates are parents, as in Hansen's tutorial (arXiv:1604.00772)."""

    horizon: PositiveInt = 12
    iterations: PositiveInt = 20
    samples: PositiveInt = 64
    elites: PositiveInt = 32
    """Number of parents; better ones have larger weights."""
    std: Positive = 0.5


@dataclass(frozen=True)
class Evolution(Plan):
    """Steps are `sigma` times Gaussians of covariance `cov`, over the d = h a entries of a plan."""

    sigma: Float[Tensor, " b"]
    cov: Float[Tensor, "b d d"]
    root: Float[Tensor, "b d d"]
    """Square root of `cov`, and its inverse."""
    inverse: Float[Tensor, "b d d"]
    path_sigma: Float[Tensor, "b d"]
    """Evolution path: decaying sum of mean steps; a long path increases the step size."""
    path_cov: Float[Tensor, "b d"]
    calm: Float[Tensor, " b"]
    """0 where steps grow too fast to adapt the covariance path."""
    told: int


class Rates:
    """Learning rates from dimension and number of parents (table 1 of the tutorial)."""

    def __init__(self, dim: int, parents: int) -> None:
        raw = [math.log(parents + 0.5) - math.log(i) for i in range(1, parents + 1)]
        self.weights = [w / sum(raw) for w in raw]
        mu = 1 / sum(w * w for w in self.weights)  # effective number of parents
        self.sigma = (mu + 2) / (dim + mu + 5)
        self.damping = 1 + 2 * max(0.0, math.sqrt((mu - 1) / (dim + 1)) - 1) + self.sigma
        self.path = (4 + mu / dim) / (dim + 4 + 2 * mu / dim)
        self.one = 2 / ((dim + 1.3) ** 2 + mu)
        self.many = min(1 - self.one, 2 * (mu - 2 + 1 / mu) / ((dim + 2) ** 2 + mu))
        self.into_sigma = math.sqrt(self.sigma * (2 - self.sigma) * mu)
        self.into_path = math.sqrt(self.path * (2 - self.path) * mu)
        # expected norm of a standard normal vector
        self.length = math.sqrt(dim) * (1 - 1 / (4 * dim) + 1 / (21 * dim**2))
        self.longest = (1.4 + 2 / (dim + 1)) * self.length


class CMAES(Planner[CMAESConfig, Evolution]):
    """CMA-ES: adapts the covariance of steps; one d x d eigendecomposition per iteration.

    Candidates are clipped, and the update uses the clipped ones.
    """

    Config = CMAESConfig

    def rates(self, mean: Plans) -> Rates:
        return Rates(mean[0].numel(), self.config.elites)

    def start(self, mean: Plans, std: Plans) -> Evolution:
        plan, flat = _unknown(mean, std, self.config.elites), std.flatten(1)
        zeros = torch.zeros_like(flat)
        return Evolution(
            mean, std, plan.elites, plan.score,
            weight=mean.new_tensor(self.rates(mean).weights).expand_as(plan.score),
            sigma=torch.ones_like(flat[:, 0]), cov=torch.diag_embed(flat.square()),
            root=torch.diag_embed(flat), inverse=torch.diag_embed(1 / flat),
            path_sigma=zeros, path_cov=zeros, calm=torch.ones_like(flat[:, 0]), told=0,
        )  # fmt: skip

    def ask(self, plan: Evolution, noise: Noise) -> Candidates:
        step = noise.flatten(2) @ plan.root  # symmetric
        step = (plan.sigma[:, None, None] * step).unflatten(-1, noise.shape[2:])
        return (plan.mean[:, None] + step).clamp(-1, 1)

    def tell(self, plan: Evolution, candidates: Candidates, score: Scores) -> Evolution:
        elites, score = best(candidates, score, self.config.elites, order=True)
        rates = self.rates(plan.mean)
        steps = (elites - plan.mean[:, None]).flatten(2) / plan.sigma[:, None, None]
        plan = _adapted(_moved(plan, steps, rates), steps, rates)
        std = plan.sigma[:, None] * plan.cov.diagonal(dim1=1, dim2=2).sqrt()
        mean = _weighted(elites, plan.weight)
        return replace(plan, mean=mean, std=std.view_as(mean), elites=elites, score=score)


def _moved(plan: Evolution, steps: Float[Tensor, "b e d"], r: Rates) -> Evolution:
    """Update the evolution paths and the step size."""
    step = (plan.weight[..., None] * steps).sum(1)
    straight = (plan.inverse @ step[..., None])[..., 0]
    path = (1 - r.sigma) * plan.path_sigma + r.into_sigma * straight
    told, length = plan.told + 1, path.norm(dim=-1)
    # while steps grow fast, do not update the covariance path
    calm = (length / math.sqrt(1 - (1 - r.sigma) ** (2 * told)) < r.longest).to(path.dtype)
    path_cov = (1 - r.path) * plan.path_cov + calm[:, None] * r.into_path * step
    sigma = plan.sigma * (r.sigma / r.damping * (length / r.length - 1)).exp()
    return replace(plan, path_sigma=path, path_cov=path_cov, sigma=sigma, told=told, calm=calm)


def _adapted(plan: Evolution, steps: Float[Tensor, "b e d"], r: Rates) -> Evolution:
    """Update the covariance from its path and the parents' steps."""
    waited = r.one * r.path * (2 - r.path) * (1 - plan.calm)
    kept = (1 - r.one - r.many + waited)[:, None, None] * plan.cov
    one = plan.path_cov[:, :, None] * plan.path_cov[:, None]
    many = steps.transpose(1, 2) @ (plan.weight[..., None] * steps)
    values, vectors = torch.linalg.eigh(kept + r.one * one + r.many * many)
    values = values.clamp(min=1e-10)
    cov, root, inverse = (
        (vectors * v[:, None]) @ vectors.transpose(1, 2)
        for v in (values, values.sqrt(), values.rsqrt())
    )
    return replace(plan, cov=cov, root=root, inverse=inverse)


PARTS = {
    "cem": f"{__name__}.CEM",
    "mppi": f"{__name__}.MPPI",
    "random_shooting": f"{__name__}.RandomShooting",
    "cma_es": f"{__name__}.CMAES",
}
