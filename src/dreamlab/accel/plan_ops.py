"""Scores and proposals of plans in the latents of TD-MPC2, as operators that compilers pass on."""

from __future__ import annotations

import torch
from torch import Tensor

from dreamlab.accel import plan_rows
from dreamlab.accel.latent_plans import FEW, Layers, Nets, Sizes
from dreamlab.accel.plan_rows import WholeRows
from dreamlab.accel.plan_whole import Activated

FORMS: dict[str, type[Layers]] = {"tiles": Layers, "rows": WholeRows, "whole": Activated}
CHOSEN = {"few": "rows", "many": "whole"}
"""How layers are computed: `tiles` for any number of plans, `rows` for few, `whole` for many."""

GAINS = (
    "(Tensor actions, Tensor last, Tensor pair, Tensor? mask, Tensor[] weights, int[] sizes, "
    "float[] bounds) -> Tensor"
)


def layers_for(n: Sizes, weights: list[Tensor], plans: int, bounds: list[float]) -> Layers:
    """Return how the layers are computed."""
    name = CHOSEN["many" if n.envs * plans > FEW else "few"]
    if name == "rows" and not plan_rows.fits(n):
        name = "tiles"
    return FORMS[name](n, Nets.of(weights), plans, bounds)


@torch.library.custom_op("dreamlab::plan_gains", mutates_args=(), schema=GAINS)
def plan_gains(
    actions: Tensor, last: Tensor, pair: Tensor, mask: Tensor | None, weights: list[Tensor],
    sizes: list[int], bounds: list[float],
) -> Tensor:  # fmt: skip
    """Return the rewards of plans, then halves of two critics' values of their ends: [h + 2, n, s].

    `actions` are [n, s, horizon, a], `last` [n or 1, s, a] the noise of the policy's action at the
    end, `pair` the critics, `mask` [n, a] the valid entries.
    """
    n, plans = Sizes(*sizes), actions.shape[1]
    layers = layers_for(n, weights, plans, bounds)
    states, x = layers.latents(n.horizon), None
    for t in range(n.horizon):
        x = layers.move(x, actions[:, :, t], states.at(t))
    action = torch.empty(n.envs, plans, n.a, device=actions.device)
    layers.act(x, last, mask, action)
    return layers.values(states, actions, action, pair)


@plan_gains.register_fake
def _(
    actions: Tensor, last: Tensor, pair: Tensor, mask: Tensor | None, weights: list[Tensor],
    sizes: list[int], bounds: list[float],
) -> Tensor:  # fmt: skip
    return actions.new_empty(sizes[1] + 2, actions.shape[0], actions.shape[1])


PLANS = "(Tensor noise, Tensor? mask, Tensor[] weights, int[] sizes, float[] bounds) -> Tensor"


@torch.library.custom_op("dreamlab::policy_plans", mutates_args=(), schema=PLANS)
def policy_plans(
    noise: Tensor, mask: Tensor | None, weights: list[Tensor], sizes: list[int],
    bounds: list[float],
) -> Tensor:  # fmt: skip
    """Return the policy's actions [n, p, horizon, a] in the model, for noise [h, n or 1, p, a]."""
    n, plans = Sizes(*sizes), noise.shape[2]
    layers = layers_for(n, weights, plans, bounds)
    states, x = layers.latents(n.horizon), None
    out = torch.empty(n.envs, plans, n.horizon, n.a, device=noise.device)
    for t in range(n.horizon):
        layers.act(x, noise[t], mask, out[:, :, t])
        if t < n.horizon - 1:
            x = layers.move(x, out[:, :, t], states.at(t))
    return out


@policy_plans.register_fake
def _(
    noise: Tensor, mask: Tensor | None, weights: list[Tensor], sizes: list[int],
    bounds: list[float],
) -> Tensor:  # fmt: skip
    horizon, _, plans, a = noise.shape
    return noise.new_empty(sizes[0], plans, horizon, a)
