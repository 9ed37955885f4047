"""Conservative values: what the data did not do is pushed down, what it did up.

CQL (Kumar et al. 2020, arXiv:2006.04779); with `calibrated` it is Cal-QL (Nakamoto et al. 2023,
arXiv:2303.05479), which pushes no policy's action below what the data earned from that state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dreamlab.components.critics.q_function import QFunction
from dreamlab.core.limits import NonNegative, Positive, PositiveInt


@dataclass(frozen=True)
class ConservativeConfig:
    """How strongly, and by how many actions."""

    weight: NonNegative = 5.0
    """Factor beside the Bellman error; 0 leaves it out."""
    actions: PositiveInt = 10
    """Uniform ones, those of the policy here, and those of the policy one step later: of each."""
    temperature: Positive = 1.0
    calibrated: bool = True
    """Push no further down than the data's return to go; without it this is CQL."""
    importance: bool = True
    """Divide by the density that actions were drawn with (CQL's R = H); without it the data's
    action is one of those pushed down."""


@dataclass(frozen=True)
class Proposal:
    """Actions to push down."""

    action: Float[Tensor, "b n h a"]
    log_density: Float[Tensor, "b n"]
    """Of having been drawn; an action that stands for k equal ones has -log k."""
    bounded: bool
    """Whether the data's return is their floor."""


def uniform_proposal(like: Float[Tensor, "b h a"], num: int, importance: bool) -> Proposal:
    """Return actions anywhere in [-1, 1]."""
    b, h, a = like.shape
    action = torch.rand(b, num, h, a, device=like.device) * 2 - 1
    log_density = -math.log(2.0) * h * a if importance else 0.0
    return Proposal(action, torch.full_like(action[..., 0, 0], log_density), False)


def conservative_gap(
    q: QFunction,
    z: Float[Tensor, "b d"],
    data: Float[Tensor, "m b"],
    proposals: list[Proposal],
    floor: Float[Tensor, " b"] | None,
    config: ConservativeConfig,
) -> Float[Tensor, " m"]:
    """Return by how much each critic values proposed actions above the data's, `data`.

    `floor` is the return to go of the data: Cal-QL's bound on the values of bounded proposals.
    """
    num = [p.action.shape[1] for p in proposals]
    every = q.every(z, torch.cat([p.action for p in proposals], 1), learn=True).split(num, 2)
    terms: list[Tensor] = []
    for values, proposal in zip(every, proposals, strict=True):
        lifted = values
        if floor is not None and proposal.bounded:
            lifted = torch.maximum(values, floor[:, None])
        terms.append(lifted / config.temperature - proposal.log_density)
    if not config.importance:
        terms.append((data / config.temperature)[..., None])
    pushed = torch.cat(terms, 2).logsumexp(2) * config.temperature
    return (pushed - data).mean(1)
