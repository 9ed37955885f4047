"""Sharded weights: torch's `fully_shard` (FSDP2) for updates with several losses.

Every module with large weights is a unit of `fully_shard`: torch stores one part of them in each
process, gathers them when the module is called and again in its backward pass, frees them, and
averages and splits their gradients. `core/sharded_init.py` builds such a workflow.

This module is the bridge to updates. Torch reduces what `backward` accumulates in `.grad`, whereas
updates need the gradients of one loss at certain weights: `gradients` gets them from `backward`.
Optimizers, averages and target networks work on the parts of this process, which are plain tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dreamlab.core import world

Grads = Sequence[Tensor | None]
Cut = Callable[[nn.Parameter], Tensor | None]


def owner_of(part: Tensor) -> Any:
    """Return the sharded parameter (a DTensor) of a part; None for other tensors."""
    return getattr(part, "owner", None)


def parts(weights: Sequence[Tensor]) -> list[Tensor]:
    """Return this process's part of sharded weights, and the others as they are."""
    return [getattr(x, "part", x) for x in weights]


def sharded(weights: Sequence[Tensor]) -> list[Any]:
    """Return the sharded parameters that have replaced weights, and the others as they are."""
    return [getattr(x, "sharded", x) for x in weights]


def gather(unit: Any) -> None:
    """Gather the weights of a module until `reshard`; note the tensors that torch uses for it."""
    before = dict(unit.named_parameters())
    unit.unshard()
    for name, p in unit.named_parameters():
        if p is not before[name]:
            before[name].whole = p  # the same in every use


def _whole(p: Any) -> Tensor:
    """Return a weight as losses use it; a sharded one is empty except while used."""
    if _is_dtensor(p) and not hasattr(p, "whole"):
        gather(p.unit)
        p.unit.reshard()
    return getattr(p, "whole", p)


def is_sharded(workflow: nn.Module) -> bool:
    """Return whether a workflow is sharded."""
    return any(_is_dtensor(p) for p in workflow.parameters())


def _is_dtensor(p: Tensor) -> bool:
    return hasattr(p, "device_mesh")  # its class takes a second to import


# -- gradients ------------------------------------------------------------------------------------


def gradients(
    outputs: Sequence[Tensor],
    sources: Sequence[Tensor],
    along: Any = None,
    keep_graph: bool | None = None,
) -> Grads:
    """Compute the gradients of outputs at tensors, as `torch.autograd.grad` does.

    Those of sharded weights are this process's part of their mean over all processes.
    """
    if torch.compiler.is_compiling() or not any(map(_is_dtensor, sources)):
        return torch.autograd.grad(
            outputs, sources, along, retain_graph=keep_graph, allow_unused=True
        )
    wholes, kept = list(map(_whole, sources)), [x.grad for x in sources]
    for source, whole in zip(sources, wholes, strict=True):
        source.grad = None
        if source is not whole:  # it may have been used last while frozen
            whole.requires_grad_(source.requires_grad)
    torch.autograd.backward(outputs, along, keep_graph, inputs=wholes)
    found: list[Any] = [x.grad for x in sources]
    for source, grad in zip(sources, kept, strict=True):
        source.grad = grad
    return [g.to_local() if g is not None and _is_dtensor(g) else g for g in found]


def mean_gradients(params: Sequence[Tensor], grads: Grads) -> list[Tensor | None]:
    """Average gradients over processes; those of sharded parameters already are."""
    split = [g is not None and owner_of(p) is not None for p, g in zip(params, grads, strict=True)]
    if not any(split):
        return world.mean_gradients(grads)
    rest = world.mean_gradients([None if s else g for s, g in zip(split, grads, strict=True)])
    return [g if s else r for s, g, r in zip(split, grads, rest, strict=True)]


def norms(params: Sequence[Tensor], tensors: Sequence[Tensor]) -> Tensor:
    """Compute the norm of each tensor [n], over the parts on all processes if sharded.

    Sharded weights are not compiled.
    """
    if torch.compiler.is_compiling():  # loops that the compiler can fuse
        return torch.stack([t.square().sum() for t in tensors]).sqrt()
    local = torch.stack(torch._foreach_norm(list(tensors)))
    split = [owner_of(p) is not None for p in params]
    if not any(split):
        return local
    mask = torch.tensor(split, device=local.device)
    return torch.where(mask, world.total(local.square()).sqrt(), local)


# -- building -------------------------------------------------------------------------------------


_cut: Cut | None = None


@contextmanager
def cutting(cut: Cut) -> Iterator[None]:
    """Copy only parts inside the block: `cut` returns that of a parameter, if it is sharded."""
    global _cut  # noqa: PLW0603 - one workflow is built at a time
    _cut = cut
    try:
        yield
    finally:
        _cut = None


def cut_copies(module: nn.Module) -> dict[int, Any]:
    """Return copies of sharded parameters while a sharded workflow is built.

    `copy.deepcopy` uses them in place of the parameters, so that a copy is never whole.
    """
    out: dict[int, Any] = {}
    with torch._C.DisableTorchFunction():
        for p in module.parameters() if _cut is not None else ():
            if _cut is not None and (part := _cut(p)) is not None:
                out[id(p)] = without_data(p, part.clone())
    return out


def without_data(p: nn.Parameter, part: Tensor) -> nn.Parameter:
    """Return a parameter of this shape without data, which keeps its part until it is sharded."""
    empty = nn.Parameter(torch.empty(p.shape, dtype=p.dtype, device="meta"), p.requires_grad)
    empty.cut = part  # type: ignore[attr-defined]
    return empty


# -- the whole state ------------------------------------------------------------------------------


