"""DreamerV3's imagination without gradients in one call, on devices with kernels for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from dreamlab.accel import dream
from dreamlab.accel.dispatch import use_triton
from dreamlab.accel.dream import Actions, fits
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


Choose = Callable[[Float[Tensor, "n v"]], tuple[Shaped[Tensor, "n ..."], Float[Tensor, "n u"]]]
"""Maps the actor's last hidden layer to an action, and to the cell's input layer of it."""


class Output(NamedTuple):
    """The modules that make an action of the actor's last hidden layer, and read it."""

    mean: Any
    """A linear layer: the mean, or logits of one choice, which has no `spread`."""
    spread: Any
    act: Any
    """The cell's `NormAct`."""
    actions: Actions


def available(x: Float[Tensor, " ..."]) -> bool:
    """Return whether dreams from states like this tensor can be computed in one call."""
    return use_triton(x) and not torch.is_grad_enabled() and dream.pays(dtype_of(x))


def imagine(
    layers: Layers,
    choices: Choices,
    start: tuple[Float[Tensor, "n d"], Float[Tensor, "n s"]],
    noise: Float[Tensor, "h n num classes"],
    choose: Choose,
    output: Output | None = None,
    halfway: Callable[[Float[Tensor, "n half f"]], None] | None = None,
) -> tuple[Float[Tensor, "n h+1 d+s"], Shaped[Tensor, "n h+1 ..."]]:
    """Imagine from states; return deterministic and stochastic parts side by side, and actions.

    With `output` actions are sampled in the same call, else by `choose`. The last one is sampled
    but not executed. `noise` is Gumbel noise. `halfway` gets the first half of the states as soon
    as they are made, if their number is even.
    """
    (rows, deter), dtype = start[0].shape, dtype_of(start[0])
    w = dream.Weights(*cast(weights(layers), dtype))
    widths = (len(w.hidden_bias), len(w.memory), len(w.actor))
    sizes = dream.Sizes(len(noise), rows, deter, *widths, *choices)
    how: Any = choose
    if output is not None:
        how = dream.Chosen(dream.Output(*cast(outputs(output), dtype)), output.actions)
    return dream.imagine(w, sizes, start, noise, how, halfway)


def cast(tensors: Any, dtype: torch.dtype) -> list[Float[Tensor, " ..."]]:
    """Return a named tuple's tensors in this precision, but scales of norms as they are."""
    return [x if k.endswith("_scale") else x.to(dtype) for k, x in tensors._asdict().items()]


def outputs(la: Output) -> dream.Output:
    """Return the output's tensors in the order of the kernels."""
    spread = la.mean if la.spread is None else la.spread
    parts = (la.mean.weight, la.mean.bias, spread.weight, spread.bias)
    return dream.Output(*parts, la.act.linear.weight, la.act.linear.bias, la.act.norm.scale)


def weights(layers: Layers) -> dream.Weights:
    """Return the layers' tensors in the order of the kernels."""
    la = layers
    pairs = [(la.memory.linear, la.memory.norm), (la.stoch.linear, la.stoch.norm)]
    pairs += [(la.hidden, la.hidden_norm), (la.gates, None)]
    parts = [(x.weight, x.bias, *(() if n is None else (n.scale,))) for x, n in pairs]
    every = [x for part in parts for x in part]
    every += [*stacked(la.prior), la.logits.weight, la.logits.bias, *stacked(la.actor)]
    return dream.Weights(*(x for x in every))


def stacked(net: Any) -> list[Float[Tensor, " ..."]]:
    """Return weight and bias of an MLP's first layer, those of the others, and every scale."""
    first, *more = (layer.linear for layer in net)
    none = first.weight.new_empty(0)
    weight = torch.stack([x.weight for x in more]) if more else none
    bias = torch.stack([x.bias for x in more]) if more else none
    return [first.weight, first.bias, weight, bias, torch.stack([x.norm.scale for x in net])]


__all__ = [
    "STYLE", "Actions", "Choices", "Choose", "Layers", "Output", "available", "fits", "imagine",
]  # fmt: skip
