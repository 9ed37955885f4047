"""TensorFlow 1's LSTM: one bias, a forget gate that starts open, resettable state."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

Memory = tuple[Tensor, Tensor]
"""Output and cell, both [n, hidden]."""


class OneBiasLSTM(nn.Module):
    """`nn.LSTM` has two redundant biases; this one has one."""

    reads_children = True
    weight_methods = ("step",)

    def __init__(self, in_dim: int, hidden: int, forget_bias: float = 1.0) -> None:
        super().__init__()
        self.in_dim, self.hidden, self.forget_bias = in_dim, hidden, forget_bias
        self.gates = nn.Linear(in_dim + hidden, 4 * hidden)

    def step(self, x: Float[Tensor, "n d"], memory: Memory) -> Memory:
        """Return the state after one input."""
        return self._gated(self.gates(torch.cat([x, memory[0]], -1)), memory[1])

    def _gated(self, gates: Float[Tensor, "n g"], cell: Float[Tensor, "n k"]) -> Memory:
        enter, new, forget, out = gates.chunk(4, -1)
        keep = torch.sigmoid(forget + self.forget_bias)
        cell = cell * keep + torch.sigmoid(enter) * torch.tanh(new)
        return torch.tanh(cell) * torch.sigmoid(out), cell

    def forward(
        self, x: Float[Tensor, "b t d"], memory: Memory, is_first: Bool[Tensor, "b t"]
    ) -> tuple[Float[Tensor, "b t k"], Float[Tensor, "b t k"]]:
        """Return outputs and cells over time; the state is zeroed where `is_first` is set."""
        inner, outer = self.gates.weight.split([self.in_dim, self.hidden], 1)
        entering = F.linear(x, inner, self.gates.bias)  # no recurrence: all steps at once
        keep = (~is_first).to(x.dtype)[..., None]
        outs: list[Tensor] = []
        cells: list[Tensor] = []
        out, cell = memory
        for part, k in zip(entering.unbind(1), keep.unbind(1), strict=True):
            out, cell = self._gated(part + F.linear(out * k, outer), cell * k)
            outs.append(out)
            cells.append(cell)
        return torch.stack(outs, 1), torch.stack(cells, 1)
