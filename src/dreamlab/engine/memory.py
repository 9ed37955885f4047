"""Where memory goes: its peak in each stage, the bytes of each module, and the largest tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from dreamlab.core.optim import Optimizer
from dreamlab.core.tree import tree_leaves
from dreamlab.engine.norms import modules_of
from dreamlab.engine.observer import Observer
from dreamlab.engine.system import peak_rss, reset_peak, rss

if TYPE_CHECKING:
    from dreamlab.engine.orchestrator import Orchestrator


@dataclass(frozen=True)
class Held:
    """A tensor that a run holds."""

    kind: str
    """`weights`, `gradients`, `optimizer` or a buffer's name."""
    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int


@dataclass
class Stage:
    """The memory of one stage, over all the times it was entered."""

    peak: int = 0
    grown: int = 0
    """Total growth of the process."""
    gpu_peak: int = 0


class MemoryProfile(Observer):
    """Measures the stages of a run, and knows at its end what it holds."""

    def __init__(self) -> None:
        self.stages: dict[str, Stage] = {}
        self.held: list[Held] = []
        self.gpu: dict[str, int] = {}
        self.began = 0
        self.device = torch.device("cpu")

    def started(self, loop: Orchestrator) -> None:
        self.loop, self.device = loop, loop.workflow.device

    def before(self, action: str) -> None:
        reset_peak()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        self.began = rss()

    def after(self, action: str) -> None:
        stage = self.stages.setdefault(action, Stage())
        now = rss()
        stage.peak = max(stage.peak, peak_rss(), now)
        stage.grown += now - self.began
        if self.device.type == "cuda":
            stage.gpu_peak = max(stage.gpu_peak, torch.cuda.max_memory_allocated(self.device))

    def finished(self, status: str) -> None:
        self.held = sorted(held_by(self.loop), key=lambda h: -h.nbytes)
        if self.device.type == "cuda":
            self.gpu = gpu_numbers(self.device)

    def by_kind(self) -> dict[str, int]:
        """Return the bytes of each kind of tensor."""
        return _summed((h.kind, h.nbytes) for h in self.held)

    def by_module(self) -> dict[str, int]:
        """Return the bytes of weights by module, and one level below where that is a part of it."""
        weights = [h for h in self.held if h.kind == "weights"]
        sizes = _summed((m, h.nbytes) for h in weights for m in modules_of(h.name))
        return {m: n for m, n in sizes.items() if "." not in m or n < sizes[m.split(".")[0]]}


def _summed(pairs: Iterator[tuple[str, int]]) -> dict[str, int]:
    out: dict[str, int] = {}
    for name, size in pairs:
        out[name] = out.get(name, 0) + size
    return dict(sorted(out.items(), key=lambda item: -item[1]))


# -- what is held ---------------------------------------------------------------------------------


def held_by(loop: Orchestrator) -> Iterator[Held]:
    """Yield the tensors of workflow, optimizers and buffers, each once."""
    workflow = loop.workflow
    names = {id(p): name for name, p in workflow.named_parameters()}
    for name, tensor in [*workflow.named_parameters(), *workflow.named_buffers()]:
        yield _held("weights", name, tensor)
    for name, p in workflow.named_parameters():
        if p.grad is not None:
            yield _held("gradients", name, p.grad)
    for opt in workflow.optimizers.values():
        yield from _moments(opt, names)
    for name, buffer in loop.parts.buffers.items():
        for path, tensor in arrays_in(buffer):
            yield _held(name, path, tensor)


def _moments(opt: Optimizer, names: dict[int, str]) -> Iterator[Held]:
    """Yield an optimizer's state, named by the parameters that it belongs to."""
    for path, leaf in tree_leaves(opt.inner.state_dict()):
        slot, _, index = path.partition("/")
        owner = names[id(opt.params[int(index)])] if index.isdigit() else ""
        if isinstance(leaf, Tensor):
            yield _held("optimizer", f"{owner} {slot}".strip(), leaf)


def _held(kind: str, name: str, value: Tensor | np.ndarray[Any, Any]) -> Held:
    dtype = str(value.dtype).removeprefix("torch.")
    return Held(kind, name, tuple(value.shape), dtype, value.nbytes)


def arrays_in(thing: Any) -> Iterator[tuple[str, Tensor | np.ndarray[Any, Any]]]:
    """Yield the arrays and tensors that an object holds, with their paths; views of them not."""
    known: list[tuple[int, int]] = []
    for path, value in _walk(thing, "", set()):
        first = value.data_ptr() if isinstance(value, Tensor) else value.ctypes.data
        last = first + value.nbytes
        if value.nbytes and not any(a <= first and last <= b for a, b in known):
            known.append((first, last))
            yield path, value


def _walk(thing: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, Tensor | np.ndarray):
        yield path, thing
        return
    if id(thing) in seen or isinstance(thing, type | nn.Module | str):
        return
    seen.add(id(thing))
    if isinstance(thing, dict):
        items = [(str(k), v) for k, v in thing.items()]
    elif isinstance(thing, list | tuple):
        items = [(str(i), v) for i, v in enumerate(thing)]
    else:
        items = list(vars(thing).items()) if hasattr(thing, "__dict__") else []
    for name, value in items:
        yield from _walk(value, f"{path}.{name}" if path else name, seen)


def gpu_numbers(device: torch.device) -> dict[str, int]:
    """Return what `torch.cuda.memory_summary` is about, as numbers."""
    stats = torch.cuda.memory_stats(device)
    free, total = torch.cuda.mem_get_info(device)
    return {
        "allocated": stats["allocated_bytes.all.current"],
        "reserved": stats["reserved_bytes.all.current"],
        "peak reserved": stats["reserved_bytes.all.peak"],
        "reserved but fragmented": stats["inactive_split_bytes.all.current"],
        "used by all processes": total - free,
        "total": total,
    }


# -- as text --------------------------------------------------------------------------------------


def describe(profile: MemoryProfile, num: int = 8) -> list[str]:
    """Return a profile as lines; of modules and tensors the `num` largest."""
    gpu = profile.device.type == "cuda"
    lines = [f"memory, without the checks{'':7s}peak{'':6s}grown{'   GPU peak' if gpu else ''}"]
    for name, stage in sorted(profile.stages.items(), key=lambda x: -x[1].peak):
        extra = f"  {_size(stage.gpu_peak)}" if gpu else ""
        lines.append(f"  {name:24s} {_size(stage.peak)}  {_size(stage.grown)}{extra}")
    lines += [f"  GPU: {name:30s} {_size(size)}" for name, size in profile.gpu.items()]
    lines.append("\nallocated bytes, buffers at full capacity")
    lines += [f"  {name:24s} {_size(size)}" for name, size in profile.by_kind().items()]
    lines.append("\nweights by module")
    modules = list(profile.by_module().items())[:num]
    lines += [f"  {name:24s} {_size(size)}" for name, size in modules]
    lines.append("\nlargest tensors")
    for h in profile.held[:num]:
        lines.append(f"  {_size(h.nbytes)}  {h.kind}: {h.name} {list(h.shape)} {h.dtype}")
    return lines


def _size(nbytes: int) -> str:
    """Return a size in ten characters."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(nbytes) >= scale:
            return f"{nbytes / scale:6.1f} {unit}"
    return f"{nbytes:6d} B  "
