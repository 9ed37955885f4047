"""Transitions from replayed windows, for Q-learning algorithms."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from dreamlab.core.errors import ConfigError
from dreamlab.core.types import Batch, Obs
from dreamlab.ops.returns import n_step


@dataclass(frozen=True, slots=True)
class Transitions:
    """One transition per window; the target of a value is `reward + factor * V(next_obs)`."""

    obs: Obs
    action: Shaped[Tensor, "b ..."]
    reward: Float[Tensor, " b"]
    factor: Float[Tensor, " b"]
    """Factor of the bootstrap: gamma^n, or 0 where the episode terminated."""
    next_obs: Obs

    def split(self, size: int) -> list[Transitions]:
        """Split the transitions into chunks of `size`."""
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
    if batch.reward.shape[1] == 2:  # one step: the most common case, and cheap
        factor = gamma * (~batch.is_terminal[:, 1])
        last = {k: v[:, 1] for k, v in batch.obs.items()}
        return Transitions(first, batch.action[:, 0], batch.reward[:, 1], factor, last)
    # a suite may stop the bootstrap within an episode (Atari: a lost life); later rewards do not
    # count
    ends = batch.is_last | batch.is_terminal
    reward, factor, at = n_step(batch.reward, ends, batch.is_terminal, gamma)
    rows = torch.arange(len(at), device=at.device)
    last = {k: v[rows, at] for k, v in batch.obs.items()}
    return Transitions(first, batch.action[:, 0], reward, factor, last)


MC_RETURN = "mc_return"
"""Name of the extra with the discounted return to go of each step."""


def chunk_transitions(batch: Batch, gamma: float, horizon: int) -> Transitions:
    """Return the transition of each window with its action as a chunk [b, h, a].

    With a horizon above 1 the window covers the chunk, h + 1 steps. If the episode ends earlier,
    its last action is repeated: the rest is unknown.
    """
    if horizon > 1 and batch.reward.shape[1] != horizon + 1:
        raise ConfigError(
            f"buffers: chunks of {horizon} actions are learnt from windows of {horizon + 1} steps, "
            f"not of {batch.reward.shape[1]}: set length={horizon + 1}"
        )
    t = transitions(batch, gamma)
    actions = batch.action[:, :horizon].flatten(2) if batch.action.ndim > 2 else batch.action
    if horizon > 1:
        # step i is not part of the chunk if an episode ended at one of the steps 1..i
        over = batch.is_last[:, 1:horizon].int().cumsum(1)
        last = (horizon - 1 - (over > 0).sum(1))[:, None]
        at = torch.arange(horizon, device=over.device).expand(len(over), -1).minimum(last)
        actions = actions.gather(1, at[..., None].expand(-1, -1, actions.shape[-1]))
    return replace(t, action=actions)


def return_to_go(batch: Batch) -> Float[Tensor, " b"]:
    """Return the discounted return to go of each window's first step, as given by the source."""
    if MC_RETURN not in batch.extras:
        raise ConfigError(
            "workflow: a calibrated critic needs the discounted return to go of every step, and "
            "the buffer does not tell it: set mc_gamma=0.99 (your gamma) in every buffer that "
            "batches come from, or conservative.calibrated=false for plain CQL"
        )
    return batch.extras[MC_RETURN][:, 0]


def as_window(obs: Obs) -> Obs:
    """Reshape observations [b, ...] to windows of one step, the input format of policies."""
    return {k: v[:, None] for k, v in obs.items()}
