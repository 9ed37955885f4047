"""Updates on a GPU without the host in the way: recorded once as a CUDA graph, then replayed.

An update of DreamerV3 is thousands of small kernels; launched one by one by Python they take
twenty times as long as they run. A recording runs on the same memory each time, so arguments are
copied in and results copied out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dreamlab.core import rng as random
from dreamlab.core.errors import LabError
from dreamlab.core.fused_laprop import FusedLaProp, Layout
from dreamlab.core.optim import LaProp
from dreamlab.core.tree import tree_map, tree_split
from dreamlab.core.ways import as_written, triton_takes
from dreamlab.core.workflow import Workflow

WARM_UP = 2
"""Calls before the recording: libraries choose their kernels and compilers compile."""

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1}
"""How far a loss of the first update may be from the same update computed plainly: a share of it,
or of 1 where it is smaller. In bfloat16 a few random choices fall otherwise."""

Around = Callable[[], AbstractContextManager[None]]


class Switch(Protocol):
    """A piece of code with a fast and a plain way."""

    awake: bool


def record_methods(
    halve: bool, workflow: Workflow[Any], names: Sequence[str], pieces: Sequence[Switch]
) -> None:
    """Replace methods by recordings of themselves; `pieces` are awake in these only."""
    layout = lay_out(workflow, halve)
    halves = Halves(workflow, layout) if halve else None

    @contextmanager
    def around() -> Iterator[None]:
        with ExitStack() as stack:
            if halves is not None:
                cast = torch.autocast("cuda", torch.bfloat16, cache_enabled=False)
                stack.enter_context(cast)
                stack.enter_context(halves.instead())
            stack.enter_context(awake(pieces))
            yield

    for piece in pieces:
        piece.awake = False
    dtype = torch.bfloat16 if halve else torch.float32
    for name in names:
        captured = Captured(getattr(workflow, name), around)
        captured.check = partial(compare_ways, workflow, dtype)
        object.__setattr__(workflow, name, captured)


def compare_ways(
    workflow: Workflow[Any], dtype: torch.dtype, plain: Callable[[], Any], fast: Callable[[], Any]
) -> Any:
    """Return what the fast way gives, or raise if its losses are not those of the plain way."""
    before = tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, workflow.state_dict())
    chance = random.get_state()
    low = torch.autocast("cuda", dtype) if dtype == torch.bfloat16 else nullcontext()
    with as_written(), low:
        expected = losses(plain())
    workflow.load_state_dict(before)
    random.set_state(chance)
    out = fast()
    for name, value in losses(out).items():
        wanted, limit = expected[name], TOLERANCE[dtype] * max(abs(expected[name]), 1.0)
        if not abs(value - wanted) <= limit:
            raise LabError(
                f"on this GPU the fast update gives {name} = {value:.6g}, the plain one "
                f"{wanted:.6g}: train with compile=false, and please report it"
            )
    return out


def losses(out: Any) -> dict[str, float]:
    """Return the losses among a method's results, by name."""
    metrics = out[0] if isinstance(out, tuple) else out
    if not isinstance(metrics, dict):
        return {}
    return {k: float(v) for k, v in metrics.items() if "loss" in k}


@contextmanager
def awake(pieces: Sequence[Switch]) -> Iterator[None]:
    """Let pieces run the fast way inside the block."""
    for piece in pieces:
        piece.awake = True
    try:
        yield
    finally:
        for piece in pieces:
            piece.awake = False


class Halves:
    """bfloat16 copies of the weights that products read; the optimizers move the full ones.

    Autocast would make these copies at every use. Gradients arrive at the copies.
    """

    def __init__(self, workflow: Workflow[Any], layout: Layout) -> None:
        self.flat = layout.flat[: layout.low_end]
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
        if type(opt.inner) is LaProp and not opt.config.groups and triton_takes(layout.flat):
            fused = FusedLaProp(opt.config, opt.params, layout)
            opt.inner, opt.fused = fused, fused.step_from
    return layout


@dataclass
class Recording:
    """A graph with the memory of its arguments and results."""

    calls: int = 0
    graph: Any = None  # torch.cuda.CUDAGraph
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
        self.check: Callable[[Callable[[], Any], Callable[[], Any]], Any] | None = None
        self.recordings: dict[Any, Recording] = {}
        self.stream = torch.cuda.Stream()

    def __call__(self, *args: Any) -> Any:
        tensors, rebuild, form = tree_split(args)
        key = (form, torch.is_grad_enabled())
        rec = self.recordings.setdefault(key, Recording())
        if rec.graph is None:
            if rec.calls < WARM_UP:
                rec.calls += 1
                if (
                    torch.is_grad_enabled()
                    and self.check
                    and len(self.recordings) == rec.calls == 1
                ):
                    return self.check(partial(self.method, *args), partial(self._warm, args))
                return self._warm(args)
            self._record(rec, tensors, rebuild)
        else:
            for mine, given in zip(rec.inputs, tensors, strict=True):
                mine.copy_(given, non_blocking=True)
        assert rec.graph is not None
        rec.graph.replay()
        return self._results(rec)

    def _warm(self, args: tuple[Any, ...]) -> Any:
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
