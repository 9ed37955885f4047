"""Target networks: copies that follow a network without being trained."""

from __future__ import annotations

import copy
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


def frozen_copy(module: M) -> M:
    """Return a copy of a module that no gradient reaches."""
    return copy.deepcopy(module).requires_grad_(False)


class Follower(Generic[M]):
    """Moves a frozen copy towards its original. It holds no state: the modules do."""

    def __init__(self, target: M, online: M) -> None:
        self.target: list[Tensor] = list(target.parameters())
        self.online: list[Tensor] = list(online.parameters())

    @torch.no_grad()
    def move(self, share: float | Tensor) -> None:
        """Go `share` of the way: 0 stays, 1 copies exactly. A tensor is not read by the host."""
        weight = [share] * len(self.target) if isinstance(share, Tensor) else share
        torch._foreach_lerp_(self.target, self.online, weight)
