"""Several critics at once: every layer of all of them is one batched product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dreamlab.core.limits import Range, Width
from dreamlab.core.types import ArraySpec
from dreamlab.nn.ensemble import EnsembleMLP
from dreamlab.nn.mlp import Act


@dataclass(frozen=True)
class CriticsConfig:
    """How many critics, and the hidden layers of each."""

    num_critics: Annotated[int, Range(1, 1_000)] = 2
    hidden: tuple[Width, ...] = (256, 256)
    act: Act = "relu"


class ContinuousCritics(nn.Module):
    """Several functions Q(z, a) of features and a continuous action."""

    def __init__(self, config: CriticsConfig, in_dim: int, action: ArraySpec) -> None:
        super().__init__()
        c = config
        self.net = EnsembleMLP(
            c.num_critics, [in_dim + action.size, *c.hidden], 1, c.act, norm=False
        )

    def forward(
        self, z: Float[Tensor, "b z"], action: Float[Tensor, "b ..."], learn: bool = True
    ) -> Float[Tensor, "n b"]:
        """Return what each critic thinks of an action; see EnsembleMLP for `learn`."""
        return self.net(torch.cat([z, action.flatten(1)], -1), learn)[..., 0].float()


class DiscreteCritics(nn.Module):
    """Several functions Q(z) of features, with one value per action."""

    def __init__(self, config: CriticsConfig, in_dim: int, action: ArraySpec) -> None:
        super().__init__()
        assert isinstance(action.classes, int), action
        c = config
        self.net = EnsembleMLP(
            c.num_critics, [in_dim, *c.hidden], action.classes, c.act, norm=False
        )

    def every(self, z: Float[Tensor, "b z"], learn: bool = True) -> Float[Tensor, "n b a"]:
        """Return what each critic thinks of every action; see EnsembleMLP for `learn`."""
        return self.net(z, learn).float()

    def forward(self, z: Float[Tensor, "b z"], action: Int[Tensor, " b"]) -> Float[Tensor, "n b"]:
        """Return what each critic thinks of an action."""
        q = self.every(z)
        return q.gather(-1, action.expand(len(q), -1)[..., None])[..., 0]


Aggregate = Literal["min", "mean"]
"""How one value is made of several critics': the least, or the mean of those that are asked."""


def draw_members(
    num: int, subset: int, replacement: bool, device: torch.device
) -> Int[Tensor, " {subset}"]:
    """Return `subset` of `num` critics, drawn on the device, once for a whole batch (REDQ)."""
    if replacement:
        return torch.randint(num, (subset,), device=device)
    return torch.rand(num, device=device).topk(subset).indices


def aggregate(values: Float[Tensor, "m ..."], how: Aggregate) -> Float[Tensor, " ..."]:
    """Return one value of several critics': what each decodes to comes first, then this."""
    return values.amin(0) if how == "min" else values.mean(0)
