"""GPU updates without host overhead: captured once as a CUDA graph, then replayed.

An update of DreamerV3 is thousands of small kernels; launched one by one from Python they take
twenty times their run time. A graph uses the same memory each time, so arguments are copied in and
results copied out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from dreamlab.accel import ahead
from dreamlab.accel.bf16_weights import Bf16Weights, product_weights
from dreamlab.accel.dispatch import use_triton
from dreamlab.accel.first_update import compare_with_reference
from dreamlab.accel.fused_laprop import FusedLaProp, Layout
from dreamlab.accel.side_stream import MAIN_PRIORITY
from dreamlab.core import rng as random
from dreamlab.core import world
from dreamlab.core.optim import LaProp
from dreamlab.core.tree import tree_split
from dreamlab.core.workflow import Workflow

WARM_UP = 2
"""Calls before the capture, for libraries to choose kernels and compilers to compile."""

TOGETHER = {torch.float32, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool}
"""Types of which many tensors can be copied by one kernel."""
Around = Callable[[], AbstractContextManager[None]]


class Switch(Protocol):
    """An object with a fast form, and a plain one unless `enabled`."""

    enabled: bool


def graph_methods(
    bf16: bool, workflow: Workflow[Any], names: Sequence[str], compiled: Sequence[Switch]
) -> None:
    """Replace methods by CUDA graphs of themselves; `compiled` are enabled only in these."""
    layout = lay_out(workflow, bf16)
    weights = Bf16Weights(workflow, layout) if bf16 else None

    @contextmanager
    def around() -> Iterator[None]:
        with ExitStack() as stack:
            if weights is not None:
                cast = torch.autocast("cuda", torch.bfloat16, cache_enabled=False)
                stack.enter_context(cast)
                stack.enter_context(weights.swapped_in())
            stack.enter_context(enabled(compiled))
            yield

    for method in compiled:
        method.enabled = False
    dtype = torch.bfloat16 if bf16 else torch.float32
    for name in names:
        graphed = GraphedMethod(getattr(workflow, name), around)
        graphed.check = partial(compare_with_reference, workflow, dtype)
        graphed.rehearse = workflow.rehearse
        object.__setattr__(workflow, name, graphed)


@contextmanager
def enabled(methods: Sequence[Switch]) -> Iterator[None]:
    """Enable the fast form of methods inside the block."""
    for method in methods:
        method.enabled = True
    try:
        yield
    finally:
        for method in methods:
            method.enabled = False


def lay_out(workflow: Workflow[Any], bf16: bool) -> Layout:
    """Move a workflow's parameters into one array, and use fused LaProp on it."""
    low = [p for _, _, p in product_weights(workflow)] if bf16 else []
    known = {id(p) for p in low}
    layout = Layout(low, [p for p in workflow.parameters() if id(p) not in known])
    for opt in workflow.optimizers.values():
        if type(opt.inner) is LaProp and not opt.config.groups and use_triton(layout.flat):
            fused = FusedLaProp(opt.config, opt.params, layout)
            opt.inner, opt.fused = fused, fused.step_from
            fused.rehearse(torch.bfloat16 if bf16 else torch.float32)
    return layout


@dataclass
class CapturedGraph:
    """A CUDA graph with the memory of its arguments and results."""

    calls: int = 0
    graph: Any = None  # torch.cuda.CUDAGraph
    inputs: list[Tensor] = field(default_factory=list)
    scalars: Tensor | None = None
    outputs: list[Tensor] = field(default_factory=list)
    order: list[tuple[bool, int]] = field(default_factory=list)
    """For each result, whether it is a scalar, and its index among those."""
    rebuild: Callable[[list[Any]], Any] = lambda new: new


