"""Receding-horizon control: recent observations in, the next action of a chunk out.

step        0          1          2          3          4
seen     o0 o0      o0 o1      o1 o2      o2 o3      o3 o4     obs_steps = 2; the first is repeated
planned  a0 a1 a2                         a3 a4 a5             execute = 3
done     a0         a1         a2         a3         a4
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from dreamlab.components.policies.protocol import Policy, evaluating
from dreamlab.core.tree import tree_map
from dreamlab.core.types import Decision, Mode, Obs, Spec, Tree


def initial_state(policy: Policy, spec: Spec, rows: int, device: torch.device) -> Tree:
    """Return the initial state: no observations, no plan."""
    if not remembers(policy):
        return ()
    obs = {
        k: torch.zeros(rows, policy.obs_steps, *s.shape, dtype=getattr(torch, s.dtype))
        for k, s in spec.obs.items()
    }
    dtype = torch.int64 if spec.action.is_discrete else torch.float32
    chunk = torch.zeros(rows, policy.execute, policy.action_dim, dtype=dtype)
    left = torch.zeros(rows, dtype=torch.int64)
    return tree_map(lambda x: x.to(device), {"obs": obs, "chunk": chunk, "left": left})


def remembers(policy: Policy) -> bool:
    """Return whether a decision depends on earlier steps."""
    return policy.obs_steps > 1 or policy.execute > 1


def act(
    policy: Policy, obs: Obs, is_first: Bool[Tensor, " n"], state: Tree, mode: Mode, **how: Any
) -> Decision:
    """Return the next action of every environment; `how` is passed to the policy's `sample`.

    Each environment replans when its chunk is finished or its episode starts.
    """
    if not remembers(policy):
        now = tree_map(lambda x: x[:, None], obs)
        return Decision(policy.shaped(plan(policy, now, mode, how)[:, 0]))
    seen = {k: _shift(state["obs"][k], obs[k], is_first) for k in obs}
    left = state["left"].masked_fill(is_first, 0)
    chunk, left = _replan(policy, seen, state["chunk"], left, mode, how)
    action = _next(chunk, policy.execute - left)
    return Decision(policy.shaped(action), {"obs": seen, "chunk": chunk, "left": left - 1})


def plan(policy: Policy, seen: Obs, mode: Mode, how: dict[str, Any]) -> Shaped[Tensor, "n k a"]:
    """Return the actions to execute from now on."""
    with evaluating(policy):
        chunk = policy.sample(seen, mode=mode, **how)[:, 0]
    first = policy.obs_steps - 1
    return chunk[:, first : first + policy.execute]


def _replan(
    policy: Policy, seen: Obs, chunk: Shaped[Tensor, "n k a"], left: Int[Tensor, " n"],
    mode: Mode, how: dict[str, Any],
) -> tuple[Shaped[Tensor, "n k a"], Int[Tensor, " n"]]:  # fmt: skip
    """Replan finished chunks; return all chunks and their remaining lengths."""
    needs = left == 0
    if mode is Mode.FIXED:  # an exported graph must not read tensor values
        new = torch.where(needs[:, None, None], plan(policy, seen, mode, how), chunk)
    elif needs.all():
        new = plan(policy, seen, mode, how)
    elif needs.any():
        rows = needs.nonzero()[:, 0]
        some = plan(policy, tree_map(lambda x: x[rows], seen), mode, how)
        new = chunk.index_copy(0, rows, some)
    else:
        new = chunk
    return new, left.masked_fill(needs, policy.execute)


def _shift(
    past: Shaped[Tensor, "n t ..."], new: Shaped[Tensor, "n ..."], is_first: Bool[Tensor, " n"]
) -> Shaped[Tensor, "n t ..."]:
    """Append a new step to the history; the first step of an episode fills all of it."""
    moved = torch.cat([past[:, 1:], new[:, None]], 1)
    begins = is_first.view(-1, *(1 for _ in past.shape[1:]))
    return torch.where(begins, new[:, None], moved)


def _next(chunk: Shaped[Tensor, "n k a"], place: Int[Tensor, " n"]) -> Shaped[Tensor, "n a"]:
    index = place[:, None, None].expand(-1, 1, chunk.shape[-1])
    return chunk.gather(1, index)[:, 0]
