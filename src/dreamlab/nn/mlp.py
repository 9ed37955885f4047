"""Multilayer perceptron, and the layers every network is made of."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
}
Act = Literal["tanh", "relu", "silu", "elu", "gelu"]


def linear(in_dim: int, out_dim: int, gain: float | None = None) -> nn.Linear:
    """Return a linear layer: orthogonal with this gain and no bias at first, or torch's default."""
    layer = nn.Linear(in_dim, out_dim)
    if gain is not None:
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return layer


def stack(
    dims: list[int], act: Act, norm: bool = False, gain: float | None = None
) -> nn.Sequential:
    """Return linear layers between these sizes, each followed by its activation."""
    layers: list[nn.Module] = []
    for a, b in pairwise(dims):
        layers.append(linear(a, b, gain))
        if norm:
            layers.append(nn.LayerNorm(b))
        layers.append(ACTIVATIONS[act]())
    return nn.Sequential(*layers)


class Memoryless(nn.Module):
    """A network whose output at a step depends on that step alone."""

    out_dim: int
    recurrent = False

    def initial_state(self, batch: int, device: torch.device) -> Any:
        return ()


@dataclass(frozen=True)
class IdentityConfig:
    """Has no options."""


class Identity(Memoryless):
    """Passes features on."""

    Config = IdentityConfig

    def __init__(self, config: IdentityConfig, in_dim: int) -> None:
        super().__init__()
        self.out_dim = in_dim

    def forward(
        self, x: Tensor, state: Any = (), is_first: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        return x, state


@dataclass(frozen=True)
class MLPConfig:
    """Hidden layers; the last one is the output."""

    hidden: tuple[int, ...] = (64, 64)
    act: Act = "tanh"
    norm: bool = False
    gain: float | None = 2**0.5
    """Gain of the orthogonal initialisation; None uses torch's default."""


class MLP(Memoryless):
    """Hidden layers with an activation after each."""

    Config = MLPConfig

    def __init__(self, config: MLPConfig, in_dim: int) -> None:
        super().__init__()
        self.layers = stack([in_dim, *config.hidden], config.act, config.norm, config.gain)
        self.out_dim = config.hidden[-1] if config.hidden else in_dim

    def forward(
        self, x: Tensor, state: Any = (), is_first: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        return self.layers(x), state
