"""Values as distributions over bins evenly spaced in symlog space, as in TD-MPC2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dreamlab.core.limits import Finite, Range
from dreamlab.ops.scaling import symexp, symlog, symmetric_mean


@dataclass(frozen=True)
class EvenBins:
    """The bins; a decoded value is symexp of the mean bin, not the mean of symexp."""

    num: Annotated[int, Range(2, 65_536)] = 101
    low: Finite = -10.0
    high: Finite = 10.0

    def __post_init__(self) -> None:
        if self.low >= self.high:
            raise ValueError(f"low={self.low:g} must be below high={self.high:g}")

    @property
    def width(self) -> float:
        return (self.high - self.low) / (self.num - 1)

    def tensor(self) -> Float[Tensor, " {self.num}"]:
        """Return the bin centers."""
        return torch.linspace(self.low, self.high, self.num)

    def place(self, x: Float[Tensor, "*b"]) -> tuple[Int[Tensor, "*b"], Float[Tensor, "*b"]]:
        """Return the bin below each value, and the weight of the bin above."""
        at = (symlog(x).clamp(self.low, self.high) - self.low) / self.width
        below = at.floor()
        return below.long(), at - below

    def two_hot(self, x: Float[Tensor, "*b"]) -> Float[Tensor, "*b {self.num}"]:
        """Return the two-hot encoding of each value."""
        below, share = self.place(x)
        out = x.new_zeros(*x.shape, self.num)
        out.scatter_(-1, below[..., None], (1 - share)[..., None])
        return out.scatter_add_(-1, self._above(below)[..., None], share[..., None])

    def _above(self, below: Int[Tensor, "*b"]) -> Int[Tensor, "*b"]:
        return torch.where(below == self.num - 1, 0, below + 1)  # that bin has weight 0

    def loss(
        self, logits: Float[Tensor, "*#b n"], target: Float[Tensor, "*#b"]
    ) -> Float[Tensor, "*b"]:
        """Compute the cross-entropy to the two bins around each target."""
        below, share = self.place(target.detach())
        lead = torch.broadcast_shapes(logits.shape[:-1], below.shape)
        log_prob = torch.log_softmax(logits.float(), -1).expand(*lead, self.num)
        below, share = below.expand(lead), share.expand(lead)
        low = log_prob.gather(-1, below[..., None])[..., 0]
        high = log_prob.gather(-1, self._above(below)[..., None])[..., 0]
        return -((1 - share) * low + share * high)

    def decode(
        self, logits: Float[Tensor, "*b n"], bins: Float[Tensor, " n"]
    ) -> Float[Tensor, "*b"]:
        """Decode logits to values; `bins` is `tensor()` on their device."""
        logits = logits.float()
        if self.low == -self.high:  # exactly 0 for uniform logits
            return symexp(symmetric_mean(logits, bins))
        return symexp((torch.softmax(logits, -1) * bins).sum(-1))
