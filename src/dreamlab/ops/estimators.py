"""Estimators of returns, of which a `_target_` chooses one: what values should be, from a path.

A path is lived (its episodes end, its discount is a number) or dreamt (its discount is predicted).
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
"""Where a `_target_` finds them."""


@dataclass(frozen=True)
class Path:
    """Steps [b, t]; the last is only looked at for its value.

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
    """None: it never does, as in dreams."""

    @property
    def discount(self) -> Float[Tensor, "b t"]:
        return self.cont if self.gamma == 1.0 else self.gamma * self.cont

    @property
    def same(self) -> Float[Tensor, "b t"]:
        """Return 0 for a step at which an episode ended: what follows it is another one."""
        ones = torch.ones_like(self.value)
        return ones if self.is_last is None else (~self.is_last).to(ones.dtype)


class ReturnEstimator(ABC):
    """Says what every step but the last of a path [b, n + 1] should have been worth."""

    Config: Any

    @abstractmethod
    def returns(self, path: Path) -> Float[Tensor, "b n"]:
        """Return what the values should be; of a step at which an episode ended it is void."""

    def advantages(self, path: Path) -> Float[Tensor, "b n"]:
        """Return how much better than its value each step went; 0 where an episode ended."""
        return (self.returns(path) - path.value[:, :-1]) * path.same[:, :-1]

    def both(self, path: Path) -> tuple[Float[Tensor, "b n"], Float[Tensor, "b n"]]:
        """Return advantages, and the returns that go with them."""
        advantage = self.advantages(path)
        return advantage, advantage + path.value[:, :-1]


@dataclass(frozen=True)
class LambdaReturnConfig:
    """How far a return reaches before a value stands for the rest."""

    lam: Share = 0.95
    """0: one step; 1: all of them."""


class LambdaReturn(ReturnEstimator):
    """The mean of returns over 1, 2, ... steps, each `lam` times as much as the one before."""

    Config = LambdaReturnConfig

    def __init__(self, config: LambdaReturnConfig) -> None:
        self.lam = config.lam

    def returns(self, path: Path) -> Float[Tensor, "b n"]:
        lam = self.lam if path.is_last is None else self.lam * path.same
        return lambda_return(path.reward, path.discount, path.value, lam)


class GAE(LambdaReturn):
    """The same return, of which the advantage is summed from the errors of single steps."""

    def advantages(self, path: Path) -> Float[Tensor, "b n"]:
        p = path
        return generalised_advantage(p.reward, p.value, p.cont, p.same, p.gamma, self.lam)

    def returns(self, path: Path) -> Float[Tensor, "b n"]:
        return self.advantages(path) + path.value[:, :-1]


@dataclass(frozen=True)
class NStepConfig:
    """How far a return reaches before a value stands for the rest."""

    n: PositiveInt = 5


class NStep(ReturnEstimator):
    """The rewards of `n` steps, or of those until the episode or the path ends, then a value."""

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
    """Has no options."""


class MonteCarlo(LambdaReturn):
    """All rewards until the episode ends; a value stands only for what was cut off."""

    Config = MonteCarloConfig

    def __init__(self, config: MonteCarloConfig) -> None:
        self.lam = 1.0


PARTS = {
    "gae": f"{__name__}.GAE",
    "lambda_return": f"{__name__}.LambdaReturn",
    "monte_carlo": f"{__name__}.MonteCarlo",
    "n_step": f"{__name__}.NStep",
}
