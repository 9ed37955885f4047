"""Training samples of policies: recent observations and future actions, from windows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from dreamlab.core.errors import ConfigError
from dreamlab.core.tree import tree_map
from dreamlab.core.types import Batch, Obs


@dataclass(frozen=True)
class Chunks:
    """Rows of observations [n, obs_steps, ...] and actions [n, horizon, ...]."""

    obs: Obs
    action: Shaped[Tensor, "n h ..."]
    valid: Bool[Tensor, " n"]
    """Whether an action exists: none follows the last step of an episode."""


def chunks(batch: Batch, obs_steps: int, horizon: int) -> Chunks:
    """Return every run of `horizon` consecutive steps of a batch as a row.

    step      0    1    2 last  3 first  4      obs_steps = 2, horizon = 4
    row 0     o0   o1                           now is step 1
              a0   a1   a1    a1                beyond the episode, its edge is repeated
    row 2          (o3) o3                      a row that starts at step 2: now is step 3
                        a3    a3    a4   ...

    The action of an episode's last step is void and counts as beyond the episode.
    """
    length = batch.shape[1]
    if length < horizon:
        raise ConfigError(
            f"a batch has windows of {length} steps, but the policy learns chunks of {horizon}: "
            f"set the length of its buffer to {horizon} or more, or lower workflow.policy.horizon"
        )
    device = batch.reward.device
    begin = torch.arange(length - horizon + 1, device=device)
    now = begin + obs_steps - 1
    first, end = _edges(batch)
    low, high = first[:, now, None], end[:, now, None]
    seen = begin[:, None] + torch.arange(obs_steps, device=device)
    done = begin[:, None] + torch.arange(horizon, device=device)
    obs = tree_map(lambda x: _take(x, seen.maximum(low)), batch.obs)
    action = _take(batch.action, done.maximum(low).minimum(high.maximum(low)))
    return Chunks(obs, action, ~batch.is_last[:, now].flatten())


def _edges(batch: Batch) -> tuple[Int[Tensor, "b t"], Int[Tensor, "b t"]]:
    """Return, for every step, the first step of its episode and the last with an action."""
    length = batch.shape[1]
    step = torch.arange(length, device=batch.reward.device).expand_as(batch.is_first)
    first = torch.where(batch.is_first, step, 0).cummax(1).values
    ends = torch.where(batch.is_last, step, length)
    ends[:, :-1] = torch.where(batch.is_first[:, 1:], step[:, 1:], length).minimum(ends[:, :-1])
    return first, ends.flip(1).cummin(1).values.flip(1) - 1


def _take(x: Shaped[Tensor, "b t ..."], index: Int[Tensor, "b s k"]) -> Shaped[Tensor, "n k ..."]:
    """Gather the indexed steps, with the rows of all windows concatenated."""
    rows = torch.arange(len(x), device=x.device)[:, None, None]
    return x[rows, index].flatten(0, 1)
