"""A transformer that denoises sequences (Chi et al. 2023): actions attend to time and observations.

token       time  o0   o1             what is attended to
action 0     x    x                   an action sees the observations up to its own step,
action 1     x    x    x              the time, and the actions up to itself
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from dreamlab.core.limits import Decay, Depth, Width
from dreamlab.nn.denoiser import Denoiser, DenoiserSizes, Sinusoids

INIT_STD = 0.02


@dataclass(frozen=True)
class DenoisingTransformerConfig:
    """Sizes of diffusion policy; `dropout` is 0.01 for PushT from states."""

    dim: Width = 256
    heads: Width = 4
    layers: Depth = 8
    dropout: Decay = 0.3
    """Dropout of attention and of the residuals."""

    def __post_init__(self) -> None:
        if self.dim % (2 * self.heads):
            raise ValueError(f"dim={self.dim} must be a multiple of 2 * heads={2 * self.heads}")


class Attention(nn.Module):
    """Multi-head attention of some tokens to others."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query, self.key_value = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(
        self, x: Float[Tensor, "b t d"], seen: Float[Tensor, "b s d"], mask: Bool[Tensor, "t s"]
    ) -> Float[Tensor, "b t d"]:
        q, k, v = (
            y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for y in (self.query(x), *self.key_value(seen).chunk(2, -1))
        )
        drop = self.dropout if self.training else 0.0
        return self.out(
            F.scaled_dot_product_attention(q, k, v, mask, drop).transpose(1, 2).flatten(2)
        )


class DecoderBlock(nn.Module):
    """Pre-norm self-attention, cross-attention to the condition, then an MLP."""

    def __init__(self, config: DenoisingTransformerConfig) -> None:
        super().__init__()
        dim, drop = config.dim, config.dropout
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))
        self.own, self.other = (Attention(dim, config.heads, drop) for _ in range(2))
        self.mlp = nn.Sequential(
            nn.Linear(dim, 4 * dim), nn.GELU(), nn.Dropout(drop), nn.Linear(4 * dim, dim)
        )
        self.drop = nn.Dropout(drop)

    def forward(
        self, x: Float[Tensor, "b t d"], cond: Float[Tensor, "b s d"],
        causal: Bool[Tensor, "t t"], visible: Bool[Tensor, "t s"],
    ) -> Float[Tensor, "b t d"]:  # fmt: skip
        y = self.norms[0](x)
        x = x + self.drop(self.own(y, y, causal))
        x = x + self.drop(self.other(self.norms[1](x), cond, visible))
        return x + self.drop(self.mlp(self.norms[2](x)))


class DenoisingTransformer(Denoiser):
    """A causal decoder over the sequence that cross-attends to time and conditions."""

    Config = DenoisingTransformerConfig
    causal: Bool[Tensor, "h h"]
    visible: Bool[Tensor, "h s"]

    def __init__(self, config: DenoisingTransformerConfig, sizes: DenoiserSizes) -> None:
        super().__init__()
        dim, horizon, tokens = config.dim, sizes.horizon, sizes.tokens
        self.time = Sinusoids(dim)
        self.into, self.into_cond = nn.Linear(sizes.width, dim), nn.Linear(sizes.cond_dim, dim)
        self.place = nn.Parameter(INIT_STD * torch.randn(horizon, dim))
        self.cond_place = nn.Parameter(INIT_STD * torch.randn(1 + tokens, dim))
        self.cond = nn.Sequential(nn.Linear(dim, 4 * dim), nn.Mish(), nn.Linear(4 * dim, dim))
        self.blocks = nn.ModuleList(DecoderBlock(config) for _ in range(config.layers))
        self.out = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, sizes.width))
        causal, visible = masks(horizon, tokens)
        self.register_buffer("causal", causal, persistent=False)
        self.register_buffer("visible", visible, persistent=False)
        self.apply(_begin)

    def forward(
        self, x: Float[Tensor, "b h a"], time: Float[Tensor, " b"], cond: Float[Tensor, "b t d"]
    ) -> Float[Tensor, "b h a"]:
        tokens = torch.cat([self.time(time)[:, None], self.into_cond(cond)], 1)
        memory = self.cond(tokens + self.cond_place)
        y = self.into(x) + self.place
        for block in self.blocks:
            y = block(y, memory, self.causal, self.visible)
        return self.out(y)


def masks(horizon: int, tokens: int) -> tuple[Bool[Tensor, "h h"], Bool[Tensor, "h s"]]:
    """Return which actions and conditions each action sees; the first condition is the time."""
    step = torch.arange(horizon)[:, None]
    return step >= torch.arange(horizon), step >= torch.arange(-1, tokens)


def _begin(module: nn.Module) -> None:
    """Initialize linear layers with small weights and zero bias."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, 0.0, INIT_STD)
        nn.init.zeros_(module.bias)
