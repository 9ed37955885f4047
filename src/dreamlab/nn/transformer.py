"""A causal transformer over the last steps of an episode, with the interface of an RNN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from dreamlab.core.limits import Depth, Width

KeysValues = tuple[Tensor, Tensor]
"""Cached keys and values of earlier tokens: each [b, heads, t, k]."""


@dataclass(frozen=True)
class TransformerConfig:
    """A small decoder; `context` is its attention span in steps."""

    dim: Width = 64
    heads: Width = 4
    layers: Depth = 2
    context: Width = 16

    def __post_init__(self) -> None:
        if self.dim % self.heads:
            raise ValueError(f"dim={self.dim} must be a multiple of heads={self.heads}")


class Block(nn.Module):
    """Pre-norm attention and MLP; `dropout` applies to attention and both residuals."""

    def __init__(self, dim: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(
        self, x: Float[Tensor, "b t d"], mask: Bool[Tensor, "#b t t"]
    ) -> Float[Tensor, "b t d"]:
        q, k, v = self._heads(x)
        drop = self.dropout if self.training else 0.0
        return self._finish(x, F.scaled_dot_product_attention(q, k, v, mask[:, None], drop))

    def extend(
        self, x: Float[Tensor, "b 1 d"], past: KeysValues | None
    ) -> tuple[Float[Tensor, "b 1 d"], KeysValues]:
        """Process one more token with cached keys and values; return its output and the new cache.

        Token by token, this equals `forward` with a causal mask.
        """
        q, k, v = self._heads(x)
        if past is not None:
            k, v = (torch.cat(both, 2) for both in zip(past, (k, v), strict=True))
        return self._finish(x, F.scaled_dot_product_attention(q, k, v)), (k, v)

    def _heads(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "3 b h t k"]:
        b, t, _ = x.shape
        return self.qkv(self.norm1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)

    def _finish(
        self, x: Float[Tensor, "b t d"], attended: Float[Tensor, "b h t k"]
    ) -> Float[Tensor, "b t d"]:
        """Add the attention output, then that of the MLP."""
        x = x + self._dropped(self.out(attended.transpose(1, 2).flatten(2)))
        return x + self._dropped(self.mlp(self.norm2(x)))

    def _dropped(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        return F.dropout(x, self.dropout, self.training) if self.dropout else x


class Transformer(nn.Module):
    """Attends to the last `context` steps of the same episode. Its state is their inputs.

    A step sees itself and earlier steps, none from before the latest `is_first`, none further back
    than `context`; so acting step by step and training on whole windows compute the same.
    """

    Config = TransformerConfig
    recurrent = True

    def __init__(self, config: TransformerConfig, in_dim: int) -> None:
        super().__init__()
        self.context, self.in_dim, self.out_dim = config.context, in_dim, config.dim
        self.embed = nn.Linear(in_dim, config.dim)
        self.age = nn.Embedding(config.context, config.dim)
        self.blocks = nn.ModuleList(Block(config.dim, config.heads) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.dim)

    def initial_state(self, batch: int, device: torch.device) -> Any:
        past = torch.zeros(batch, self.context - 1, self.in_dim, device=device)
        return past, torch.zeros(batch, self.context - 1, dtype=torch.bool, device=device)

    def forward(
        self, x: Float[Tensor, "b t d"], state: Any, is_first: Bool[Tensor, "b t"]
    ) -> tuple[Float[Tensor, "b t k"], Any]:
        """Run over time; the state holds the inputs before the first step, and which count."""
        past, seen = state
        seen = seen & ~is_first[:, :1]
        x = torch.cat([past, x], 1)
        exists = torch.cat([seen, torch.ones_like(is_first)], 1)
        starts = torch.cat([torch.zeros_like(seen), is_first], 1).cumsum(1)
        # every query has its own window, so positions mean the same in acting and training
        windows = x.unfold(1, self.context, 1).transpose(2, 3)
        same = starts.unfold(1, self.context, 1) == starts[:, self.context - 1 :, None]
        visible = exists.unfold(1, self.context, 1) & same
        y = self._attend(windows.flatten(0, 1), visible.flatten(0, 1))
        keep = slice(x.shape[1] - self.context + 1, None)
        alive = exists[:, keep] & (starts[:, keep] == starts[:, -1:])
        return y.view(*is_first.shape, -1), (x[:, keep], alive)

    def _attend(
        self, window: Float[Tensor, "n t d"], visible: Bool[Tensor, "n t"]
    ) -> Float[Tensor, "n k"]:
        """Return the output at the last position of each window."""
        n = window.shape[1]
        causal = torch.ones(n, n, dtype=torch.bool, device=window.device).tril()
        mask = causal & visible[:, None, :] | torch.eye(n, dtype=torch.bool, device=window.device)
        h = self.embed(window) + self.age(torch.arange(n, device=window.device))
        for block in self.blocks:
            h = block(h, mask)
        return self.norm(h[:, -1])
