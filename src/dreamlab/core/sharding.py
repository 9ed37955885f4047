"""Fully sharded data parallelism: each process keeps a part of the weights.

A sharded parameter holds its process's flat part; so does everything derived from it, like the
moments of an optimizer, an average or a target network. Reading it from its module (`self.weight`)
gathers the whole; its gradient is averaged over the processes and cut into parts. The gathered
weight is not kept for the backward pass: it is gathered again.

`torch.distributed.fsdp.fully_shard` does this with hooks on `forward` and on `.grad`. Updates here
also call other methods and compute gradients of several losses with `torch.autograd.grad`, which
those hooks do not see: it would return whole gradients of this process alone.
"""

from __future__ import annotations

import math
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from dreamlab.core import world
from dreamlab.core.errors import ConfigError

Grads = Sequence[Tensor | None]
KEPT_BYTES = 256 << 20
"""Size of the cache of gathered weights; updated weights are gathered again."""


@dataclass
class Shard:
    """Describes the whole tensor of a sharded parameter."""

    shape: torch.Size
    parts: int
    whole: bool = False
    """Whether the parameter temporarily holds the whole tensor."""

    @property
    def part_size(self) -> int:
        """Return the entries per process; those at the end of the last one may be padding."""
        return math.ceil(self.shape.numel() / self.parts)

    def cut(self, full: Tensor, rank: int) -> Tensor:
        """Return a copy of one process's part."""
        flat, size = full.detach().reshape(-1), self.part_size
        part = flat[rank * size : (rank + 1) * size]
        return torch.cat([part, part.new_zeros(size - part.numel())])

    def join(self, flat: Tensor) -> Tensor:
        """Return the whole tensor from concatenated parts."""
        return flat[: self.shape.numel()].view(self.shape)


def shard_of(p: Tensor) -> Shard | None:
    """Return the shard of a parameter; None if it is not sharded."""
    return getattr(p, "shard", None)


# -- the whole of a parameter ---------------------------------------------------------------------


class _Gather(torch.autograd.Function):
    """Gathers the whole from parts; the gradient is this process's part of the mean."""

    @staticmethod
    def forward(ctx: Any, p: Tensor, shard: Shard) -> Tensor:
        ctx.shard = shard
        return shard.join(world.joined_parts(p))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        shard: Shard = ctx.shard
        flat = grad.new_zeros(shard.part_size * shard.parts)
        flat[: grad.numel()] = grad.reshape(-1)
        return world.own_part_of_mean(flat), None


class _Gathered:
    """Cache of the most recently gathered weights, and their origins."""

    def __init__(self) -> None:
        self.kept: OrderedDict[tuple[int, bool], tuple[int, Tensor]] = OrderedDict()
        self.origin: dict[int, nn.Parameter] = {}
        self.size = 0
        self.readable, self.least = True, 0

    def get(self, p: nn.Parameter, shard: Shard) -> Tensor:
        """Return the whole parameter, with a gradient if required."""
        assert self.readable, f"a parameter {list(shard.shape)} was cut before it was initialised"
        key = (id(p), torch.is_grad_enabled() and p.requires_grad)
        version, full = self.kept.get(key, (-1, p))
        if version == p._version:
            self.kept.move_to_end(key)
            return full
        self._drop(key)
        full = _Gather.apply(p, shard)
        place = full.untyped_storage().data_ptr()
        self.origin[place] = p  # valid while this tensor is alive
        weakref.finalize(full, self.origin.pop, place, None).atexit = False
        self.kept[key] = (p._version, full)
        self.size += full.nbytes
        while self.size > KEPT_BYTES and len(self.kept) > 1:
            self._drop(next(iter(self.kept)))
        return full

    def _drop(self, key: tuple[int, bool]) -> None:
        if key in self.kept:
            self.size -= self.kept.pop(key)[1].nbytes

    def clear(self) -> None:
        """Clear the cache."""
        self.kept.clear()
        self.size = 0


_gathered = _Gathered()


