"""Planners: searches for the sequence of actions that scores best, for many problems at once.

All of them speak one protocol: `start` a search, `ask` it for candidates, `tell` it their scores;
`search` is the loop around these. They hold no state of their own: what a search knows is its
`Plan`, so that one can start where the last one ended (`shifted`), or be helped by plans that
another process proposes. Actions are in [-1, 1].
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

from dreamlab.core.limits import NonNegative, Positive, PositiveInt

PLANNERS = __name__
"""Where a `_target_` finds them."""
Plans = Float[Tensor, "b h a"]
"""One for each of b problems: h actions of a numbers."""
Candidates = Float[Tensor, "b n h a"]
Scores = Float[Tensor, "b n"]
Noise = Float[Tensor, "#b n h a"]
Score = Callable[[Candidates], Scores]
"""Candidates of b problems to how good each is; more is better."""


@dataclass(frozen=True)
class PlannerConfig:
    """Options that all planners share; each has its own besides."""

    horizon: PositiveInt
    """Steps that are planned ahead."""
    iterations: PositiveInt
    samples: PositiveInt
    """Candidates scored in each iteration, those that were proposed among them."""
    elites: PositiveInt
    """The best candidates, from which the next ones are made."""
    std: Positive
    """Deviation of the first candidates around the first mean."""

    def __post_init__(self) -> None:
        if self.elites > self.samples:
            raise ValueError(f"elites={self.elites} must not exceed samples={self.samples}")


@dataclass(frozen=True)
class Plan:
    """What a search knows: where it would draw next, and the best candidates of the last round."""

    mean: Float[Tensor, "b h a"]
    """The plan, if one must be named."""
    std: Float[Tensor, "b h a"]
    elites: Float[Tensor, "b e h a"]
    score: Float[Tensor, "b e"]
    weight: Float[Tensor, "b e"]
    """How much each elite counts in the mean; they sum to 1."""


C = TypeVar("C", bound=PlannerConfig)
P = TypeVar("P", bound=Plan)


class Planner(ABC, Generic[C, P]):
    """A search over plans [b, n, h, a]; it is given noise or draws it, and computes the rest."""

    Config: Any

    def __init__(self, config: C) -> None:
        self.config = config

    @abstractmethod
    def start(self, mean: Plans, std: Plans) -> P:
        """Return what is known before anything was scored."""

    @abstractmethod
    def ask(self, plan: P, noise: Noise) -> Candidates:
        """Return candidates in [-1, 1] made of standard normal noise."""

    @abstractmethod
    def tell(self, plan: P, candidates: Candidates, score: Scores) -> P:
        """Return what is known once the candidates have their scores."""

    def zeros(self, like: Float[Tensor, "b a"]) -> Float[Tensor, "b h a"]:
        """Return the plan to do nothing; `like` lends its batch, width, type and device."""
        b, a = like.shape  # `len` would be a constant of an exported plan
        return like.new_zeros(b, self.config.horizon, a)

    def fixed_noise(self, dim: int) -> Float[Tensor, "iterations 1 samples h {dim}"]:
        """Return noise that is the same at every call: for a search without chance."""
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
        """Return what is known of each problem's best plan after the last iteration.

        A search starts at `mean` with this deviation, by default the config's. The plans proposed
        (a policy's) are among the candidates of every iteration. `noise` takes chance out of it.
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
    """Return what is left of a plan once its first action was done: the start of the next one."""
    return torch.cat([mean[:, 1:], torch.zeros_like(mean[:, :1])], 1)


def _noise(mean: Plans, num: int) -> Candidates:
    b, h, a = mean.shape
    return torch.randn(b, num, h, a, device=mean.device, dtype=mean.dtype)


def draw(
    mean: Float[Tensor, "b h a"], std: Float[Tensor, "b h a"], noise: Float[Tensor, "#b n h a"]
) -> Float[Tensor, "b n h a"]:
    """Return candidates from normals, clipped to [-1, 1]."""
    return torch.addcmul(mean[:, None], std[:, None], noise).clamp_(-1, 1)


def best(
    candidates: Float[Tensor, "b n h a"], score: Float[Tensor, "b n"], num: int, order: bool = False
) -> tuple[Float[Tensor, "b e h a"], Float[Tensor, "b e"]]:
    """Return the candidates with the highest scores, and these; the best first if `order`."""
    top = score.topk(num, 1, sorted=order)
    index = top.indices[..., None, None].expand(-1, -1, *candidates.shape[2:])
    return candidates.gather(1, index), top.values


def _unknown(mean: Plans, std: Plans, num: int) -> Plan:
    """Return a plan of which no candidate was scored yet."""
    elites = mean[:, None].expand(-1, num, -1, -1)
    score = torch.full_like(elites[:, :, 0, 0], -math.inf)
    return Plan(mean, std, elites, score, torch.full_like(score, 1 / num))


# -- the cross-entropy method ---------------------------------------------------------------------


@dataclass(frozen=True)
class CEMConfig(PlannerConfig):
    """PlaNet's numbers (Hafner et al. 2019, arXiv:1811.04551)."""

    horizon: PositiveInt = 12
    iterations: PositiveInt = 10
    samples: PositiveInt = 1000
    elites: PositiveInt = 100
    std: Positive = 1.0


class CEM(Planner[CEMConfig, Plan]):
    """The cross-entropy method: draw from a normal that is fitted to the best of the last draw."""

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
    """The numbers of TD-MPC2 (Hansen et al. 2024, arXiv:2310.16828)."""

    horizon: PositiveInt = 3
    iterations: PositiveInt = 6
    samples: PositiveInt = 512
    elites: PositiveInt = 64
    """The best candidates, which are averaged; as many as `samples` averages all."""
    std: Positive = 2.0
    temperature: NonNegative = 0.5
    """How much more a better elite counts: its weight is exp(temperature * score)."""
    min_std: Positive = 0.05
    max_std: Positive = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_std > self.max_std:
            raise ValueError(f"min_std={self.min_std:g} must not exceed max_std={self.max_std:g}")


class MPPI(Planner[MPPIConfig, Plan]):
    """Draw the next candidates around the best of the last, averaged by how good they are."""

    Config = MPPIConfig

    def start(self, mean: Plans, std: Plans) -> Plan:
        return _unknown(mean, std, self.config.elites)

    def ask(self, plan: Plan, noise: Noise) -> Candidates:
        return draw(plan.mean, plan.std, noise)

    def tell(self, plan: Plan, candidates: Candidates, score: Scores) -> Plan:
        c = self.config
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
    """One round, of which the best candidate is the plan."""

    horizon: PositiveInt = 12
    iterations: PositiveInt = 1
    """More rounds need less memory than as many more samples; the best of all rounds wins."""
    samples: PositiveInt = 1000
    elites: PositiveInt = 1
    """The best candidates that are kept."""
    std: Positive = 3**-0.5
    """Deviation of the candidates, which are uniform: with this one, over all of [-1, 1]."""


@dataclass(frozen=True)
class Shots(Plan):
    """The best so far, and the middle of what is drawn."""

    centre: Float[Tensor, "b h a"]


class RandomShooting(Planner[RandomShootingConfig, Shots]):
    """Try uniform candidates, none of which depends on what others scored, and keep the best."""

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
    """The parents; better ones count more."""
    std: Positive = 0.5


@dataclass(frozen=True)
class Evolution(Plan):
    """Steps are `sigma` times normals of covariance `cov`, over the d = h a numbers of a plan."""

    sigma: Float[Tensor, " b"]
    cov: Float[Tensor, "b d d"]
    root: Float[Tensor, "b d d"]
    """The root of `cov`, and its inverse."""
    inverse: Float[Tensor, "b d d"]
    path_sigma: Float[Tensor, "b d"]
    """Steps of the mean summed, fading: a long path calls for larger steps."""
    path_cov: Float[Tensor, "b d"]
    calm: Float[Tensor, " b"]
    """0 where the steps grow too fast to learn their direction."""
    told: int


class Rates:
    """How fast an evolution learns, from its dimension and parents (table 1 of the tutorial)."""

    def __init__(self, dim: int, parents: int) -> None:
        raw = [math.log(parents + 0.5) - math.log(i) for i in range(1, parents + 1)]
        self.weights = [w / sum(raw) for w in raw]
        mu = 1 / sum(w * w for w in self.weights)  # as many equal parents would vary as much
        self.sigma = (mu + 2) / (dim + mu + 5)
        self.damping = 1 + 2 * max(0.0, math.sqrt((mu - 1) / (dim + 1)) - 1) + self.sigma
        self.path = (4 + mu / dim) / (dim + 4 + 2 * mu / dim)
        self.one = 2 / ((dim + 1.3) ** 2 + mu)
        self.many = min(1 - self.one, 2 * (mu - 2 + 1 / mu) / ((dim + 2) ** 2 + mu))
        self.into_sigma = math.sqrt(self.sigma * (2 - self.sigma) * mu)
        self.into_path = math.sqrt(self.path * (2 - self.path) * mu)
        # how long a vector of standard normals is on average
        self.length = math.sqrt(dim) * (1 - 1 / (4 * dim) + 1 / (21 * dim**2))
        self.longest = (1.4 + 2 / (dim + 1)) * self.length


class CMAES(Planner[CMAESConfig, Evolution]):
    """Learn the covariance of good steps; it costs an eigendecomposition of d x d per iteration.

    Candidates are clipped, and it is the clipped ones that it learns from.
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
        step = noise.flatten(2) @ plan.root  # it is symmetric
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
    """Return the evolution with longer paths, and step sizes adapted to them."""
    step = (plan.weight[..., None] * steps).sum(1)
    straight = (plan.inverse @ step[..., None])[..., 0]
    path = (1 - r.sigma) * plan.path_sigma + r.into_sigma * straight
    told, length = plan.told + 1, path.norm(dim=-1)
    # while steps grow fast, the path of the covariance waits
    calm = (length / math.sqrt(1 - (1 - r.sigma) ** (2 * told)) < r.longest).to(path.dtype)
    path_cov = (1 - r.path) * plan.path_cov + calm[:, None] * r.into_path * step
    sigma = plan.sigma * (r.sigma / r.damping * (length / r.length - 1)).exp()
    return replace(plan, path_sigma=path, path_cov=path_cov, sigma=sigma, told=told, calm=calm)


def _adapted(plan: Evolution, steps: Float[Tensor, "b e d"], r: Rates) -> Evolution:
    """Return the evolution with the covariance of its path and of its parents' steps."""
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
