"""Several critics at once: every layer of all of them is one batched product."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dreamlab.core.types import ArraySpec
from dreamlab.nn.ensemble import EnsembleMLP
from dreamlab.nn.mlp import Act


class ContinuousCritics(nn.Module):
    """`num` functions Q(z, a) of features and a continuous action."""

    def __init__(
        self, num: int, in_dim: int, action: ArraySpec, hidden: tuple[int, ...], act: Act = "relu"
    ) -> None:
        super().__init__()
        self.net = EnsembleMLP(num, [in_dim + action.size, *hidden], 1, act)

    def forward(
        self, z: Float[Tensor, "b z"], action: Float[Tensor, "b ..."], learn: bool = True
    ) -> Float[Tensor, "n b"]:
        """Return what each critic thinks of an action; see EnsembleMLP for `learn`."""
        return self.net(torch.cat([z, action.flatten(1)], -1), learn)[..., 0].float()


class DiscreteCritics(nn.Module):
    """`num` functions Q(z) of features, with one value per action."""

    def __init__(
        self, num: int, in_dim: int, action: ArraySpec, hidden: tuple[int, ...], act: Act = "relu"
    ) -> None:
        super().__init__()
        assert isinstance(action.classes, int), action
        self.net = EnsembleMLP(num, [in_dim, *hidden], action.classes, act)

    def every(self, z: Float[Tensor, "b z"], learn: bool = True) -> Float[Tensor, "n b a"]:
        """Return what each critic thinks of every action; see EnsembleMLP for `learn`."""
        return self.net(z, learn).float()

    def forward(self, z: Float[Tensor, "b z"], action: Int[Tensor, " b"]) -> Float[Tensor, "n b"]:
        """Return what each critic thinks of an action."""
        q = self.every(z)
        return q.gather(-1, action.expand(len(q), -1)[..., None])[..., 0]
