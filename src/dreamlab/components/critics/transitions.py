"""Transitions cut from replayed windows: what every Q-learning algorithm bootstraps from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from dreamlab.core.types import Batch, Obs
from dreamlab.ops.returns import n_step


@dataclass(frozen=True, slots=True)
class Transitions:
    """One transition per window; the target of a value is `reward + factor * V(next_obs)`."""

    obs: Obs
    action: Shaped[Tensor, "b ..."]
    reward: Float[Tensor, " b"]
    factor: Float[Tensor, " b"]
    """What the bootstrap is multiplied with: gamma^n, or 0 where the episode terminated."""
    next_obs: Obs

    def split(self, size: int) -> list[Transitions]:
        """Return all of them, `size` at a time."""
        obs, ahead = ({k: v.split(size) for k, v in x.items()} for x in (self.obs, self.next_obs))
        rest = zip(*(x.split(size) for x in (self.action, self.reward, self.factor)), strict=True)
        at = lambda pieces, i: {k: v[i] for k, v in pieces.items()}  # noqa: E731
        return [
            Transitions(at(obs, i), action, reward, factor, at(ahead, i))
            for i, (action, reward, factor) in enumerate(rest)
        ]


def transitions(batch: Batch, gamma: float) -> Transitions:
    """Return the n-step transition of each window [b, n + 1] (the replay's `windows: transitions`).

    step    0          1     2 = n          reward = r1 + gamma r2
            obs, act   r1    r2, next_obs   an episode that ends at step 1 is cut off there
    """
    first = {k: v[:, 0] for k, v in batch.obs.items()}
    if batch.reward.shape[1] == 2:  # one step, by far the most common case, and cheap
        factor = gamma * (~batch.is_terminal[:, 1])
        last = {k: v[:, 1] for k, v in batch.obs.items()}
        return Transitions(first, batch.action[:, 0], batch.reward[:, 1], factor, last)
    # a suite may cut the bootstrap within an episode (Atari: a lost life); no reward counts beyond
    ends = batch.is_last | batch.is_terminal
    reward, factor, at = n_step(batch.reward, ends, batch.is_terminal, gamma)
    rows = torch.arange(len(at), device=at.device)
    last = {k: v[rows, at] for k, v in batch.obs.items()}
    return Transitions(first, batch.action[:, 0], reward, factor, last)
