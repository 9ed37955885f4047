"""DreamerV3's recurrence over whole sequences in one call, on devices with a kernel for it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor
from torch.nn import functional as F

from dreamlab.accel import rssm_scan
from dreamlab.accel.dispatch import use_triton
from dreamlab.accel.rssm_scan import fits
from dreamlab.accel.side_stream import SideStream

STYLE = ("rms", "silu")
"""Norm and activation implemented by the kernels."""


class Layers(NamedTuple):
    """The modules of a step, in this style."""

    memory: Any
    """`NormAct` of the deterministic part; `stoch` of the stochastic."""
    stoch: Any
    hidden: Any
    """`BlockLinear`, then `hidden_norm`, then the gates' `BlockLinear`."""
    hidden_norm: Any
    gates: Any
    look: Any
    """`NormAct` of deterministic state and tokens; `logits` is linear."""
    logits: Any


class Choices(NamedTuple):
    """The stochastic part: number of categoricals, their classes, and the uniform share."""

    num: int
    classes: int
    unimix: float


def available(x: Shaped[Tensor, " ..."]) -> bool:
    """Return whether sequences like this tensor can be scanned in one call."""
    return use_triton(x)


def scan(
    layers: Layers,
    choices: Choices,
    inputs: tuple[Float[Tensor, "b t u"], Float[Tensor, "b t e"], Bool[Tensor, "b t"]],
    noise: Float[Tensor, "t b num classes"],
    start: tuple[Float[Tensor, "b d"], Float[Tensor, "b s"]],
) -> tuple[Float[Tensor, "b t d"], Float[Tensor, "b t s"], Float[Tensor, "b t s"]]:
    """Filter sequences from an initial state; `inputs` are the action's layer, tokens, is_first.

    Return deterministic states, samples and logits. `noise` is Gumbel noise.
    """
    x2, tokens, is_first = inputs
    dtype, deter = rssm_scan.dtype_of(tokens), start[0].shape[-1]
    side = SideStream(tokens.device, urgent=False, name="weights")
    with side:  # their gradients are computed there, beside the encoder's and what others overlap
        linked = rssm_scan.linked(weights(layers, dtype, deter))
    side.join()
    keep = (~is_first).to(dtype)
    look = layers.look.linear.weight[:, deter:]
    seen = F.linear(tokens.to(dtype), look.to(dtype))
    w = linked.weights
    (b, t), (blocks, width) = is_first.shape, (len(w.hidden_bias), len(w.memory))
    sizes = rssm_scan.Sizes(t, b, deter, blocks, width, *choices)
    first = lambda x: x.to(dtype).transpose(0, 1)  # noqa: E731
    begin = (start[0].to(dtype), start[1].to(dtype))
    outs = rssm_scan.scan(linked, sizes, first(x2), first(seen), first(keep), noise, begin)
    deters, stochs, logits = (x.transpose(0, 1) for x in outs)
    return deters, stochs, logits


def weights(layers: Layers, dtype: torch.dtype, deter: int) -> rssm_scan.Weights:
    """Return the layers' tensors in the order of the kernels, without the tokens' part."""
    la = layers
    pairs = [(la.memory.linear, la.memory.norm), (la.stoch.linear, la.stoch.norm)]
    pairs += [(la.hidden, la.hidden_norm), (la.gates, None)]
    pairs += [(la.look.linear, la.look.norm), (la.logits, None)]
    cast = [
        (x.weight.to(dtype), x.bias.to(dtype), *(() if n is None else (n.scale,))) for x, n in pairs
    ]
    w = rssm_scan.Weights(*(x for part in cast for x in part))
    return w._replace(look=w.look[:, :deter])


__all__ = ["Choices", "Layers", "available", "fits", "scan"]
