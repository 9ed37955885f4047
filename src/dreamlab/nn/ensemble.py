"""Several MLPs of one shape as one: every layer is a single batched product."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from dreamlab.nn.mlp import ACTIVATIONS, Act


class EnsembleLinear(nn.Module):
    """`num` linear layers: [num, b, in] to [num, b, out]; each starts as `nn.Linear` does."""

    def __init__(self, num: int, in_dim: int, out_dim: int) -> None:
        super().__init__()
        layers = [nn.Linear(in_dim, out_dim) for _ in range(num)]
        weights = torch.stack([layer.weight.detach().T for layer in layers])
        self.weight = nn.Parameter(weights.contiguous())
        self.bias = nn.Parameter(torch.stack([layer.bias.detach()[None] for layer in layers]))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


class EnsembleMLP(nn.Module):
    """`num` MLPs with `out_dim` outputs: [b, in] to [num, b, out_dim]."""

    def __init__(
        self, num: int, dims: list[int], out_dim: int, act: Act = "relu", norm: bool = False
    ) -> None:
        super().__init__()
        self.num = num
        layers: list[nn.Module] = []
        for a, b in pairwise(dims):
            layers.append(EnsembleLinear(num, a, b))
            if norm:
                layers.append(nn.LayerNorm(b))
            layers.append(ACTIVATIONS[act]())
        self.layers = nn.Sequential(*layers, EnsembleLinear(num, dims[-1], out_dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.expand(self.num, *x.shape))
