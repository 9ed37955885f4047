"""Conservative values: push down out-of-data actions, push up the data's.

CQL (Kumar et al. 2020, arXiv:2006.04779); with `calibrated` it is Cal-QL (Nakamoto et al. 2023,
arXiv:2303.05479), which pushes no policy action below the data's return from that state.
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
    """Strength of the regularizer, and number of actions."""

    weight: NonNegative = 5.0
    """Weight relative to the Bellman error; 0 disables it."""
    actions: PositiveInt = 10
    """Number of uniform actions, of policy actions at s, and of policy actions at s', each."""
    temperature: Positive = 1.0
    calibrated: bool = True
    """Push values no lower than the data's return to go; false is CQL."""
    importance: bool = True
    """Divide by the sampling density of the actions (CQL's R = H); if false, include the data's
    action among those pushed down.
    """


@dataclass(frozen=True)
class Proposal:
    """Actions to push down."""

    action: Float[Tensor, "b n h a"]
    log_density: Float[Tensor, "b n"]
    """Log of the sampling density; an action that stands for k equal ones has -log k."""
    bounded: bool
    """Whether the data's return is their lower bound."""


def uniform_proposal(like: Float[Tensor, "b h a"], num: int, importance: bool) -> Proposal:
    """Sample uniform actions in [-1, 1]."""
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
    """Return how far each critic values proposed actions above the data's, `data`.

    `floor` is the data's return to go: Cal-QL's lower bound on the values of bounded proposals.
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
