"""The chance in a plan of TD-MPC2: drawn at once, before anything is computed.

A decision is then a function of tensors, which a GPU can capture, and which can be repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dreamlab.components.critics.two_hot import draw_pairs
from dreamlab.ops.planning import Plan, PlannerConfig

TIE = 1e-5
"""By how much an earlier candidate is better than a later one with the same score."""


@dataclass(frozen=True)
class PlanSizes:
    """What a planner of a kind needs."""

    planner: PlannerConfig
    proposed: int
    """Plans of the policy, among the samples."""
    action: int
    critics: int

    @property
    def drawn(self) -> int:
        """Return how many candidates are drawn in an iteration."""
        return self.planner.samples - self.proposed


@dataclass(frozen=True)
class Draws:
    """The chance in one iteration of a search."""

    candidates: Float[Tensor, "n k h a"]
    last: Float[Tensor, "n samples a"]
    """Of the policy's action where a plan ends."""
    pair: Int[Tensor, " 2"]
    """The critics that are asked where a plan ends."""
    ties: Float[Tensor, " samples"] | None
    """Added to scores where none may be equal."""


@dataclass(frozen=True)
class PlanNoise:
    """Standard normals and pairs of critics, for n plans; with n = 1 they are for any number."""

    proposed: Float[Tensor, "h n p a"]
    """Of the policy's plans."""
    candidates: Float[Tensor, "iterations n k h a"]
    last: Float[Tensor, "iterations n samples a"]
    pairs: Int[Tensor, "iterations 2"]
    choice: Float[Tensor, "n e"]
    """Gumbel's, for drawing one of the elites."""
    action: Float[Tensor, "n a"]
    """What is added to the action in training."""
    ties: Float[Tensor, " samples"] | None = None

    def at(self, i: int) -> Draws:
        """Return what iteration i needs."""
        return Draws(self.candidates[i], self.last[i], self.pairs[i], self.ties)


def draw_noise(sizes: PlanSizes, num: int, device: torch.device) -> PlanNoise:
    """Return fresh noise for plans of `num` environments."""
    c = sizes.planner
    shapes = _shapes(sizes, num)
    flat = torch.randn(sum(_size(s) for s in shapes), device=device)
    parts = (x.view(s) for x, s in zip(flat.split([_size(s) for s in shapes]), shapes, strict=True))
    proposed, candidates, last, action = parts
    pairs = draw_pairs(c.iterations, sizes.critics, device)
    choice = -torch.empty(num, c.elites, device=device).exponential_().log_()
    return PlanNoise(proposed, candidates, last, pairs, choice, action)


def _shapes(sizes: PlanSizes, num: int) -> list[tuple[int, ...]]:
    c, a = sizes.planner, sizes.action
    return [
        (c.horizon, num, sizes.proposed, a),
        (c.iterations, num, sizes.drawn, c.horizon, a),
        (c.iterations, num, c.samples, a),
        (num, a),
    ]


def _size(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()


def draw_elite(plan: Plan, gumbel: Float[Tensor, "m e"]) -> Float[Tensor, "n a"]:
    """Return the first action of an elite, drawn by its weight."""
    index = (plan.weight.log() + gumbel).argmax(1)
    first = plan.elites[:, :, 0]
    return first.gather(1, index[:, None, None].expand(-1, 1, first.shape[-1]))[:, 0]


class FixedNoise(nn.Module):
    """The same noise at every decision, for any number of environments; nothing of it is saved."""

    def __init__(self, sizes: PlanSizes) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.manual_seed(0)
            noise = draw_noise(sizes, 1, torch.device("cpu"))
            # before anything is learned all scores are 0: which are best must not be left open
            ties = TIE * torch.arange(sizes.planner.samples).flip(0)
        noise = replace(noise, ties=ties, choice=torch.zeros_like(noise.choice))
        self.names = list(vars(noise))
        for name, value in vars(noise).items():
            self.register_buffer(name, value, persistent=False)

    def forward(self) -> PlanNoise:
        """Return it; of the elites the best is taken."""
        return PlanNoise(**{name: getattr(self, name) for name in self.names})
