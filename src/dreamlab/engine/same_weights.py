"""Periodic check that the weights of all processes are bit-identical."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dreamlab.core import sharding, world
from dreamlab.core.errors import LabError
from dreamlab.core.tree import tree_leaves
from dreamlab.core.types import Batch, Metrics
from dreamlab.engine.observer import Observer

if TYPE_CHECKING:
    from dreamlab.engine.orchestrator import Orchestrator

CHECK_EVERY = 10
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class SameWeights(Observer):
    """Raises, naming the first tensor, if the weights of processes differ."""

    def __init__(self, every: int) -> None:
        self.every, self.count = every, 0

    def started(self, loop: Orchestrator) -> None:
        self.loop = loop
        self.compare()

    def updated(self, batch: Batch, metrics: Metrics) -> None:
        self.count += 1
        if self.count % self.every == 0:
            self.compare()

    def compare(self) -> None:
        """Raise unless parameters, buffers and optimizer states are the same on all processes.

        Of sharded weights no process has what another has.
        """
        found = list(tree_leaves(sharding.replicated_state(self.loop.workflow)))
        named = [(k, v) for k, v in found if isinstance(v, Tensor)]
        all_of_them = world.gather(digests([v for _, v in named]))
        for rank, theirs in enumerate(all_of_them):
            pairs = zip(named, all_of_them[0], theirs, strict=True)
            if odd := [name for (name, _), a, b in pairs if a != b]:
                raise LabError(
                    f"after update {self.loop.counters.updates}: {odd[0]!r} of rank {rank} is not "
                    f"that of rank 0 ({len(odd)} of {len(named)} tensors differ)"
                )


@torch.no_grad()
def digests(tensors: list[Tensor]) -> list[int]:
    """Return a checksum of each tensor, with a single transfer from the GPU."""
    sums = [_checksum(t) for t in tensors]
    return torch.stack(sums).tolist() if sums else []


def _checksum(tensor: Tensor) -> Tensor:
    """Return a position-dependent checksum of a tensor's bits."""
    if tensor.dtype == torch.bool:
        tensor = tensor.to(torch.uint8)
    words = tensor.detach().contiguous().view(-1).view(WORDS[tensor.element_size()]).long()
    return (words * (torch.arange(len(words), device=words.device) % 65_521 + 1)).sum().cpu()


__all__ = ["CHECK_EVERY", "SameWeights", "digests"]
