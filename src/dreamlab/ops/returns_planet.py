"""Returns with the indexing of DreamerV1 and DreamerV2."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from dreamlab.ops.estimators import Path


def own_rewards(
    reward: Float[Tensor, "b t"], discount: Float[Tensor, "b t"], value: Float[Tensor, "b t"]
) -> Path:
    """Return the path of imagined states whose returns start with the state's own reward.

    state      0     1     2     3 = t-1
    reward     r0    r1    r2    -         received on arriving there
    discount   d0    d1    d2    -         0 where nothing follows that state
    value      -     v1    v2    v3        value of a state, including its own reward
    return     R0    R1    R2              R[i] = r[i] + d[i] * (v[i+1] or R[i+1], or both)

    A path starts with the reward of the next state instead, so everything is shifted by one step.
    """
    return Path(_later(reward), _later(discount), value)


def _later(x: Float[Tensor, "b t"]) -> Float[Tensor, "b t"]:
    return torch.cat([x[:, :1], x[:, :-1]], 1)
