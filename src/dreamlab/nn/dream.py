"""DreamerV3's imagination without gradients in one call, on devices with kernels for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from dreamlab.accel import dream
from dreamlab.accel.dispatch import use_triton
from dreamlab.accel.dream import fits
from dreamlab.accel.rssm_scan import dtype_of
from dreamlab.nn.scan import STYLE, Choices


class Layers(NamedTuple):
    """The modules of a step, all in the style of `nn.scan`."""

    memory: Any
    """`NormAct` of the deterministic part; `stoch` of the stochastic."""
    stoch: Any
    hidden: Any
    """`BlockLinear`, then `hidden_norm`, then the gates' `BlockLinear`."""
    hidden_norm: Any
    gates: Any
    prior: Any
    """`NormMLP`; `logits` is linear."""
    logits: Any
    actor: Any
    """`NormMLP` of the actor, without its output."""


def available(x: Float[Tensor, " ..."]) -> bool:
    """Return whether dreams from states like this tensor can be computed in one call."""
    return use_triton(x) and not torch.is_grad_enabled() and dream.pays(dtype_of(x))


def imagine(
    layers: Layers,
    choices: Choices,
    start: tuple[Float[Tensor, "n d"], Float[Tensor, "n s"]],
    noise: Float[Tensor, "h n num classes"],
    choose: Callable[[Float[Tensor, "n v"]], tuple[Shaped[Tensor, "n ..."], Float[Tensor, "n u"]]],
) -> tuple[Float[Tensor, "n h+1 d"], Float[Tensor, "n h+1 s"], Shaped[Tensor, "n h+1 ..."]]:
    """Imagine from states; return deterministic and stochastic parts, and actions.

    `choose` maps the actor's last hidden layer to an action and to the cell's input layer of it;
    the last action is chosen but not executed. `noise` is Gumbel noise.
    """
    (rows, deter), dtype = start[0].shape, dtype_of(start[0])
    w = dream.Weights(
        *(x if k.endswith("_scale") else x.to(dtype) for k, x in weights(layers)._asdict().items())
    )
    widths = (len(w.hidden_bias), len(w.memory), len(w.actor))
    sizes = dream.Sizes(len(noise), rows, deter, *widths, *choices)
    state, actions = dream.imagine(w, sizes, start, noise, choose)
    return state[..., :deter], state[..., deter:], torch.stack(actions, 1)


def weights(layers: Layers) -> dream.Weights:
    """Return the layers' tensors in the order of the kernels."""
    la = layers
    pairs = [(la.memory.linear, la.memory.norm), (la.stoch.linear, la.stoch.norm)]
    pairs += [(la.hidden, la.hidden_norm), (la.gates, None)]
    parts = [(x.weight, x.bias, *(() if n is None else (n.scale,))) for x, n in pairs]
    cell = [x for part in parts for x in part]
    return dream.Weights(*cell, *stacked(la.prior), la.logits.weight, la.logits.bias,
                         *stacked(la.actor))  # fmt: skip


def stacked(net: Any) -> list[Float[Tensor, " ..."]]:
    """Return weight and bias of an MLP's first layer, those of the others, and every scale."""
    first, *more = (layer.linear for layer in net)
    none = first.weight.new_empty(0)
    weight = torch.stack([x.weight for x in more]) if more else none
    bias = torch.stack([x.bias for x in more]) if more else none
    return [first.weight, first.bias, weight, bias, torch.stack([x.norm.scale for x in net])]


__all__ = ["STYLE", "Choices", "Layers", "available", "fits", "imagine"]
