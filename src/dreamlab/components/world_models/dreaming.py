"""Dreams of DreamerV3's actor in DreamerV3's world model: step by step, or in one fused call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxtyping import Float, Shaped
from torch import Tensor

from dreamlab.components.heads import LatentPolicy
from dreamlab.components.world_models.protocol import Advance, Policy
from dreamlab.components.world_models.rssm import RSSM, Latent
from dreamlab.components.world_models.world_model import WorldModel
from dreamlab.nn import dream

Choose = Callable[[Float[Tensor, "n v"]], tuple[Shaped[Tensor, "n ..."], Float[Tensor, "n u"]]]


class Dreamer:
    """An actor in a world model, with the functions of a step, which may be compiled."""

    def __init__(self, model: WorldModel, actor: Any, advance: Advance, choose: Choose) -> None:
        self.model, self.actor, self.advance, self.choose = model, actor, advance, choose

    def dream(
        self,
        start: Latent,
        policy: Policy,
        horizon: int,
        noise: Float[Tensor, "{horizon} n ..."] | None = None,
    ) -> tuple[Latent, Shaped[Tensor, "n {horizon}+1 ..."]]:
        """Imagine as `WorldModel.imagine` does; `policy` must be that of the actor."""
        if not (dream.available(start.deter) and fusable(self.model, self.actor)):
            return self.model.imagine(start, policy, horizon, noise, self.advance)
        rssm, num = self.model.rssm, len(start.deter)
        noise = rssm.noise(horizon, num, device=start.deter.device) if noise is None else noise
        memory, stoch, _ = rssm.cell.inputs
        layers = dream.Layers(
            memory, stoch, rssm.cell.hidden[0], rssm.cell.norms[0], rssm.cell.gates,
            rssm.prior_net, rssm.prior_out, self.actor.net,
        )  # fmt: skip
        c = rssm.config
        choices = dream.Choices(c.stoch, c.classes, c.unimix)
        deter, random, action = dream.imagine(layers, choices, tuple(start), noise, self.choose)
        return Latent(deter, random), action


def fusable(model: WorldModel, actor: Any) -> bool:
    """Return whether the kernels compute what these parts do."""
    if type(model).advance is not WorldModel.advance or type(actor) is not LatentPolicy:
        return False
    if type(model.rssm) is not RSSM:
        return False
    c, a = model.rssm.config, actor.config
    usual = (c.norm, c.act) == (a.norm, a.act) == dream.STYLE and c.dyn_layers == 1
    deep = len(model.rssm.prior_net) > 0 < len(actor.net)
    return usual and deep and dream.fits(c.deter, c.blocks, c.hidden, a.units, c.stoch * c.classes)


def chosen(
    model: WorldModel, actor: LatentPolicy, hidden: Float[Tensor, "n v"]
) -> tuple[Shaped[Tensor, "n ..."], Float[Tensor, "n u"]]:
    """Sample an action from the actor's last hidden layer; return the cell's input layer of it."""
    action = actor.shaped(actor.dist(hidden).sample())
    return action, model.rssm.cell.inputs[2](model.embed(action))
