"""A recurrent network whose state is reset at episode starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from dreamlab.core.limits import Width
from dreamlab.nn.mlp import Act, stack


@dataclass(frozen=True)
class RNNConfig:
    """One recurrent layer after an optional MLP."""

    cell: Literal["gru", "lstm"] = "gru"
    hidden: Width = 128
    before: tuple[Width, ...] = (64,)
    act: Act = "tanh"


class RNN(nn.Module):
    """MLP, then GRU or LSTM; the state is zeroed where `is_first` is set.

    step      0      1      2      3
    is_first  0      0      1      0
    state     s  ──▶ .  ──▶ 0  ──▶ .       input state of the cell at that step
    """

    Config = RNNConfig
    recurrent = True

    def __init__(self, config: RNNConfig, in_dim: int) -> None:
        super().__init__()
        self.before = stack([in_dim, *config.before], config.act, gain=2**0.5)
        width = config.before[-1] if config.before else in_dim
        self.is_lstm = config.cell == "lstm"
        self.cell = (nn.LSTMCell if self.is_lstm else nn.GRUCell)(width, config.hidden)
        self.out_dim = config.hidden

    def initial_state(self, batch: int, device: torch.device) -> Any:
        zeros = torch.zeros(batch, self.out_dim, device=device)
        return (zeros, zeros.clone()) if self.is_lstm else (zeros,)

    def forward(
        self, x: Float[Tensor, "b t d"], state: Any, is_first: Bool[Tensor, "b t"]
    ) -> tuple[Float[Tensor, "b t k"], Any]:
        """Run over time; `state` is the one before the first step."""
        keep = (~is_first).to(x.dtype)[..., None]
        outs: list[Tensor] = []
        for inputs, k in zip(self.before(x).unbind(1), keep.unbind(1), strict=True):
            state = tuple(s * k for s in state)
            state = self.cell(inputs, state) if self.is_lstm else (self.cell(inputs, state[0]),)
            outs.append(state[0])
        return torch.stack(outs, 1), state
