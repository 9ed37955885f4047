"""Dreams of DreamerV3's actor in DreamerV3's world model: step by step, or in one fused call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxtyping import Float, Shaped
from torch import Tensor

from dreamlab.components.heads import LatentPolicy
from dreamlab.components.world_models.protocol import Advance, Policy
from dreamlab.components.world_models.rssm import RSSM, Latent
from dreamlab.components.world_models.world_model import WorldModel
from dreamlab.nn import dream

MOST_ACTIONS = 64
"""Entries of an action up to which the kernels sample it."""


@dataclass(frozen=True)
class Dream:
    """Imagined states with their rewards, values and returns; all detached."""

    feature: Float[Tensor, "n t d"]
    action: Shaped[Tensor, "n t ..."]
    reward: Float[Tensor, "n t"]
    cont: Float[Tensor, "n t"]
    value: Float[Tensor, "n t"]
    weight: Float[Tensor, "n t"]
    ret: Float[Tensor, "n t-1"]
    """Returns of every state but the last."""


class Guess(NamedTuple):
    """Predicted values of states: the critic's, as logits, and the slow critic's."""

    logits: Float[Tensor, "n t k"]
    slow: Float[Tensor, "n t"]


class Dreamer:
    """An actor in a world model, with the functions of a step, which may be compiled."""

    def __init__(
        self, model: WorldModel, actor: Any, advance: Advance, choose: dream.Choose
    ) -> None:
        self.model, self.actor, self.advance, self.choose = model, actor, advance, choose

    def dream(
        self,
        start: Latent,
        policy: Policy,
        horizon: int,
        noise: Float[Tensor, "{horizon} n ..."] | None = None,
        halfway: Callable[[Float[Tensor, "n half f"]], None] | None = None,
    ) -> tuple[Float[Tensor, "n {horizon}+1 f"], Shaped[Tensor, "n {horizon}+1 ..."]]:
        """Return what the heads read of `WorldModel.imagine`; `policy` must be the actor's.

        `halfway` may get the first half of it, before the second is made.
        """
        if not at_once(self.model, self.actor, start.deter):
            latent, action = self.model.imagine(start, policy, horizon, noise, self.advance)
            return latent.feature, action
        rssm: Any = self.model.rssm
        if noise is None:
            noise = rssm.noise(horizon, len(start.deter), device=start.deter.device)
        assert noise is not None
        return dream.imagine(
            *layers_of(self.model, self.actor), (start.deter, start.stoch), noise, self.choose,
            output_of(self.model, self.actor), halfway,
        )  # fmt: skip


def at_once(model: WorldModel, actor: Any, x: Float[Tensor, " ..."]) -> bool:
    """Return whether dreams from states like this tensor are computed by one call."""
    return dream.available(x) and fusable(model, actor)


def fusable(model: WorldModel, actor: Any) -> bool:
    """Return whether the kernels compute what these parts do."""
    rssm: Any = model.rssm
    kinds = (type(model).advance, type(rssm), type(actor))
    if kinds != (WorldModel.advance, RSSM, LatentPolicy):
        return False
    c, a = rssm.config, actor.config
    usual = (c.norm, c.act) == (a.norm, a.act) == dream.STYLE and c.dyn_layers == 1
    deep = len(rssm.prior_net) > 0 < len(actor.net)
    return usual and deep and dream.fits(c.deter, c.blocks, c.hidden, a.units, c.stoch * c.classes)


def layers_of(model: WorldModel, actor: LatentPolicy) -> tuple[dream.Layers, dream.Choices]:
    """Return the modules of a step, and its stochastic part."""
    rssm: Any = model.rssm
    c, cell = rssm.config, rssm.cell
    memory, stoch, _ = cell.inputs
    layers = dream.Layers(
        memory, stoch, cell.hidden[0], cell.norms[0], cell.gates, rssm.prior_net, rssm.prior_out,
        actor.net,
    )  # fmt: skip
    return layers, dream.Choices(c.stoch, c.classes, c.unimix)


def output_of(model: WorldModel, actor: LatentPolicy) -> dream.Output | None:
    """Return how to sample actions, if the kernels can: a row of numbers, or one class."""
    c, classes = actor.config, actor.action.classes
    rssm: Any = model.rssm
    act = rssm.cell.inputs[2]
    if actor.dim > MOST_ACTIONS or type(model).embed is not WorldModel.embed:
        return None
    if isinstance(classes, int):
        return dream.Output(actor.logits, None, act, dream.Actions(classes, True, 0, 0, c.unimix))
    if classes is None and len(actor.action.shape) == 1:
        actions = dream.Actions(actor.dim, False, c.min_std, c.max_std, 0.0)
        return dream.Output(actor.mean, actor.stddev, act, actions)
    return None


def chosen(
    model: WorldModel, actor: LatentPolicy, hidden: Float[Tensor, "n v"]
) -> tuple[Shaped[Tensor, "n ..."], Float[Tensor, "n u"]]:
    """Sample an action from the actor's last hidden layer; return the cell's input layer of it."""
    action = actor.shaped(actor.dist(hidden).sample())
    rssm: Any = model.rssm
    return action, rssm.cell.inputs[2](model.embed(action))
