"""Multilayer perceptron, and basic layers of all networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from dreamlab.accel.fused_mlp import compiled, compiled_mlp, fused_mlp, usable
from dreamlab.core.limits import NonNegative, Width

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": partial(nn.ReLU, inplace=True),  # a linear layer's gradient does not need its output
    "silu": nn.SiLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
}
Fused = Callable[[Tensor, str, bool, Sequence[Tensor]], Tensor]
Act = Literal["tanh", "relu", "silu", "elu", "gelu"]


def linear(in_dim: int, out_dim: int, gain: float | None = None) -> nn.Linear:
    """Build a linear layer: orthogonal with this gain and zero bias, or torch's default."""
    layer = nn.Linear(in_dim, out_dim)
    if gain is not None:
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return layer


def stack(
    dims: list[int], act: Act, norm: bool = False, gain: float | None = None
) -> nn.Sequential:
    """Build linear layers of these sizes, each followed by its activation."""
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
    """No options."""


class Identity(Memoryless):
    """Returns its input."""

    Config = IdentityConfig

    def __init__(self, config: IdentityConfig, in_dim: int) -> None:
        super().__init__()
        self.out_dim = in_dim

    def forward(
        self, x: Float[Tensor, "*b d"], state: Any = (), is_first: Bool[Tensor, "*b"] | None = None
    ) -> tuple[Float[Tensor, "*b d"], Any]:
        return x, state


@dataclass(frozen=True)
class MLPConfig:
    """Hidden layers; the last one is the output."""

    hidden: tuple[Width, ...] = (64, 64)
    act: Act = "tanh"
    norm: bool = False
    gain: NonNegative | None = 2**0.5
    """Gain of the orthogonal initialization; None uses torch's default."""


class MLP(Memoryless):
    """Hidden layers with an activation after each."""

    Config = MLPConfig

    def __init__(self, config: MLPConfig, in_dim: int) -> None:
        super().__init__()
        self.layers = stack([in_dim, *config.hidden], config.act, config.norm, config.gain)
        self.out_dim = config.hidden[-1] if config.hidden else in_dim
        self.act = config.act
        self.fusible = config.act in ("tanh", "relu") and not config.norm and bool(config.hidden)
        self.flat = list(self.layers.parameters())  # a plain list: named and saved once, as layers

    def forward(
        self, x: Float[Tensor, "*b d"], state: Any = (), is_first: Bool[Tensor, "*b"] | None = None
    ) -> tuple[Float[Tensor, "*b k"], Any]:
        run = self._fused(x)
        if run is None:
            return self.layers(x), state
        return _by_rows(run, x, self.act, self.flat, False), state

    def into(self, head: nn.Linear, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b k"]:
        """Apply `head` to the output, fused where that is faster."""
        run = self._fused(x)
        if run is None:
            return head(self.layers(x))
        return _by_rows(run, x, self.act, [*self.flat, head.weight, head.bias], True)

    def _fused(self, x: Float[Tensor, "*b d"]) -> Fused | None:
        """Return the fused form for an input, if there is one."""
        if not self.fusible:
            return None
        if usable(x):
            return fused_mlp
        return compiled_mlp if compiled(x) else None


def _by_rows(
    run: Fused,
    x: Float[Tensor, "*b d"],
    act: str,
    params: Sequence[Float[Tensor, " ..."]],
    head: bool,
) -> Float[Tensor, "*b k"]:
    if x.ndim == 2:
        return run(x, act, head, params)
    y = run(x.reshape(-1, x.shape[-1]), act, head, params)
    return y.view(*x.shape[:-1], y.shape[-1])


def chain(
    net: nn.Module,
    head: nn.Linear,
    x: Float[Tensor, "*b d"],
    state: Any = (),
    is_first: Bool[Tensor, "*b"] | None = None,
) -> tuple[Float[Tensor, "*b k"], Any]:
    """Apply a linear head to a network's output; return it and the next state."""
    if isinstance(net, MLP):
        return net.into(head, x), state
    y, state = net(x, state, is_first)
    return head(y), state
