"""Several MLPs of the same shape: each layer is a single batched product."""

from __future__ import annotations

from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call

from dreamlab.accel.fused_mlp import compiled, compiled_mlp, fused_mlp, usable
from dreamlab.nn.mlp import ACTIVATIONS, Act


class EnsembleLinear(nn.Module):
    """`num` linear layers, each initialized like `nn.Linear`."""

    def __init__(self, num: int, in_dim: int, out_dim: int) -> None:
        super().__init__()
        layers = [nn.Linear(in_dim, out_dim) for _ in range(num)]
        weights = torch.stack([layer.weight.detach().T for layer in layers])
        self.weight = nn.Parameter(weights.contiguous())
        self.bias = nn.Parameter(torch.stack([layer.bias.detach()[None] for layer in layers]))

    def forward(
        self, x: Float[Tensor, "n b d"], heads: Int[Tensor, " n"] | None = None, learn: bool = True
    ) -> Float[Tensor, "n b k"]:
        """Return the outputs of all members, or only of `heads`; see `picked`."""
        return torch.baddbmm(picked(self.bias, heads, learn), x, picked(self.weight, heads, learn))


def picked(
    p: Float[Tensor, "m ..."], heads: Int[Tensor, " n"] | None, learn: bool
) -> Float[Tensor, "n ..."]:
    """Return the weights of `heads`, or of all members; without `learn`, without gradients."""
    p = p if learn else p.detach()
    return p if heads is None else p.index_select(0, heads)


class EnsembleMLP(nn.Module):
    """`num` MLPs with `out_dim` outputs each."""

    def __init__(self, num: int, dims: list[int], out_dim: int, act: Act, norm: bool) -> None:
        super().__init__()
        self.num = num
        layers: list[nn.Module] = []
        for a, b in pairwise(dims):
            layers.append(EnsembleLinear(num, a, b))
            if norm:
                layers.append(nn.LayerNorm(b))
            layers.append(ACTIVATIONS[act]())
        self.layers = nn.Sequential(*layers, EnsembleLinear(num, dims[-1], out_dim))
        self.act = act
        self.fusible = act in ("tanh", "relu") and not norm
        self.flat = list(self.layers.parameters())  # a plain list: named and saved once, as layers

    def forward(self, x: Float[Tensor, "b d"], learn: bool = True) -> Float[Tensor, "num b k"]:
        """Return the outputs; without `learn`, gradients reach the input, but no weights."""
        x = x.expand(self.num, *x.shape)
        params = self.flat if learn else [p.detach() for p in self.flat]
        if self.fusible and usable(x):
            return fused_mlp(x, self.act, True, params)
        if self.fusible and compiled(x):
            return compiled_mlp(x, self.act, True, params)
        if learn or not torch.is_grad_enabled():
            return self.layers(x)
        names = [name for name, _ in self.layers.named_parameters()]
        return functional_call(self.layers, dict(zip(names, params, strict=True)), (x,))
