"""Updates on a GPU without the host in the way: recorded once as a CUDA graph, then replayed.

An update of DreamerV3 is thousands of small kernels; launched one by one by Python they take
twenty times as long as they run. A recording runs on the same memory each time, so arguments are
copied in and results copied out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dreamlab.core.fused_laprop import FusedLaProp, Layout
from dreamlab.core.tree import tree_split
from dreamlab.core.workflow import Workflow
from dreamlab.ops.fast import has_triton

WARM_UP = 2
"""Calls before the recording: libraries choose their kernels and compilers compile."""

Around = Callable[[], AbstractContextManager[None]]


class Halves:
    """bfloat16 copies of the weights that products read; the optimizers move the full ones.

    Autocast would make these copies at every use. Gradients arrive at the copies.
    """

    def __init__(self, workflow: Workflow[Any], layout: Layout) -> None:
        self.flat, self.low = layout.flat[: layout.low_end], layout.flat.new_empty(0)
        self.low = self.flat.to(torch.bfloat16)
        self.places: list[tuple[nn.Module, str, nn.Parameter, nn.Parameter]] = []
        for module, name, p in weights(workflow):
            copy = nn.Parameter(layout.view(self.low, p), p.requires_grad)
            self.places.append((module, name, p, copy))
        self.optimizers = list(workflow.optimizers.values())
        self.full = [p for _, _, p, _ in self.places]
        self.half = [h for _, _, _, h in self.places]

    @contextmanager
    def instead(self) -> Iterator[None]:
        """Compute with the copies inside the block; they are fresh at its beginning."""
        with torch.no_grad():
            self.low.copy_(self.flat)
        of = {id(p): h for p, h in zip(self.full, self.half, strict=True)}
        for module, name, _, half in self.places:
            module._parameters[name] = half
        for opt in self.optimizers:
            opt.sources = [of.get(id(p), p) for p in opt.params]
        try:
            yield
        finally:
            for module, name, full, _ in self.places:
                module._parameters[name] = full
            for opt in self.optimizers:
                opt.sources = opt.params


def weights(workflow: Workflow[Any]) -> list[tuple[nn.Module, str, nn.Parameter]]:
    """Return what matrix products read: module, name and parameter."""
    return [
        (module, name, p)
        for module in workflow.modules()
        for name, p in module.named_parameters(recurse=False)
        if p.ndim > 1 or name == "bias"
    ]


def lay_out(workflow: Workflow[Any], halve: bool) -> Layout:
    """Move a workflow's parameters into one array, and let LaProp move them there."""
    low = [p for _, _, p in weights(workflow)] if halve else []
    known = {id(p) for p in low}
    layout = Layout(low, [p for p in workflow.parameters() if id(p) not in known])
    for opt in workflow.optimizers.values():
        if opt.config.kind == "laprop" and has_triton():
            fused = FusedLaProp(opt.config, opt.params, layout)
            opt.inner, opt.fused = fused, fused.step_from
    return layout


@dataclass
class Recording:
    """A graph with the memory of its arguments and results."""

    calls: int = 0
    graph: Any = None
    inputs: list[Tensor] = field(default_factory=list)
    scalars: Tensor | None = None
    outputs: list[Tensor] = field(default_factory=list)
    order: list[tuple[bool, int]] = field(default_factory=list)
    """For each result, whether it is a scalar, and its place among those."""
    rebuild: Callable[[list[Any]], Any] = lambda new: new


class Captured:
    """A method that is recorded for every form of its arguments, once it has run a few times."""

    def __init__(self, method: Callable[..., Any], around: Around = nullcontext) -> None:
        self.method, self.around = method, around
        self.recordings: dict[Any, Recording] = {}
        self.stream = torch.cuda.Stream()

    def __call__(self, *args: Any) -> Any:
        tensors, rebuild, form = tree_split(args)
        key = (form, torch.is_grad_enabled(), torch.is_autocast_enabled("cuda"))
        rec = self.recordings.setdefault(key, Recording())
        if rec.graph is None:
            if rec.calls < WARM_UP:
                rec.calls += 1
                return self._plainly(args)
            self._record(rec, tensors, rebuild)
        else:
            for mine, given in zip(rec.inputs, tensors, strict=True):
                mine.copy_(given, non_blocking=True)
        rec.graph.replay()
        return self._results(rec)

    def _plainly(self, args: tuple[Any, ...]) -> Any:
        """Run on a stream of its own, as a recording must, without recording."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream), self.around():
            out = self.method(*args)
        torch.cuda.current_stream().wait_stream(self.stream)
        return out

    def _record(
        self, rec: Recording, tensors: list[Tensor], rebuild: Callable[[list[Any]], Any]
    ) -> None:
        rec.inputs = [t.clone() for t in tensors]
        args = rebuild(rec.inputs)
        rec.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(rec.graph, stream=self.stream), self.around():
            out = self.method(*args)
            outputs, rec.rebuild, _ = tree_split(out)
            small = [x.detach() for x in outputs if _is_number(x)]
            rec.scalars = torch.stack(small) if small else None
        rec.outputs = [x for x in outputs if not _is_number(x)]
        counts = [0, 0]
        for scalar in map(_is_number, outputs):
            rec.order.append((scalar, counts[scalar]))
            counts[scalar] += 1

    def _results(self, rec: Recording) -> Any:
        """Return copies: the next replay overwrites the originals."""
        small = () if rec.scalars is None else rec.scalars.clone().unbind()
        large = [x.clone() for x in rec.outputs]
        return rec.rebuild([small[i] if scalar else large[i] for scalar, i in rec.order])


def _is_number(x: Tensor) -> bool:
    return x.ndim == 0 and x.dtype == torch.float32
