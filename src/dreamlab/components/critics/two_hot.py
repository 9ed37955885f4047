"""Values of latent states and actions as distributions, by an ensemble with random pairs."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dreamlab.nn.normed import EnsembleNormedMLP
from dreamlab.ops.even_bins import EvenBins


class TwoHotCritics(EnsembleNormedMLP):
    """`num` critics that predict value distributions over bins; initial values are 0."""

    bins: Float[Tensor, " n"]

    def __init__(self, num: int, in_dim: int, hidden: int, bins: EvenBins, dropout: float) -> None:
        super().__init__(num, [in_dim, hidden, hidden], bins.num, dropout)
        self.kind = bins
        self.register_buffer("bins", bins.tensor(), persistent=False)

    def decode(self, logits: Float[Tensor, "*b n"]) -> Float[Tensor, "*b"]:
        """Decode distributions to values."""
        return self.kind.decode(logits, self.bins)

    def values(
        self,
        x: Float[Tensor, "*b d"],
        heads: Int[Tensor, " n"] | None = None,
        drop: bool = False,
    ) -> Float[Tensor, "n ..."]:
        """Return the values of all or the given critics, without training them."""
        return self.decode(self(x, heads, learn=False, drop=drop))


def draw_pairs(num: int, critics: int, device: torch.device) -> Int[Tensor, "{num} 2"]:
    """Sample `num` pairs of different critics on the device."""
    return torch.rand(num, critics, device=device).topk(2, 1).indices
