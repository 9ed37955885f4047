"""Improve a policy's actions with a critic: best of N, then gradient ascent.

The two steps of PA-RL (Mark et al. 2024, arXiv:2412.06685). The first alone is best-of-N, as in
IDQL. Independent of the kind of policy that proposes the candidates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dreamlab.components.critics.ensemble import Aggregate
from dreamlab.core.limits import Natural, NonNegative, Positive, PositiveInt

Score = Callable[[Float[Tensor, "b n h a"]], Float[Tensor, "b n"]]
"""Maps chunks [b, n, h, a] to values."""
Choice = Literal["best", "sample"]


@dataclass(frozen=True)
class ActionOptimizerConfig:
    """Hyperparameters of PA-RL's state-based tasks."""

    samples: PositiveInt = 32
    """Actions sampled from the policy."""
    keep: PositiveInt = 10
    """Number of best samples to keep."""
    steps: Natural = 10
    """Gradient steps on each kept sample; 0 disables them."""
    step_size: NonNegative = 3e-4
    temperature: Positive = 1.0
    """Temperature of the softmax over values, if an action is sampled instead of the best."""
    aggregate: Aggregate = "mean"
    """How the critics' values are aggregated."""

    def __post_init__(self) -> None:
        if self.keep > self.samples:
            raise ValueError(f"keep={self.keep} is more than samples={self.samples}")


@dataclass(frozen=True)
class Candidates:
    """Action chunks of each state, and their values."""

    action: Float[Tensor, "b n h a"]
    value: Float[Tensor, "b n"]


class ActionOptimizer:
    """Ranks, optimizes and chooses actions; stateless and without training."""

    def __init__(self, config: ActionOptimizerConfig) -> None:
        self.config = config

    def improve(
        self,
        actions: Float[Tensor, "b n h a"],
        score: Score,
        data: Float[Tensor, "b h a"] | None = None,
        climb: bool = True,
    ) -> Candidates:
        """Return the best candidates, each the best point along its gradient ascent.

        `data`, the action of the data, replaces the worst of the kept candidates.
        """
        c = self.config
        with torch.no_grad():
            kept = best(actions, score(actions), min(c.keep, actions.shape[1]))
            if data is not None:
                kept = torch.cat([kept[:, :-1], data[:, None]], 1)
        if climb:
            return ascend(kept, score, c.steps, c.step_size)
        with torch.no_grad():
            return Candidates(kept, score(kept))

    def choose(self, found: Candidates, how: Choice = "best") -> Float[Tensor, "b h a"]:
        """Return the best candidate of each state, or one sampled by the softmax of values."""
        value = found.value / self.config.temperature
        if how == "sample":
            value = value - torch.empty_like(value).exponential_().log_()
        return picked(found.action, value.argmax(1))


def picked(actions: Float[Tensor, "b n h a"], index: Int[Tensor, " b"]) -> Float[Tensor, "b h a"]:
    """Select one candidate of each state."""
    where = index[:, None, None, None].expand(-1, 1, *actions.shape[2:])
    return actions.gather(1, where)[:, 0]


def best(
    actions: Float[Tensor, "b n h a"], value: Float[Tensor, "b n"], num: int
) -> Float[Tensor, "b k h a"]:
    """Return the `num` candidates with the highest values, the best first."""
    index = value.topk(num, 1).indices
    return actions.gather(1, index[:, :, None, None].expand(-1, -1, *actions.shape[2:]))


def ascend(actions: Float[Tensor, "b n h a"], score: Score, steps: int, size: float) -> Candidates:
    """Ascend the critic's gradient within [-1, 1]; return the best point visited by each.

    This includes the start, so that no candidate gets worse.
    """
    now = actions.detach()
    top: Candidates | None = None
    for i in range(steps + 1):
        with torch.enable_grad():
            now = now.requires_grad_(i < steps)
            value = score(now)
            slope = torch.autograd.grad(value.sum(), now)[0] if i < steps else None
        now, value = now.detach(), value.detach()
        top = Candidates(now, value) if top is None else better(top, Candidates(now, value))
        if slope is not None:
            now = (now + size * slope).clamp(-1, 1)
    assert top is not None
    return top


def better(a: Candidates, b: Candidates) -> Candidates:
    """Return the candidate with the higher value of each pair; on ties, the first."""
    wins = b.value > a.value
    action = torch.where(wins[..., None, None], b.action, a.action)
    return Candidates(action, torch.where(wins, b.value, a.value))