def _on_main(p: Tensor, part: Tensor | None) -> Tensor | None:
    """Return the whole of a part in host memory on rank 0, None on the others."""
    owner = owner_of(p)
    if part is None or owner is None:
        return part
    with torch.no_grad():
        full = spread_like(owner, part).full_tensor()  # of one weight at a time
    return full.cpu() if world.is_main() else None


@torch.no_grad()
def cut(full: Tensor, placement: Any) -> Tensor:
    """Return a copy of this process's part of a whole tensor, without communication."""
    from torch.distributed.tensor import distribute_tensor

    # on the host: torch would synchronize random numbers between GPUs
    spread = distribute_tensor(full.cpu(), world.mesh("cpu"), [placement], src_data_rank=None)
    return spread.to_local().clone()


def spread_like(owner: Any, part: Tensor) -> Any:
    """Return the sharded tensor of a part with the shape of a sharded parameter."""
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        part.to(owner.device_mesh.device_type), owner.device_mesh, owner.placements,
        run_check=False, shape=owner.shape, stride=owner.stride(),
    )  # fmt: skip


def _own(p: Tensor, full: Tensor | None) -> Tensor | None:
    owner = owner_of(p)
    return full if full is None or owner is None else cut(full, owner.placements[0])


def _of_optimizers(workflow: Any, extra: Mapping[str, Any], change: Any) -> dict[str, Any]:
    """Apply `change` to everything in the state of optimizers that has the shape of a weight."""
    out = dict(extra)
    for name, opt in workflow.optimizers.items():
        mine = dict(extra[name])
        inner, params = dict(mine["inner"]), opt.params
        for moment in opt.inner.names:
            inner[moment] = [change(p, x) for p, x in zip(params, inner[moment], strict=False)]
        mine["inner"] = inner
        for key in ("grads", "average"):
            if key in mine:
                mine[key] = [change(p, x) for p, x in zip(params, mine[key], strict=False)]
        out[name] = mine
    return out


def whole_state(workflow: Any) -> dict[str, Any]:
    """Return the unsharded state of a workflow on rank 0, and nothing on the others."""
    state = workflow.state_dict()
    if not is_sharded(workflow):
        return state
    for name, p in workflow.named_parameters():
        if _is_dtensor(p):
            state[name] = _on_main(p.part, p.part)
    state["_extra_state"] = _of_optimizers(workflow, state["_extra_state"], _on_main)
    return state if world.is_main() else {}


def replicated_state(workflow: Any) -> dict[str, Any]:
    """Return what of a workflow's state every process holds itself: all but its parts."""
    state = workflow.state_dict()
    if not is_sharded(workflow):
        return state
    keep = lambda p, x: x if owner_of(p) is None else None  # noqa: E731
    own = {k: v for k, v in state.items() if not (isinstance(v, Tensor) and _is_dtensor(v))}
    return own | {"_extra_state": _of_optimizers(workflow, state["_extra_state"], keep)}


def assembled_bytes(workflow: Any) -> int:
    """Return what one process takes to hold all weights and their averages."""
    averages = [p for o in workflow.optimizers.values() if o.config.ema for p in o.sources]
    return sum(p.numel() * p.element_size() for p in [*workflow.parameters(), *averages])


def state_bytes(workflow: Any) -> int:
    """Return what one process takes to hold the state of a workflow, as checkpoints have it."""
    moments = sum(
        len(o.inner.names) * p.numel() * p.element_size()
        for o in workflow.optimizers.values()
        for p in o.sources
    )
    return assembled_bytes(workflow) + moments


def take_state(workflow: Any, state: Mapping[str, Any]) -> None:
    """Load this process's part of an unsharded state."""
    if is_sharded(workflow):
        extra = _of_optimizers(workflow, state["_extra_state"], _own)
        state = {**own_weights(workflow, state), "_extra_state": extra}
    workflow.load_state_dict(state)


def own_weights(workflow: nn.Module, weights: Mapping[str, Any]) -> dict[str, Any]:
    """Convert whole weights to a workflow's format: sharded like its own, if they fit."""
    out = dict(weights)
    named: Any = workflow.named_parameters()
    for name, p in named:
        if _is_dtensor(p) and name in out and out[name].shape == p.shape:
            out[name] = spread_like(p, cut(out[name], p.placements[0]))
    return out


# -- one process alone ----------------------------------------------------------------------------


def units(workflow: nn.Module) -> list[Any]:
    """Return the modules that `fully_shard` manages."""
    return [m for m in workflow.modules() if hasattr(m, "unshard")]


@contextmanager
def assembled(workflow: Any) -> Iterator[None]:
    """Give rank 0 the whole weights inside the block, which it runs alone."""
    if not is_sharded(workflow):
        yield
        return
    whole = {name: _whole_average(opt) for name, opt in workflow.optimizers.items()}
    kept = {name: (opt.params, opt.average) for name, opt in workflow.optimizers.items()}
    for unit in units(workflow):
        gather(unit)
        if world.is_main():
            _reshard_after_use(unit, False)
        else:
            unit.reshard()
    if world.is_main():
        for name, opt in workflow.optimizers.items():
            opt.params, opt.average = list(map(_whole, opt.sources)), whole[name]
    try:
        yield
    finally:
        for name, opt in workflow.optimizers.items():
            opt.params, opt.average = kept[name]
        for unit in units(workflow):
            _reshard_after_use(unit, True)
            unit.reshard()


def _whole_average(opt: Any) -> list[Any]:
    found = [_on_main(p, x) for p, x in zip(opt.params, opt.average, strict=False)]
    return [x if x is None else x.to(p.device) for p, x in zip(opt.params, found, strict=False)]


def _reshard_after_use(unit: Any, wanted: bool) -> None:
    unit.set_reshard_after_forward(wanted, recurse=False)
    unit.set_reshard_after_backward(wanted, recurse=False)
