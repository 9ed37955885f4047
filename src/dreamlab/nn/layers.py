"""Layers of world models: normalization, initialization and blocks as in DreamerV3."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from dreamlab.accel.dispatch import use_gpu_kernels
from dreamlab.core.limits import Depth, Width

NormKind = Literal["rms", "layer", "none"]
ACTS = {"silu": F.silu, "elu": F.elu, "relu": F.relu, "tanh": torch.tanh, "gelu": F.gelu}
ActKind = Literal["silu", "elu", "relu", "tanh", "gelu"]


@dataclass(frozen=True)
class LayerStyle:
    """Normalization and activation after every linear layer."""

    norm: NormKind = "rms"
    """`layer` is that of DreamerV3 in 2023."""
    act: ActKind = "silu"


@dataclass(frozen=True)
class NetConfig(LayerStyle):
    """Hidden layers of one width."""

    units: Width = 1024
    layers: Depth = 3


class RMSNorm(nn.Module):
    """x / sqrt(mean x^2 + eps) * scale over the last axis, in full precision."""

    def __init__(self, dim: int, eps: float = 1e-4) -> None:
        super().__init__()
        self.scale, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        return F.rms_norm(x.float(), self.scale.shape, self.scale, self.eps).to(x.dtype)


class LayerNorm(nn.Module):
    """Layer normalization over the last axis, in full precision."""

    def __init__(self, dim: int, eps: float = 1e-3) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))
        self.eps = eps

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        y = F.layer_norm(x.float(), self.scale.shape, self.scale, self.shift, self.eps)
        return y.to(x.dtype)


def norm(kind: NormKind, dim: int) -> nn.Module:
    """Build the normalization of this kind."""
    if kind == "none":
        return nn.Identity()
    return RMSNorm(dim) if kind == "rms" else LayerNorm(dim)


def trunc_normal_(weight: Float[Tensor, " ..."], fan_in: int, scale: float = 1.0) -> None:
    """Fill with a Gaussian truncated at two deviations, with variance scale^2 / fan_in."""
    std = 1.1368 * math.sqrt(1.0 / fan_in)
    with torch.no_grad():
        nn.init.trunc_normal_(weight, 0.0, 1.0, -2.0, 2.0).mul_(std * scale)


def dense(in_dim: int, out_dim: int, scale: float = 1.0, bias: bool = True) -> nn.Linear:
    """Build a linear layer with truncated normal initialization; `scale` 0 gives zeros."""
    layer = nn.Linear(in_dim, out_dim, bias)
    trunc_normal_(layer.weight, in_dim, scale)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def filled_up(layer: nn.Linear, x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b k"]:
    """Apply a linear layer with an odd number of outputs, such as 255 bins, padded.

    GPU matrix products are much faster with a multiple of 8.
    """
    num = layer.weight.shape[0]
    spare = -num % 8
    if not spare or not use_gpu_kernels(x):
        return layer(x)
    weight, bias = F.pad(layer.weight, [0, 0, 0, spare]), F.pad(layer.bias, [0, spare])
    return F.linear(x, weight, bias)[..., :num]


class BlockLinear(nn.Module):
    """A linear layer with a block-diagonal weight.

    It is initialized with the fan-in of the whole input (`blocks * in`), as in the original.
    """

    def __init__(self, blocks: int, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(blocks, in_dim, out_dim))
        self.bias = nn.Parameter(torch.zeros(blocks, out_dim))
        trunc_normal_(self.weight, blocks * in_dim)

    def forward(
        self, x: Float[Tensor, "*b g d"], common: Float[Tensor, "*b m"] | None = None
    ) -> Float[Tensor, "*b g k"]:
        """Return the output of every block; `common` is appended to the input of each block."""
        if common is None:
            y = torch.bmm(x.flatten(0, -3).transpose(0, 1), self.weight).transpose(0, 1)
            return (y + self.bias.to(y.dtype)).reshape(*x.shape[:-1], -1)
        own, shared = self.weight.split([x.shape[-1], common.shape[-1]], 1)
        y = torch.bmm(common.expand(len(shared), *common.shape), shared)
        y = torch.baddbmm(y, x.transpose(0, 1).to(y.dtype), own.to(y.dtype)).transpose(0, 1)
        return y + self.bias.to(y.dtype)


class NormAct(nn.Module):
    """A linear layer, normalized, then an activation."""

    def __init__(self, in_dim: int, out_dim: int, style: LayerStyle) -> None:
        super().__init__()
        # a bias is redundant before a norm with a shift
        self.linear = dense(in_dim, out_dim, bias=style.norm != "layer")
        self.norm = norm(style.norm, out_dim)
        self.act = ACTS[style.act]

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b k"]:
        return self.act(self.norm(self.linear(x)))


class NormMLP(nn.Sequential):
    """Normalized hidden layers of one width."""

    def __init__(self, in_dim: int, units: int, layers: int, style: LayerStyle) -> None:
        dims = [in_dim] + [units] * layers
        super().__init__(*(NormAct(a, b, style) for a, b in pairwise(dims)))
        self.out_dim = dims[-1]
