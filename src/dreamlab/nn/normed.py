"""Layers of TD-MPC2 (Hansen et al. 2024, arXiv:2310.16828): normalized, with simplicial latents.

A layer is linear, dropout, layer norm, activation, in this order. `EnsembleNormedMLP` batches
several such networks, each with its own norms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from dreamlab.accel import cpu_fast
from dreamlab.accel.dispatch import use_cpu_kernels
from dreamlab.nn.ensemble import EnsembleLinear, picked
from dreamlab.nn.layers import LayerNorm

EPS = 1e-5
"""Epsilon of the norms."""
Activation = Callable[..., Any]
Start = Literal["normal", "zero"]
"""Weight initialization of an output layer."""


class SimNorm(nn.Module):
    """Applies softmax to every group of `dim` entries."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        groups = x.float().unflatten(-1, (-1, self.dim))
        share = cpu_fast.small_softmax(groups) if use_cpu_kernels(x) else F.softmax(groups, -1)
        return share.flatten(-2)


def mish(x: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """Compute x tanh(softplus(x))."""
    return cpu_fast.mish(x) if use_cpu_kernels(x) else F.mish(x)


def start_linear(layer: nn.Linear | EnsembleLinear, start: Start = "normal") -> None:
    """Initialize weights from a narrow Gaussian, or to zero; biases to zero."""
    if start == "normal":
        nn.init.trunc_normal_(layer.weight, std=0.02)
    else:
        nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)


class NormedLinear(nn.Module):
    """A linear layer, normalized, then an activation."""

    def __init__(self, in_dim: int, out_dim: int, act: Activation = mish) -> None:
        super().__init__()
        self.linear = nn.Linear(in_dim, out_dim)
        self.norm = LayerNorm(out_dim, EPS)
        self.act = act
        start_linear(self.linear)

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b k"]:
        return self.act(self.norm(self.linear(x)))


class NormedMLP(nn.Module):
    """Normalized hidden layers, then a linear or, with an `act`, a normalized output layer."""

    def __init__(
        self,
        dims: Sequence[int],
        out_dim: int,
        act: Activation | None = None,
        start: Start = "normal",
    ) -> None:
        super().__init__()
        self.hidden = nn.Sequential(*(NormedLinear(a, b) for a, b in pairwise(dims)))
        if act is None:
            self.out: nn.Module = nn.Linear(dims[-1], out_dim)
            start_linear(self.out, start)
        else:
            self.out = NormedLinear(dims[-1], out_dim, act)

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b k"]:
        return self.out(self.hidden(x))


class EnsembleNorm(nn.Module):
    """A layer norm for each of `num` members."""

    def __init__(self, num: int, dim: int) -> None:
        super().__init__()
        # flat, as in every other norm: only weights of matrix products have bfloat16 copies
        self.scale = nn.Parameter(torch.ones(num * dim))
        self.shift = nn.Parameter(torch.zeros(num * dim))
        self.shape = (num, 1, dim)

    def forward(
        self, x: Float[Tensor, "n b d"], heads: Int[Tensor, " n"] | None, learn: bool
    ) -> Float[Tensor, "n b d"]:
        """Normalize the rows of all members, or only of `heads`; see `picked`."""
        scale, shift = (picked(p.view(self.shape), heads, learn) for p in (self.scale, self.shift))
        unit = F.layer_norm(x.float(), x.shape[-1:], eps=EPS)
        return (unit * scale + shift).to(x.dtype)


class EnsembleNormedMLP(nn.Module):
    """`num` networks of the same shape; dropout is between the first product and its norm."""

    def __init__(self, num: int, dims: Sequence[int], out_dim: int, dropout: float) -> None:
        super().__init__()
        self.num, self.dropout = num, dropout
        linears = [EnsembleLinear(num, a, b) for a, b in pairwise([*dims, out_dim])]
        self.linears: Any = nn.ModuleList(linears)
        self.norms: Any = nn.ModuleList(EnsembleNorm(num, b) for b in dims[1:])
        for i, layer in enumerate(linears):
            start_linear(layer, "normal" if i < len(self.norms) else "zero")

    def forward(
        self,
        x: Float[Tensor, "*b d"],
        heads: Int[Tensor, " n"] | None = None,
        learn: bool = True,
        drop: bool = False,
    ) -> Float[Tensor, "n *b k"]:
        """Return the outputs of all members, or only of `heads`.

        Without `learn`, gradients reach the input, but no weights.
        """
        lead = x.shape[:-1]
        y = x.reshape(-1, x.shape[-1])
        y = y.expand(self.num if heads is None else heads.shape[0], *y.shape)
        last = len(self.norms)
        for i, layer in enumerate(self.linears):
            y = layer(y, heads, learn)
            if i < last:
                y = F.dropout(y, self.dropout, drop and i == 0)
                y = mish(self.norms[i](y, heads, learn))
        return y.unflatten(1, lead)