def whole(p: nn.Parameter) -> Tensor:
    """Return a parameter as its module uses it; all processes must call this."""
    shard = shard_of(p)
    return p if shard is None or shard.whole else _gathered.get(p, shard)


@contextmanager
def unread(least: int) -> Iterator[None]:
    """Raise if a sharded parameter is used inside the block, during construction."""
    _gathered.readable, _gathered.least = False, least
    try:
        yield
    finally:
        _gathered.readable = True


def _pack(x: Tensor) -> Any:
    """Save the origin of a gathered weight instead of the weight itself."""
    p = _gathered.origin.get(x.untyped_storage().data_ptr()) if x.device.type != "meta" else None
    if p is None:
        return x
    return p, p._version, x.shape, x.stride(), x.storage_offset()


def _unpack(kept: Any) -> Tensor:
    if isinstance(kept, Tensor):
        return kept
    p, version, shape, stride, offset = kept
    if p._version != version:
        raise RuntimeError("a sharded weight has moved between a loss and its gradient")
    with torch.no_grad():
        return whole(p).as_strided(shape, stride, offset)


def regathered() -> saved_tensors_hooks:
    """Return a context in which autograd does not save gathered weights."""
    return saved_tensors_hooks(_pack, _unpack)


@cache
def _reading(cls: type, names: tuple[str, ...]) -> type:
    """Return a subclass whose attributes of these names return gathered parameters."""

    def reader(name: str) -> property:
        return property(lambda self: whole(self._parameters[name]))

    return type(cls.__name__, (cls,), {**{n: reader(n) for n in names}, "plain_class": cls})


def shard_parameter(module: nn.Module, name: str, p: nn.Parameter) -> None:
    """Replace a module's parameter by this process's part."""
    cls = getattr(module, "plain_class", type(module))
    held = {n for n, q in module._parameters.items() if q is not None and shard_of(q) is not None}
    if shard_of(p) is None:
        shard = Shard(p.shape, world.all_processes())
        p.data = shard.cut(p, world.rank())
        p.shard = shard  # type: ignore[attr-defined]
    module.__class__ = _reading(cls, tuple(sorted({*held, name})))


def shard_module(root: nn.Module, least: int) -> None:
    """Shard every parameter with at least `least` entries."""
    for module in root.modules():
        check_module(module)
        for name, p in list(module._parameters.items()):
            if p is not None and (shard_of(p) is not None or p.numel() >= least):
                shard_parameter(module, name, p)


def cut_copies(module: nn.Module) -> dict[int, Any]:
    """Return copies of this process's parts, for building a sharded workflow.

    `copy.deepcopy` uses them in place of the parameters, so that a copy is never whole.
    """
    if _gathered.readable:
        return {}
    out: dict[int, Any] = {}
    for p in module.parameters():
        shard = Shard(p.shape, world.all_processes())
        if p.numel() >= _gathered.least:
            out[id(p)] = part = nn.Parameter(shard.cut(p, world.rank()), p.requires_grad)
            part.shard = shard  # type: ignore[attr-defined]
    return out


def check_module(module: nn.Module) -> None:
    """Raise if a module reads its weights other than by attribute name."""
    if isinstance(module, nn.RNNBase | nn.ParameterList | nn.ParameterDict):
        raise ConfigError(f"distributed.shard: {type(module).__name__} cannot be sharded")
    if isinstance(module, nn.Embedding) and module.max_norm is not None:
        raise ConfigError(
            "distributed.shard: an embedding of bounded norm (several tasks) cannot be sharded"
        )


# -- gradients ------------------------------------------------------------------------------------


def mean_gradients(params: Sequence[Tensor], grads: Grads) -> list[Tensor | None]:
    """Average gradients over processes; those of sharded parameters already are."""
    split = [g is not None and shard_of(p) is not None for p, g in zip(params, grads, strict=True)]
    if not any(split):
        return world.mean_gradients(grads)
    rest = world.mean_gradients([None if s else g for s, g in zip(split, grads, strict=True)])
    return [g if s else r for s, g, r in zip(split, grads, rest, strict=True)]


