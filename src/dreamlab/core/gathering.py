"""Gradients of several losses, computed separately and applied together.

A GPU can overlap independent computations: each loss computes its gradients as soon as it can;
those that meet at the same states are summed there and backpropagated once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dreamlab.core.optim import Grads, Optimizer, add_grads, gradients_at
from dreamlab.core.types import Metrics

HERE = "here"


@dataclass(frozen=True)
class Followed:
    """Losses, and the gradients of their weighted sum: per optimizer, and at `HERE`."""

    losses: dict[str, Tensor]
    metrics: Metrics
    total: Tensor
    grads: dict[str, Grads]


class Gathering:
    """The optimizers that step together, and the weight of each loss by name."""

    def __init__(
        self, optimizers: Mapping[str, Optimizer], scale: Callable[[str], float], device: Any
    ) -> None:
        self.optimizers, self.scale, self.device = optimizers, scale, device

    @property
    def weights(self) -> dict[str, Sequence[Tensor]]:
        return {k: opt.sources for k, opt in self.optimizers.items()}

    def follow(
        self, losses: dict[str, Tensor], metrics: Metrics, here: Sequence[Tensor] = ()
    ) -> Followed:
        """Compute the gradients of the weighted loss at all weights, and at `here`."""
        places = {**self.weights, HERE: here}
        weighted = [v.mean() * self.scale(k) for k, v in losses.items()]
        if not weighted:
            nothing: dict[str, Grads] = {k: [None] * len(v) for k, v in places.items()}
            return Followed({}, {}, torch.zeros((), device=self.device), nothing)
        total = torch.stack(weighted).sum()
        share = max(opt.accumulate for opt in self.optimizers.values())
        grads = gradients_at(places, [total / share if share > 1 else total])
        return Followed(losses, metrics, total, grads)

    def go_back(self, states: Sequence[Tensor], *followed: Followed) -> dict[str, Grads]:
        """Backpropagate the gradients gathered at `states` to the weights."""
        pulls = add_grads([f.grads[HERE] for f in followed])
        return gradients_at(self.weights, states, pulls)

    def move(self, *grads: dict[str, Grads]) -> dict[str, Tensor]:
        """Take one step along the summed gradients; return each optimizer's gradient norm."""
        return {
            name: opt.follow(add_grads([g[name] for g in grads]))
            for name, opt in self.optimizers.items()
        }
