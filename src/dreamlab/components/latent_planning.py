"""Random numbers of TD-MPC2's planner, drawn at once before a decision.

A decision is then a pure tensor function, which a GPU can capture, and is reproducible.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dreamlab.components.critics.two_hot import draw_pairs
from dreamlab.ops.planning import Plan, PlannerConfig

TIE = 1e-5
"""Score advantage of earlier candidates over later ones, to break ties."""


@dataclass(frozen=True)
class PlanSizes:
    """Sizes of a planner."""

    planner: PlannerConfig
    proposed: int
    """Number of the policy's plans among the samples."""
    action: int
    critics: int

    @property
    def drawn(self) -> int:
        """Return the number of candidates sampled per iteration."""
        return self.planner.samples - self.proposed


@dataclass(frozen=True)
class Draws:
    """Random numbers of one search iteration."""

    candidates: Float[Tensor, "n k h a"]
    last: Float[Tensor, "n samples a"]
    """Noise of the policy's action at the end of a plan."""
    pair: Int[Tensor, " 2"]
    """Indices of the critics used at the end of a plan."""
    ties: Float[Tensor, " samples"] | None
    """Added to scores to break ties."""


@dataclass(frozen=True)
class PlanNoise:
    """Noise and critic pairs for n plans; n = 1 broadcasts to any number."""

    proposed: Float[Tensor, "h n p a"]
    """Noise of the policy's plans."""
    candidates: Float[Tensor, "iterations n k h a"]
    last: Float[Tensor, "iterations n samples a"]
    pairs: Int[Tensor, "iterations 2"]
    choice: Float[Tensor, "n e"]
    """Gumbel noise for sampling an elite."""
    action: Float[Tensor, "n a"]
    """Exploration noise."""
    ties: Float[Tensor, " samples"] | None = None

    def at(self, i: int) -> Draws:
        """Return the random numbers of iteration i."""
        return Draws(self.candidates[i], self.last[i], self.pairs[i], self.ties)


def draw_noise(sizes: PlanSizes, num: int, device: torch.device) -> PlanNoise:
    """Sample noise for plans of `num` environments."""
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
    """Return the first action of an elite, sampled by its weight."""
    index = (plan.weight.log() + gumbel).argmax(1)
    first = plan.elites[:, :, 0]
    return first.gather(1, index[:, None, None].expand(-1, 1, first.shape[-1]))[:, 0]


class FixedNoise(nn.Module):
    """The same noise at every decision, for any number of environments; not saved."""

    def __init__(self, sizes: PlanSizes) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.manual_seed(0)
            noise = draw_noise(sizes, 1, torch.device("cpu"))
            # before training all scores are 0, and the choice of elites must be deterministic
            ties = TIE * torch.arange(sizes.planner.samples).flip(0)
        noise = replace(noise, ties=ties, choice=torch.zeros_like(noise.choice))
        self.names = list(vars(noise))
        for name, value in vars(noise).items():
            self.register_buffer(name, value, persistent=False)

    def forward(self) -> PlanNoise:
        """Return the noise; it selects the best elite."""
        return PlanNoise(**{name: getattr(self, name) for name in self.names})