def norms(params: Sequence[Tensor], tensors: Sequence[Tensor]) -> Tensor:
    """Compute the norm of each tensor [n], over the parts on all processes if sharded."""
    local = torch.stack(torch._foreach_norm(list(tensors)))
    split = [shard_of(p) is not None for p in params]
    if not any(split):
        return local
    mask = torch.tensor(split, device=local.device)
    return torch.where(mask, world.total(local.square()).sqrt(), local)


# -- the whole state ------------------------------------------------------------------------------


@torch.no_grad()
def _on_main(p: Tensor, part: Tensor | None) -> Tensor | None:
    """Gather a parameter-shaped tensor on rank 0, in host memory."""
    shard = shard_of(p)
    if part is None or shard is None:
        return part
    parts = world.parts_on_main(part.cpu() if part.device.type == "mps" else part)
    return shard.join(torch.cat([x.cpu() for x in parts])) if parts else None


def _own(p: Tensor, full: Tensor | None) -> Tensor | None:
    shard = shard_of(p)
    return full if full is None or shard is None else shard.cut(full, world.rank())


def _mapped(workflow: Any, state: Mapping[str, Any], change: Any) -> dict[str, Any]:
    """Apply `change` to everything in a workflow's state that has the shape of a parameter."""
    out = dict(state)
    for name, p in workflow.named_parameters():
        out[name] = change(p, state[name])
    extra = dict(state["_extra_state"])
    for name, opt in workflow.optimizers.items():
        mine = dict(extra[name])
        inner, params = dict(mine["inner"]), opt.params
        for moment in opt.inner.names:
            inner[moment] = [change(p, x) for p, x in zip(params, inner[moment], strict=False)]
        mine["inner"] = inner
        for key in ("grads", "average"):
            if key in mine:
                mine[key] = [change(p, x) for p, x in zip(params, mine[key], strict=False)]
        extra[name] = mine
    out["_extra_state"] = extra
    return out


def is_sharded(workflow: nn.Module) -> bool:
    """Return whether a workflow is sharded."""
    return any(shard_of(p) is not None for p in workflow.parameters())


def whole_state(workflow: Any) -> dict[str, Any]:
    """Return the unsharded state of a workflow on rank 0, and nothing on the others."""
    if not is_sharded(workflow):
        return workflow.state_dict()
    state = _mapped(workflow, workflow.state_dict(), _on_main)
    return state if world.is_main() else {}


def take_state(workflow: Any, state: Mapping[str, Any]) -> None:
    """Load this process's part of an unsharded state."""
    if is_sharded(workflow):
        state = _mapped(workflow, state, _own)
    workflow.load_state_dict(state)


def own_weights(workflow: nn.Module, weights: Mapping[str, Any]) -> dict[str, Any]:
    """Convert whole weights to a workflow's format: its part of sharded ones, if they fit."""
    out = dict(weights)
    for name, p in workflow.named_parameters():
        shard = shard_of(p)
        if shard is not None and name in out and out[name].shape == shard.shape:
            out[name] = shard.cut(out[name], world.rank())
    return out


@contextmanager
def assembled(workflow: Any) -> Iterator[None]:
    """Give rank 0 the whole weights inside the block, which it runs alone."""
    split = [p for p in workflow.parameters() if shard_of(p) is not None]
    averages = [(opt, opt.average) for opt in workflow.optimizers.values() if opt.average]
    parts = [p.data for p in split]
    for opt, average in averages:
        pairs = zip(opt.params, average, strict=True)
        opt.average = [_here(_on_main(p, x), x) for p, x in pairs]
    for p, full in [(p, _on_main(p, p.data)) for p in split]:
        if full is not None:
            p.data, p.shard.whole = full.to(p.device), True
    try:
        yield
    finally:
        for opt, average in averages:
            opt.average = average
        for p, part in zip(split, parts, strict=True):
            p.data, p.shard.whole = part, False
        _gathered.clear()


def _here(full: Tensor | None, part: Tensor) -> Tensor:
    return part if full is None else full.to(part.device)
