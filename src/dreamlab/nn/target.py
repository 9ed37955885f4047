"""Target networks: copies that track a network without being trained."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dreamlab.accel.dispatch import use_gpu_kernels
from dreamlab.core.sharding import cut_copies, parts

M = TypeVar("M", bound=nn.Module)


def frozen_copy(module: M) -> M:
    """Return a copy of a module without gradients."""
    return copy.deepcopy(module, cut_copies(module)).requires_grad_(False)


@contextmanager
def passed_through(*modules: nn.Module) -> Iterator[None]:
    """Let gradients pass through modules inside the block without reaching their weights."""
    weights = [p for module in modules for p in module.parameters() if p.requires_grad]
    for p in weights:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in weights:
            p.requires_grad_(True)


class TargetNetwork(Generic[M]):
    """Moves a frozen copy towards its original. It is stateless: the modules hold the weights."""

    def __init__(self, target: M, online: M) -> None:
        self.target: list[Tensor] = list(target.parameters())
        self.online: list[Tensor] = list(online.parameters())

    @torch.no_grad()
    def update(self, share: float | Float[Tensor, ""]) -> None:
        """Interpolate by `share`: 0 keeps, 1 copies exactly. A tensor is not read by the host."""
        target, online = parts(self.target), parts(self.online)
        fused = torch.compiler.is_compiling()  # then the compiler makes one pass of the three
        if isinstance(share, float) and use_gpu_kernels(target[0]) and not fused:
            torch._foreach_lerp_(target, online, share)
            return
        torch._foreach_mul_(target, 1 - share)
        torch._foreach_add_(target, torch._foreach_mul(online, share))
