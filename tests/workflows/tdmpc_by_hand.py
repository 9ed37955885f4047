"""TD-MPC2's formulas in plain torch and float64: what tests of it and its variants compare with.

Networks are called for their raw outputs; everything after that is written out here.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


def decoded(logits: Tensor) -> Tensor:
    """Return symexp of the mean of bins from -10 to 10."""
    bins = torch.linspace(-10, 10, logits.shape[-1], dtype=torch.float64)
    mean = (logits.double().softmax(-1) * bins).sum(-1)
    return mean.sign() * (mean.abs().exp() - 1)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Return the cross-entropy to the two bins around symlog of the target."""
    num = logits.shape[-1]
    y = target.double()
    at = ((y.sign() * (1 + y.abs()).log()).clamp(-10, 10) + 10) * (num - 1) / 20
    below = at.floor().long()
    share = (at - below)[..., None]
    wanted = (1 - share) * F.one_hot(below, num) + share * F.one_hot((below + 1) % num, num)
    return -(wanted * logits.double().log_softmax(-1)).sum(-1)


def joined(agent: Any, task: Tensor, *parts: Tensor) -> Tensor:
    """Return latents, the embedding of their task if there are several, and actions."""
    first, *rest = parts
    if agent.model.tasks is not None:
        known = agent.model.tasks.weight[task]
        rest = [known.expand(*first.shape[:-1], known.shape[-1]), *rest]
    return torch.cat([first, *rest], -1)


class Acted(NamedTuple):
    """What the policy does for given noise."""

    action: Tensor
    log_prob: Tensor
    """Of the squashed action, times the number of its entries that the task has."""


def act(agent: Any, zs: Tensor, task: Tensor, noise: Tensor) -> Acted:
    """Return the prior's action and its scaled log-probability."""
    mean, raw = agent.prior.net(joined(agent, task, zs)).double().chunk(2, -1)
    mask = torch.ones(zs.shape[1], noise.shape[-1])
    if agent.spec.tasks:
        dims = torch.tensor([t.action_dim for t in agent.spec.tasks])[task]
        mask = (torch.arange(noise.shape[-1]) < dims[:, None]).float()
    eps, mean = noise.double() * mask, mean * mask
    log_std = (-10 + 0.5 * 12 * (raw.tanh() + 1)) * mask
    action = (mean + eps * log_std.exp()).tanh()
    normal = (-0.5 * eps**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
    squashed = normal - (1 - action**2 + 1e-6).log().sum(-1)
    return Acted(action, mask.sum(-1) * squashed)


class Objective(NamedTuple):
    """The terms of the policy's loss, [t, b], and the scale of values."""

    action: Tensor
    q: Tensor
    log_prob: Tensor
    scale: float


def objective(
    agent: Any,
    critics: Any,
    zs: Tensor,
    task: Tensor,
    noise: Tensor,
    pair: list[int],
    before: float,
) -> Objective:
    """Return the policy's terms; `before` is the scale that is followed from."""
    acted = act(agent, zs, task, noise)
    logits = critics(joined(agent, task, zs, acted.action.float()))
    q = (decoded(logits[pair[0]]) + decoded(logits[pair[1]])) / 2
    first = q[0].detach().sort().values
    low, high = (_percentile(first, p) for p in (0.05, 0.95))
    scale = 0.99 * before + 0.01 * max(1.0, high - low)
    return Objective(acted.action, q, acted.log_prob, scale)


def _percentile(ordered: Tensor, share: float) -> float:
    """Interpolate between the two nearest ranks."""
    at = share * (len(ordered) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return float(ordered[below] + (at - below) * (ordered[above] - ordered[below]))


def over_time(terms: Tensor) -> Tensor:
    """Return the mean over t of 0.5^t times the mean over the batch."""
    return sum(0.5**t * row.mean() for t, row in enumerate(terms)) / len(terms)
