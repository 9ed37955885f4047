"""Estimators of returns, selected by `_target_`: value targets computed from a path.

A path is real (with episode ends and a constant discount) or imagined (with predicted discounts).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dreamlab.core.limits import PositiveInt, Share
from dreamlab.ops.returns import generalised_advantage, lambda_return

ESTIMATORS = __name__
"""Module in which `_target_` looks up estimators."""


@dataclass(frozen=True)
class Path:
    """Steps [b, t]; only the value of the last one is used.

    step       0     1     2     3 = t-1
    value      v0    v1    v2    v3        value of the state at that step
    reward     -     r1    r2    r3        received on arriving there
    cont       -     c1    c2    c3        0 if the episode terminated on arrival, else 1, or
                                           anything between; it is multiplied with gamma
    is_last    -     e1    e2    e3        whether the episode ended there, for any reason
    """

    reward: Float[Tensor, "b t"]
    cont: Float[Tensor, "b t"]
    value: Float[Tensor, "b t"]
    gamma: float = 1.0
    is_last: Bool[Tensor, "b t"] | None = None
    """None if episodes never end, as in dreams."""

    @property
    def discount(self) -> Float[Tensor, "b t"]:
        return self.cont if self.gamma == 1.0 else self.gamma * self.cont

    @property
    def same(self) -> Float[Tensor, "b t"]:
        """Return 0 for steps at which an episode ended: the next step is of another one."""
        ones = torch.ones_like(self.value)
        return ones if self.is_last is None else (~self.is_last).to(ones.dtype)


class ReturnEstimator(ABC):
    """Estimates the returns of every step but the last of a path [b, n + 1]."""

    Config: Any

    @abstractmethod
    def returns(self, path: Path) -> Float[Tensor, "b n"]:
        """Compute the value targets; undefined for steps at which an episode ended."""

    def advantages(self, path: Path) -> Float[Tensor, "b n"]:
        """Compute the advantages; 0 where an episode ended."""
        return (self.returns(path) - path.value[:, :-1]) * path.same[:, :-1]

    def both(self, path: Path) -> tuple[Float[Tensor, "b n"], Float[Tensor, "b n"]]:
        """Compute advantages and the matching returns."""
        advantage = self.advantages(path)
        return advantage, advantage + path.value[:, :-1]


@dataclass(frozen=True)
class LambdaReturnConfig:
    """Trade-off between bootstrapping and observed rewards."""

    lam: Share = 0.95
    """0: one step; 1: Monte Carlo."""


class LambdaReturn(ReturnEstimator):
    """The exponentially weighted mean of n-step returns, with decay `lam`."""

    Config = LambdaReturnConfig

    def __init__(self, config: LambdaReturnConfig) -> None:
        self.lam = config.lam

    def returns(self, path: Path) -> Float[Tensor, "b n"]:
        lam = self.lam if path.is_last is None else self.lam * path.same
        return lambda_return(path.reward, path.discount, path.value, lam)


class GAE(LambdaReturn):
    """The same return, with advantages computed as a sum of TD errors."""

    def advantages(self, path: Path) -> Float[Tensor, "b n"]:
        p = path
        return generalised_advantage(p.reward, p.value, p.cont, p.same, p.gamma, self.lam)

    def returns(self, path: Path) -> Float[Tensor, "b n"]:
        return self.advantages(path) + path.value[:, :-1]


@dataclass(frozen=True)
class NStepConfig:
    """Number of steps before bootstrapping."""

    n: PositiveInt = 5


class NStep(ReturnEstimator):
    """Rewards of up to `n` steps within the episode and the path, then a value."""

    Config = NStepConfig

    def __init__(self, config: NStepConfig) -> None:
        self.n = config.n

    def returns(self, path: Path) -> Float[Tensor, "b n"]:
        discount, value, same = path.discount[:, 1:], path.value, path.same[:, 1:]
        ahead = value
        for _ in range(min(self.n, value.shape[1] - 1)):
            rest = torch.where(same > 0, ahead[:, 1:], value[:, 1:])
            ahead = torch.cat([path.reward[:, 1:] + discount * rest, value[:, -1:]], 1)
        return ahead[:, :-1]


@dataclass(frozen=True)
class MonteCarloConfig:
    """No options."""


class MonteCarlo(LambdaReturn):
    """All rewards until the episode ends; bootstraps only where the path is cut off."""

    Config = MonteCarloConfig

    def __init__(self, config: MonteCarloConfig) -> None:
        self.lam = 1.0


PARTS = {
    "gae": f"{__name__}.GAE",
    "lambda_return": f"{__name__}.LambdaReturn",
    "monte_carlo": f"{__name__}.MonteCarlo",
    "n_step": f"{__name__}.NStep",
}
