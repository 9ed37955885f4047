"""Autoregressive policy: each action entry is a token that depends on those before it.

token       obs   a[0,0]  a[0,1]  a[1,0]  ...     of a chunk, entry by entry, step by step
predicts  a[0,0]  a[0,1]  a[1,0]   ...
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dreamlab.components.policies.protocol import Policy, PolicyConfig, check_bounded
from dreamlab.core.limits import Decay, Depth, Positive, PositiveInt, Range, Width
from dreamlab.core.types import Mode, Obs, Spec
from dreamlab.nn.dists import Categorical
from dreamlab.nn.transformer import Block, KeysValues

Choose = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class AutoregressiveConfig(PolicyConfig):
    """Sizes of PA-RL's transformer."""

    bins: Annotated[int, Range(2, 65_536)] = 128
    """Number of values of an entry, evenly spaced over [-1, 1]."""
    grid: Literal["points", "centers"] = "points"
    """Values at the ends and between them, or at the centers of bins of equal width."""
    dim: Width = 256
    heads: Width = 8
    layers: Depth = 4
    dropout: Decay = 0.1
    obs_dim: Width = 128
    """Hidden units between the observations' features and their token."""
    temperature: Positive = 1.0
    """Softmax temperature of samples; log-probabilities use 1."""
    top_k: PositiveInt | None = None
    """Sample only among this many likeliest values."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dim % self.heads:
            raise ValueError(f"dim={self.dim} must be a multiple of heads={self.heads}")
        if self.top_k is not None and self.top_k > self.bins:
            raise ValueError(f"top_k={self.top_k} is more than there are bins={self.bins}")


class AutoregressivePolicy(Policy):
    """A causal transformer over action tokens, trained with cross-entropy.

    `log_prob` is that of the bins: a probability, not a density.
    """

    Config = AutoregressiveConfig
    has_log_prob = True
    weight_methods = ("logits", "decode")
    values: Float[Tensor, " k"]

    def __init__(self, config: AutoregressiveConfig, spec: Spec) -> None:
        super().__init__(config, spec)
        check_bounded(spec.action, "autoregressive")
        self.config, dim = config, config.dim
        self.num = self.horizon * self.action_dim
        self.start = nn.Sequential(
            nn.Linear(self.feature_dim, config.obs_dim), nn.ELU(), nn.Linear(config.obs_dim, dim)
        )
        self.embed = nn.Parameter(0.02 * torch.randn(self.action_dim, config.bins, dim))
        self.place = nn.Parameter(0.02 * torch.randn(self.num, dim))
        self.blocks = nn.ModuleList(
            Block(dim, config.heads, config.dropout) for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Sequential(nn.Linear(dim, dim), nn.ELU(), nn.Linear(dim, config.bins))
        self.register_buffer("values", bin_values(config), persistent=False)

    def sample(
        self, obs: Obs, n: int = 1, *, mode: Mode = Mode.TRAIN
    ) -> Float[Tensor, "b {n} h a"]:
        """Sample grid values token by token, or decode greedily."""
        start = self.start(self.features(obs)).repeat_interleave(n, 0)
        tokens = self.decode(start, self.draw if mode.samples else best)
        chunk = self.values[tokens].unflatten(1, (self.horizon, self.action_dim))
        return chunk.unflatten(0, (-1, n))

    def loss(self, obs: Obs, action: Float[Tensor, "b h a"]) -> Float[Tensor, " b"]:
        """Return the cross-entropy of the nearest grid values, summed over the chunk."""
        return -self.log_prob(obs, action)

    def log_prob(self, obs: Obs, action: Float[Tensor, "b h a"]) -> Float[Tensor, " b"]:
        tokens = self.tokens(action)
        logits = self.logits(self.start(self.features(obs)), tokens)
        return Categorical(logits).log_prob(tokens).sum(-1)

    def tokens(self, action: Float[Tensor, "b h a"]) -> Int[Tensor, "b k"]:
        """Return the nearest grid values of a chunk's entries, in prediction order."""
        first, last = self.values[0], self.values[-1]
        place = (action.flatten(1) - first) / (last - first) * (self.config.bins - 1)
        return place.round().clamp(0, self.config.bins - 1).long()

    def logits(
        self, start: Float[Tensor, "b d"], tokens: Int[Tensor, "b k"]
    ) -> Float[Tensor, "b k bins"]:
        """Return the logits of every token given those before it."""
        x = torch.cat([start[:, None], self.embedded(tokens[:, :-1], 0)], 1) + self.place
        mask = torch.ones(1, self.num, self.num, dtype=torch.bool, device=x.device).tril()
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x)).float()

    def decode(self, start: Float[Tensor, "b d"], choose: Choose) -> Int[Tensor, "b k"]:
        """Decode tokens, each chosen from its logits [b, bins], with cached keys and values."""
        found: list[Tensor] = []
        past: list[KeysValues | None] = [None] * len(self.blocks)
        x = start[:, None]
        for i in range(self.num):
            x = x + self.place[i]
            for j, block in enumerate(self.blocks):
                assert isinstance(block, Block)
                x, past[j] = block.extend(x, past[j])
            found.append(choose(self.head(self.norm(x[:, 0])).float()))
            x = self.embedded(found[-1][:, None], i)
        return torch.stack(found, 1)

    def embedded(self, tokens: Int[Tensor, "b k"], first: int) -> Float[Tensor, "b k d"]:
        """Embed consecutive tokens, starting at position `first`."""
        entry = (torch.arange(tokens.shape[1], device=tokens.device) + first) % self.action_dim
        return self.embed[entry, tokens]

    def draw(self, logits: Float[Tensor, "b bins"]) -> Int[Tensor, " b"]:
        """Sample a value per row with temperature and top-k."""
        logits = logits / self.config.temperature
        if self.config.top_k is not None:
            least = logits.topk(self.config.top_k, -1).values[:, -1:]
            logits = logits.masked_fill(logits < least, -torch.inf)
        return Categorical(logits).sample()


def best(logits: Float[Tensor, "b bins"]) -> Int[Tensor, " b"]:
    """Return the likeliest value of each row."""
    return logits.argmax(-1)


def bin_values(config: AutoregressiveConfig) -> Float[Tensor, " k"]:
    """Return the values of the tokens."""
    edge = 1.0 if config.grid == "points" else 1 - 1 / config.bins
    return torch.linspace(-edge, edge, config.bins)
