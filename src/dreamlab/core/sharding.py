"""Weights of which each process keeps a part: fully sharded data parallelism.

A sharded parameter holds its process's part, flat; so does whatever follows it, like the moments of
an optimizer, an average or a target network. Reading it from its module (`self.weight`) gathers the
whole; the gradient that flows back into that is averaged over the processes and cut into parts. The
whole is not kept for the way back: it is gathered once more.

`torch.distributed.fsdp.fully_shard` does this with hooks on `forward` and on `.grad`. Updates here
call other methods as well and take gradients of several losses by `torch.autograd.grad`, which
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
"""How much of gathered weights is kept for the next use; weights that move are gathered anew."""


@dataclass
class Shard:
    """What a sharded parameter is a part of."""

    shape: torch.Size
    parts: int
    whole: bool = False
    """That the parameter holds all of it for a while."""

    @property
    def part_size(self) -> int:
        """How many numbers a process has; the last ones of the last process may be padding."""
        return math.ceil(self.shape.numel() / self.parts)

    def cut(self, full: Tensor, rank: int) -> Tensor:
        """Return a copy of one process's part."""
        flat, size = full.detach().reshape(-1), self.part_size
        part = flat[rank * size : (rank + 1) * size]
        return torch.cat([part, part.new_zeros(size - part.numel())])

    def join(self, flat: Tensor) -> Tensor:
        """Return the whole of the parts behind one another."""
        return flat[: self.shape.numel()].view(self.shape)


def shard_of(p: Tensor) -> Shard | None:
    """Return what a parameter is a part of; None if every process has all of it."""
    return getattr(p, "shard", None)


# -- the whole of a parameter ---------------------------------------------------------------------


class _Gather(torch.autograd.Function):
    """From a part to the whole; back from the whole to the part of the mean over processes."""

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
    """Gathered weights that may be used again, the latest ones, and where they came from."""

    def __init__(self) -> None:
        self.kept: OrderedDict[tuple[int, bool], tuple[int, Tensor]] = OrderedDict()
        self.origin: dict[int, nn.Parameter] = {}
        self.size = 0
        self.readable, self.least = True, 0

    def get(self, p: nn.Parameter, shard: Shard) -> Tensor:
        """Return the whole of a parameter, with a gradient where one is wanted."""
        assert self.readable, f"a parameter {list(shard.shape)} was cut before it was initialised"
        key = (id(p), torch.is_grad_enabled() and p.requires_grad)
        version, full = self.kept.get(key, (-1, p))
        if version == p._version:
            self.kept.move_to_end(key)
            return full
        self._drop(key)
        full = _Gather.apply(p, shard)
        place = full.untyped_storage().data_ptr()
        self.origin[place] = p  # valid as long as this tensor lives
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
        """Keep nothing."""
        self.kept.clear()
        self.size = 0


_gathered = _Gathered()


def whole(p: nn.Parameter) -> Tensor:
    """Return a parameter as its module uses it; all processes must ask for it."""
    shard = shard_of(p)
    return p if shard is None or shard.whole else _gathered.get(p, shard)


@contextmanager
def unread(least: int) -> Iterator[None]:
    """Raise if a sharded parameter is used inside the block, in which such ones are built."""
    _gathered.readable, _gathered.least = False, least
    try:
        yield
    finally:
        _gathered.readable = True


def _pack(x: Tensor) -> Any:
    """Remember where a gathered weight came from in place of the weight itself."""
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
    """Return a block in which what is computed does not keep gathered weights for the way back."""
    return saved_tensors_hooks(_pack, _unpack)


@cache
def _reading(cls: type, names: tuple[str, ...]) -> type:
    """Return a subclass whose attributes of these names are gathered parameters."""

    def reader(name: str) -> property:
        return property(lambda self: whole(self._parameters[name]))

    return type(cls.__name__, (cls,), {**{n: reader(n) for n in names}, "plain_class": cls})


def shard_parameter(module: nn.Module, name: str, p: nn.Parameter) -> None:
    """Keep this process's part of a module's parameter from now on."""
    cls = getattr(module, "plain_class", type(module))
    held = {n for n, q in module._parameters.items() if q is not None and shard_of(q) is not None}
    if shard_of(p) is None:
        shard = Shard(p.shape, world.all_processes())
        p.data = shard.cut(p, world.rank())
        p.shard = shard  # type: ignore[attr-defined]
    module.__class__ = _reading(cls, tuple(sorted({*held, name})))