class GraphedMethod:
    """A method that is captured for each structure of its arguments, after a warm-up."""

    def __init__(self, method: Callable[..., Any], around: Around = nullcontext) -> None:
        self.method, self.around = method, around
        self.check: Callable[[Callable[[], Any], Callable[[], Any]], Any] | None = None
        self.rehearse: Callable[[Any], None] | None = None
        self.graphs: dict[Any, CapturedGraph] = {}
        self.stream = torch.cuda.Stream(priority=MAIN_PRIORITY)

    def __call__(self, *args: Any) -> Any:
        tensors, rebuild, form = tree_split(args)
        key = (form, torch.is_grad_enabled())
        captured = self.graphs.setdefault(key, CapturedGraph())
        if captured.graph is None:
            if captured.calls < WARM_UP:
                captured.calls += 1
                if (
                    torch.is_grad_enabled()
                    and self.check
                    and len(self.graphs) == captured.calls == 1
                ):
                    self._rehearse(args)
                    return self.check(partial(self.method, *args), partial(self._warm_up, args))
                return self._warm_up(args)
            self._capture(captured, tensors, rebuild)
        else:
            copy_all(captured.inputs, tensors)
        assert captured.graph is not None
        captured.graph.replay()
        return self._results(captured)

    def _rehearse(self, args: tuple[Any, ...]) -> None:
        """Begin to build the kernels of an update, and restore the random state."""
        if self.rehearse is not None:
            chance = random.get_state()
            with ahead.rehearsal(), torch.no_grad(), self.around():
                self.rehearse(args[0])
            random.set_state(chance)

    def _warm_up(self, args: tuple[Any, ...]) -> Any:
        """Run on a side stream, as a capture requires, without capturing."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream), self.around():
            out = self.method(*args)
        torch.cuda.current_stream().wait_stream(self.stream)
        return out

    def _capture(
        self, captured: CapturedGraph, tensors: list[Tensor], rebuild: Callable[[list[Any]], Any]
    ) -> None:
        captured.inputs = [t.clone() for t in tensors]
        args = rebuild(captured.inputs)
        graph = torch.cuda.CUDAGraph()
        ahead.finish()
        torch.cuda.synchronize()
        # a thread of nccl's asks for finished work, which a capture may otherwise take for an error
        mode = "thread_local" if world.in_group() else "global"
        world.reset_before_leaving(self)
        recording = torch.cuda.graph(graph, stream=self.stream, capture_error_mode=mode)
        with recording, self.around():
            out = self.method(*args)
            outputs, captured.rebuild, _ = tree_split(out)
            small = [x.detach() for x in outputs if _is_number(x)]
            captured.scalars = torch.stack(small) if small else None
        captured.outputs = [x for x in outputs if not _is_number(x)]
        counts = [0, 0]
        for scalar in map(_is_number, outputs):
            captured.order.append((scalar, counts[scalar]))
            counts[scalar] += 1
        captured.graph = graph  # now that it is whole: a failed capture must not be replayed

    def reset(self) -> None:
        """Drop all graphs; later calls warm up and capture anew."""
        for captured in self.graphs.values():
            if captured.graph is not None:
                captured.graph.reset()
        self.graphs.clear()

    def _results(self, captured: CapturedGraph) -> Any:
        """Return copies: the next replay overwrites the originals."""
        small = () if captured.scalars is None else captured.scalars.clone().unbind()
        large = [torch.empty_like(x) for x in captured.outputs]
        copy_all(large, captured.outputs)
        return captured.rebuild([small[i] if scalar else large[i] for scalar, i in captured.order])


def copy_all(into: Sequence[Tensor], given: Sequence[Tensor]) -> None:
    """Copy tensors, with one kernel for all of a type, where they are on the same device."""
    alike: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}
    for mine, other in zip(into, given, strict=True):
        pair = alike.setdefault((mine.dtype, other.dtype, mine.device, other.device), ([], []))
        pair[0].append(mine)
        pair[1].append(other)
    for (dtype, *_), (mine, others) in alike.items():
        if dtype in TOGETHER:
            torch._foreach_copy_(mine, others, non_blocking=True)
        else:
            for one, other in zip(mine, others, strict=True):
                one.copy_(other, non_blocking=True)


def _is_number(x: Tensor) -> bool:
    return x.ndim == 0 and x.dtype == torch.float32
