"""bfloat16 copies of weights, made once per update and after an optimizer changes weights in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from dreamlab.accel.fused_laprop import Layout
from dreamlab.core.optim import Optimizer
from dreamlab.core.workflow import Workflow


class Bf16Weights:
    """bfloat16 copies of the weights of matrix products; optimizers update the originals.

    Autocast would make these copies at every use. Gradients are computed at the copies. Where there
    are several optimizers, later losses of an update use the weights that an earlier one changed; a
    single optimizer takes the last step of an update, and so its copies wait for the next.
    """

    def __init__(self, workflow: Workflow[Any], layout: Layout) -> None:
        self.flat = layout.flat[: layout.low_end]
        self.low = self.flat.to(torch.bfloat16)
        self.places: list[tuple[nn.Module, str, nn.Parameter, nn.Parameter]] = []
        for module, name, p in product_weights(workflow):
            copy = nn.Parameter(layout.view(self.low, p), p.requires_grad)
            self.places.append((module, name, p, copy))
        self.optimizers = list(workflow.optimizers.values())
        self.ranges = [_range(opt, layout) for opt in self.optimizers]
        self.full = [p for _, _, p, _ in self.places]
        self.half = [h for _, _, _, h in self.places]

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Compute with fresh copies inside the block."""
        with torch.no_grad():
            self.low.copy_(self.flat)
        of = {id(p): h for p, h in zip(self.full, self.half, strict=True)}
        for module, name, _, half in self.places:
            module._parameters[name] = half
        for opt, span in zip(self.optimizers, self.ranges, strict=True):
            opt.sources = [of.get(id(p), p) for p in opt.params]
            opt.changed = partial(self._copy, *span) if len(self.optimizers) > 1 else None
        try:
            yield
        finally:
            for module, name, full, _ in self.places:
                module._parameters[name] = full
            for opt in self.optimizers:
                opt.sources, opt.changed = opt.params, None

    @torch.no_grad()
    def _copy(self, first: int, end: int) -> None:
        """Convert a part of the weights anew."""
        self.low[first:end].copy_(self.flat[first:end])


def _range(opt: Optimizer, layout: Layout) -> tuple[int, int]:
    """Return the part of the layout's copied weights that has all of an optimizer's."""
    mine = [p for p in opt.params if id(p) in layout.halved]
    firsts = [layout.first[id(p)] for p in mine]
    ends = [first + p.numel() for first, p in zip(firsts, mine, strict=True)]
    return min(firsts, default=0), max(ends, default=0)


def product_weights(workflow: Workflow[Any]) -> list[tuple[nn.Module, str, nn.Parameter]]:
    """Return the weights of matrix products: module, name and parameter."""
    return [
        (module, name, p)
        for module in workflow.modules()
        for name, p in module.named_parameters(recurse=False)
        if p.ndim > 1 or name == "bias"
    ]