def shard_module(root: nn.Module, least: int) -> None:
    """Keep this process's part of every parameter of at least so many numbers."""
    for module in root.modules():
        check_module(module)
        for name, p in list(module._parameters.items()):
            if p is not None and (shard_of(p) is not None or p.numel() >= least):
                shard_parameter(module, name, p)


def cut_copies(module: nn.Module) -> dict[int, Any]:
    """Return, while a sharded workflow is built, this process's parts as copies of parameters.

    They are what `copy.deepcopy` is to take in the place of each: a copy is never whole.
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
    """Raise if a module reads its weights in another way than by their names."""
    if isinstance(module, nn.RNNBase | nn.ParameterList | nn.ParameterDict):
        raise ConfigError(f"distributed.shard: {type(module).__name__} cannot be sharded")
    if isinstance(module, nn.Embedding) and module.max_norm is not None:
        raise ConfigError(
            "distributed.shard: an embedding of bounded norm (several tasks) cannot be sharded"
        )


# -- gradients ------------------------------------------------------------------------------------


def mean_gradients(params: Sequence[Tensor], grads: Grads) -> list[Tensor | None]:
    """Return the mean over processes; at sharded parameters the gradients are that already."""
    split = [g is not None and shard_of(p) is not None for p, g in zip(params, grads, strict=True)]
    if not any(split):
        return world.mean_gradients(grads)
    rest = world.mean_gradients([None if s else g for s, g in zip(split, grads, strict=True)])
    return [g if s else r for s, g, r in zip(split, grads, rest, strict=True)]


def norms(params: Sequence[Tensor], tensors: Sequence[Tensor]) -> Tensor:
    """Return the norm of each tensor [n], of a sharded one over its parts on all processes."""
    local = torch.stack(torch._foreach_norm(list(tensors)))
    split = [shard_of(p) is not None for p in params]
    if not any(split):
        return local
    mask = torch.tensor(split, device=local.device)
    return torch.where(mask, world.total(local.square()).sqrt(), local)


# -- the whole state ------------------------------------------------------------------------------


@torch.no_grad()
def _on_main(p: Tensor, part: Tensor | None) -> Tensor | None:
    """Return on rank 0 the whole of what follows a parameter, in memory of the host."""
    shard = shard_of(p)
    if part is None or shard is None:
        return part
    parts = world.parts_on_main(part.cpu() if part.device.type == "mps" else part)
    return shard.join(torch.cat([x.cpu() for x in parts])) if parts else None


def _own(p: Tensor, full: Tensor | None) -> Tensor | None:
    shard = shard_of(p)
    return full if full is None or shard is None else shard.cut(full, world.rank())


def _mapped(workflow: Any, state: Mapping[str, Any], change: Any) -> dict[str, Any]:
    """Return a workflow's state with everything changed that has the shape of a parameter."""
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
    """Tell whether processes keep parts of a workflow."""
    return any(shard_of(p) is not None for p in workflow.parameters())


def whole_state(workflow: Any) -> dict[str, Any]:
    """Return a workflow's state as one process would have it: on rank 0; the others get nothing."""
    if not is_sharded(workflow):
        return workflow.state_dict()
    state = _mapped(workflow, workflow.state_dict(), _on_main)
    return state if world.is_main() else {}


def take_state(workflow: Any, state: Mapping[str, Any]) -> None:
    """Take this process's part of a whole state."""
    if is_sharded(workflow):
        state = _mapped(workflow, state, _own)
    workflow.load_state_dict(state)


def own_weights(workflow: nn.Module, weights: Mapping[str, Any]) -> dict[str, Any]:
    """Return whole weights as a workflow holds them: of sharded ones its part, if they fit."""
    out = dict(weights)
    for name, p in workflow.named_parameters():
        shard = shard_of(p)
        if shard is not None and name in out and out[name].shape == shard.shape:
            out[name] = shard.cut(out[name], world.rank())
    return out


@contextmanager
def assembled(workflow: Any) -> Iterator[None]:
    """Let rank 0 have all of the weights inside the block: what it does there, it does alone."""
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
