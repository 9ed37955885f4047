"""Critic ensembles: each layer of all members is one batched product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dreamlab.components.critics import HOME
from dreamlab.components.critics.readout import Readout
from dreamlab.core.config import Part, part
from dreamlab.core.limits import Range, Width
from dreamlab.core.types import ArraySpec
from dreamlab.nn.ensemble import EnsembleMLP
from dreamlab.nn.mlp import Act


@dataclass(frozen=True)
class CriticsConfig:
    """Number of critics, their hidden layers, and their readout."""

    num_critics: Annotated[int, Range(1, 1_000)] = 2
    hidden: tuple[Width, ...] = (256, 256)
    act: Act = "relu"
    readout: Part = part("mse", HOME, Readout)
    """Meaning of the outputs: `mse`, `huber`, `two_hot`, `hl_gauss`, `c51`, `quantile`."""


class ContinuousCritics(nn.Module):
    """An ensemble of Q(z, a) for features and continuous actions."""

    def __init__(self, config: CriticsConfig, in_dim: int, action: ArraySpec) -> None:
        super().__init__()
        c = config
        self.readout: Readout = c.readout.build()
        dims = [in_dim + action.size, *c.hidden]
        self.net = EnsembleMLP(c.num_critics, dims, self.readout.outputs, c.act, norm=False)

    def outputs(
        self, z: Float[Tensor, "b z"], action: Float[Tensor, "b ..."], learn: bool = True
    ) -> Float[Tensor, "n b k"]:
        """Return the raw outputs of each critic for an action; see EnsembleMLP for `learn`."""
        return self.net(torch.cat([z, action.flatten(1)], -1), learn).float()

    def forward(
        self, z: Float[Tensor, "b z"], action: Float[Tensor, "b ..."], learn: bool = True
    ) -> Float[Tensor, "n b"]:
        """Return the values of each critic for an action; see EnsembleMLP for `learn`."""
        return self.readout.decode(self.outputs(z, action, learn))


class DiscreteCritics(nn.Module):
    """An ensemble of Q(z), with one value per discrete action."""

    def __init__(self, config: CriticsConfig, in_dim: int, action: ArraySpec) -> None:
        super().__init__()
        assert isinstance(action.classes, int), action
        c = config
        self.readout: Readout = c.readout.build()
        self.shape = (action.classes, self.readout.outputs)
        num = action.classes * self.readout.outputs
        self.net = EnsembleMLP(c.num_critics, [in_dim, *c.hidden], num, c.act, norm=False)

    def every(self, z: Float[Tensor, "b z"], learn: bool = True) -> Float[Tensor, "n b a"]:
        """Return the values of each critic for every action; see EnsembleMLP for `learn`."""
        return self.readout.decode(self.net(z, learn).float().unflatten(-1, self.shape))

    def outputs(self, z: Float[Tensor, "b z"], action: Int[Tensor, " b"]) -> Float[Tensor, "n b k"]:
        """Return the raw outputs of each critic for an action."""
        out = self.net(z).float().unflatten(-1, self.shape)
        index = action[:, None, None].expand(len(out), -1, 1, self.shape[1])
        return out.gather(2, index)[:, :, 0]

    def forward(self, z: Float[Tensor, "b z"], action: Int[Tensor, " b"]) -> Float[Tensor, "n b"]:
        """Return the values of each critic for an action."""
        return self.readout.decode(self.outputs(z, action))


Aggregate = Literal["min", "mean"]
"""Aggregation of the critics' values: minimum or mean."""


def draw_members(
    num: int, subset: int, replacement: bool, device: torch.device
) -> Int[Tensor, " {subset}"]:
    """Sample `subset` of `num` critics on the device, once for a whole batch (REDQ)."""
    if replacement:
        return torch.randint(num, (subset,), device=device)
    return torch.rand(num, device=device).topk(subset).indices


def aggregate(values: Float[Tensor, "m ..."], how: Aggregate) -> Float[Tensor, " ..."]:
    """Aggregate the decoded values of several critics."""
    return values.amin(0) if how == "min" else values.mean(0)
