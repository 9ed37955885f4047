"""Compare a run's first fast update with the reference, tensor by tensor.

Output layers initialized to zero block gradients, and a warmup learning rate of zero moves nothing:
both updates start from a copy of the state with these moved off zero. The optimizer is compared on
identical gradients: most normalize the first gradient, so that a value near zero whose sign is
flipped by rounding would count as much as a large one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dreamlab.accel.dispatch import reference_kernels
from dreamlab.core import rng as random
from dreamlab.core import world
from dreamlab.core.errors import LabError
from dreamlab.core.optim import Optimizer
from dreamlab.core.tree import tree_map
from dreamlab.core.workflow import Workflow

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Limits:
    """Tolerances between a fast update and the reference."""

    loss: float
    """Relative error of a loss, or absolute if it is below 1."""
    cosine: float
    """Minimum cosine between both gradients of a tensor."""
    small: float
    """The same for a tensor with a small gradient relative to the largest."""
    size: float
    """Relative difference of their norms."""
    beside: float = 0.0
    """Share of the largest gradient in its module up to which a difference may be rounding: then
    `ROUGH` is enough. A bias of a few numbers sums thousands of errors that cancel in no weight."""


LIMITS = {
    torch.float32: Limits(loss=1e-3, cosine=0.999, small=0.99, size=0.02),
    torch.bfloat16: Limits(loss=0.1, cosine=0.98, small=0.95, size=0.2, beside=0.1),
}
"""Measured on a CPU, size 1m with 8 x 16 steps: in float32 cosines are 1.0000, but a single random
choice of a dream that falls otherwise turns the gradients of what learns from dreams. In bfloat16
some do: those have 0.990 and more, the others 0.997. Lengths differ by up to 4 %."""
SMALL = 0.02
"""Share of the largest gradient norm below which one is small."""
FLOOR = 1e-9
"""Share of the largest gradient norm below which one is ignored."""
FAINT = 1e-3
"""Change of a single number below which its error is relative to this: ranges of returns, for
example, count from 1 on, and those of returns near zero are rounding errors."""
STEP = Limits(loss=0.0, cosine=0.99, small=0.99, size=0.05)
"""Tolerances of an optimizer step on identical gradients, always in full precision."""
ROUGH = Limits(loss=0.0, cosine=0.8, small=0.8, size=0.5)
"""Tolerances of a small gradient next to its module's largest: on an H200 the bias of the policy's
6 standard deviations had a cosine of 0.9493 in size 50m; on a CPU lengths differ by up to 15 %."""
HEAD = 0.3
"""Output magnitude of a reinitialized zero layer, for inputs of size 1."""
SLOPE = 25.0
"""Offset of the outermost logits below the middle ones: bins grow exponentially to e^20."""


@dataclass
class Trial:
    """Results of an update."""

    losses: dict[str, float]
    grads: dict[str, list[Tensors]]
    """Gradients of each optimizer, at each of its steps, by parameter name."""
    change: Tensors
    """Change of every floating-point tensor of the state."""


def compare_with_reference(
    workflow: Workflow[Any], dtype: torch.dtype, plain: Callable[[], Any], fast: Callable[[], Any]
) -> Any:
    """Return the result of the fast update, or raise if it differs from the reference.

    The comparison costs one update of each kind and has no side effects.
    """
    limits = LIMITS[dtype]
    with undone(workflow) as again:
        with as_written(workflow, dtype):
            wanted = attempt(workflow, plain)
        again()
        found = attempt(workflow, fast)
        again()
        stepped = as_the_rule_says(workflow, found.grads)
    faults = [
        *wrong_losses(wanted.losses, found.losses, limits),
        *wrong_grads(wanted.grads, found.grads, limits),
        *wrong_tensors("a change", stepped, {k: found.change[k] for k in stepped}, STEP),
        *wrong_tensors("a change", *unlike(wanted.change, found.change, stepped, limits), limits),
    ]
    if world.any_of(bool(faults)):  # all end: those that went on would wait for this process
        told = faults or ["seen by another process of this run"]
        raise LabError(
            f"on this {workflow.device.type} the fast update is not that of the reference: "
            f"{'; '.join(told[:3])}{f' (and {len(told) - 3} more)' if told[3:] else ''}: "
            "train with accel=off, and please report it"
        )
    return fast()


@contextmanager
def undone(workflow: Workflow[Any]) -> Iterator[Callable[[], None]]:
    """Restore a workflow and the random state at the end of the block, or on request."""
    copies: Any = tree_map(_copy, workflow.state_dict())
    grads = [(p, p.grad) for p in workflow.parameters()]
    chance = random.get_state()

    def again() -> None:
        workflow.load_state_dict(copies)
        random.set_state(chance)
        for p, grad in grads:
            p.grad = grad

    try:
        yield again
    finally:
        again()


def _copy(x: Any) -> Any:
    """Copy a tensor to host memory, which does not affect the GPU's peak memory."""
    return x.detach().to("cpu", copy=True) if isinstance(x, Tensor) else x


@contextmanager
def as_written(workflow: Workflow[Any], dtype: torch.dtype) -> Iterator[None]:
    """Compute with reference kernels, including optimizers, in this precision."""
    kind = workflow.device.type
    # no caching: weights change between uses, unnoticed by outer blocks
    low = torch.autocast(kind, torch.bfloat16, dtype == torch.bfloat16, cache_enabled=False)
    fused = [(opt, opt.fused) for opt in workflow.optimizers.values()]
    for opt, _ in fused:
        opt.fused = None
    try:
        with reference_kernels(), low:
            yield
    finally:
        for opt, step in fused:
            opt.fused = step


def attempt(workflow: Workflow[Any], update: Callable[[], Any]) -> Trial:
    """Run an update from the current state, moved off zero, and return its results."""
    move_off_zero(workflow)
    start = numbers(workflow)
    names = {id(p): name for name, p in workflow.named_parameters()}
    heard: dict[str, list[Tensors]] = {key: [] for key in workflow.optimizers}
    for key, opt in workflow.optimizers.items():
        mine = [names[id(p)] for p in opt.params]
        opt.heard = lambda grads, key=key, mine=mine: heard[key].append(_named(mine, grads))
    try:
        found = losses(update())
    finally:
        for opt in workflow.optimizers.values():
            opt.heard = None
    return Trial(found, heard, {k: v - start[k] for k, v in numbers(workflow).items()})


def _named(names: Sequence[str], grads: Sequence[Tensor | None]) -> Tensors:
    pairs = zip(names, grads, strict=True)
    return {name: _copy(g).float() for name, g in pairs if g is not None}


@torch.no_grad()
def move_off_zero(workflow: Workflow[Any]) -> None:
    """Change zeros that would hide a fault.

    Zero layers get small random weights, target copies move away from their originals, optimizers
    skip their warmup.
    """
    generator = torch.Generator().manual_seed(0)
    for p in workflow.parameters():
        is_zero = p.ndim > 1 and not p.any()
        if not is_zero and p.requires_grad:
            continue
        noise = HEAD * torch.randn(p.shape, generator=generator).to(p.device)
        if is_zero:
            p.copy_(noise / p[0].numel() ** 0.5)
            _lower_ends(workflow, p)
        else:
            p.add_(noise * p.square().mean().sqrt().clamp(min=HEAD))
    for opt in workflow.optimizers.values():
        opt.inner.allocate().clamp_(min=opt.config.warmup_steps)


def _lower_ends(workflow: Workflow[Any], weight: Tensor) -> None:
    """Lower the outer logits of a layer, as in a trained one.

    Values over bins that reach 4.85e8 would be in the millions, and a single different random
    choice would dominate the policy loss.
    """
    owners = [m for m in workflow.modules() if any(p is weight for p in m.parameters(False))]
    for bias in (getattr(owner, "bias", None) for owner in owners):
        if isinstance(bias, Tensor) and bias.shape[-1] > 1 and not bias.any():
            bias.copy_(-SLOPE * torch.linspace(-1, 1, bias.shape[-1]).abs())  # of each member


def numbers(workflow: Workflow[Any]) -> Tensors:
    """Return copies of all floating-point parameters and buffers."""
    state: Mapping[str, Any] = workflow.state_dict()
    there = {k: v for k, v in state.items() if isinstance(v, Tensor) and v.is_floating_point()}
    return {k: _copy(v) for k, v in there.items()}


def losses(out: Any) -> dict[str, float]:
    """Return the losses among a method's results, by name."""
    metrics = out[0] if isinstance(out, tuple) else out
    if not isinstance(metrics, dict):
        return {}
    return {k: float(v) for k, v in metrics.items() if "loss" in k}


def as_the_rule_says(workflow: Workflow[Any], grads: dict[str, list[Tensors]]) -> Tensors:
    """Compute the reference optimizer step on gradients; return the parameter changes."""
    move_off_zero(workflow)
    start = numbers(workflow)
    with as_written(workflow, torch.float32), world.alone():  # these are means already
        for key, opt in workflow.optimizers.items():
            _follow(workflow, opt, grads[key])
    mine = {id(p) for opt in workflow.optimizers.values() for p in opt.params}
    names = [name for name, p in workflow.named_parameters() if id(p) in mine]
    now = numbers(workflow)
    return {name: now[name] - start[name] for name in names}


def _follow(workflow: Workflow[Any], opt: Optimizer, steps: Sequence[Tensors]) -> None:
    names = {id(p): name for name, p in workflow.named_parameters()}
    for grads in steps:
        mine = [grads.get(names[id(p)]) for p in opt.params]
        opt.follow([None if g is None else g.to(workflow.device) for g in mine])


def unlike(
    wanted: Tensors, found: Tensors, but: Tensors, limits: Limits
) -> tuple[Tensors, Tensors]:
    """Return both without the tensors in `but`, which optimizers update, and faint differences."""
    skip = set(but)
    for key in wanted.keys() & found.keys():
        a, b = wanted[key], found[key]
        if a.ndim == 0 and abs(a - b) <= limits.loss * max(abs(a), FAINT):
            skip.add(key)
    mine, theirs = ({k: v for k, v in x.items() if k not in skip} for x in (wanted, found))
    return mine, theirs


def wrong_losses(
    wanted: Mapping[str, float], found: Mapping[str, float], limits: Limits
) -> list[str]:
    """Return the differences in losses."""
    pairs = {name: (found[name], value) for name, value in wanted.items()}
    return [
        f"{name} = {a:.6g}, in the reference {b:.6g}"
        for name, (a, b) in pairs.items()
        if not abs(a - b) <= limits.loss * max(abs(b), 1.0)
    ]


def wrong_grads(
    wanted: Mapping[str, list[Tensors]], found: Mapping[str, list[Tensors]], limits: Limits
) -> list[str]:
    """Return the differences in gradients, the worst first."""
    faults: list[str] = []
    for key, steps in wanted.items():
        if len(steps) != len(found[key]):
            faults.append(f"{key}: {len(found[key])} steps, in the reference {len(steps)}")
        for a, b in zip(steps, found[key], strict=False):
            longest = max((float(v.norm()) for v in a.values()), default=0.0)
            faults += wrong_tensors("a gradient", a, b, limits, longest)
    return faults


def wrong_tensors(
    what: str, wanted: Tensors, found: Tensors, limits: Limits, longest: float = 0.0
) -> list[str]:
    """Return the tensors that differ, and by how much, the worst first."""
    names = sorted(wanted.keys() | found.keys())
    pairs = {name: Likeness.of(wanted.get(name), found.get(name)) for name in names}
    largest: dict[str, float] = {}
    for name, near in pairs.items():
        if owner := _owner(name):
            largest[owner] = max(near.wanted, largest.get(owner, 0.0))
    faults = [
        (near.cosine, f"{name} has {what} {near}")
        for name, near in pairs.items()
        if not near.within(limits, longest, largest.get(_owner(name), 0.0))
    ]
    return [text for _, text in sorted(faults)]


def _owner(name: str) -> str:
    """Return the module of a parameter."""
    return name.rpartition(".")[0]


@dataclass(frozen=True)
class Likeness:
    """Similarity of two tensors."""

    cosine: float
    size: float
    wanted: float
    """Norm of the reference."""

    @classmethod
    def of(cls, wanted: Tensor | None, found: Tensor | None) -> Likeness:
        """Compare two tensors; a missing one is zero."""
        if wanted is None or found is None:
            length = [0.0 if x is None else float(x.norm()) for x in (wanted, found)]
            return cls(0.0, length[1], length[0])
        a, b = wanted.flatten().double(), found.flatten().double()
        size, length = float(b.norm()), float(a.norm())
        both = size * length
        return cls(float(a @ b) / both if both else 0.0, size, length)

    @property
    def off(self) -> float:
        """Return the norm of the difference."""
        square = self.size**2 + self.wanted**2 - 2 * self.cosine * self.size * self.wanted
        return max(square, 0.0) ** 0.5

    def within(self, limits: Limits, longest: float, beside: float) -> bool:
        """Return whether they are similar, or both negligible relative to the largest.

        `beside` is the largest norm in the same module.
        """
        if self.wanted <= FLOOR * longest:
            return self.size <= 2 * FLOOR * longest
        small = self.wanted < SMALL * longest
        if small and self.off <= limits.beside * beside:
            limits = ROUGH
        least = limits.small if small else limits.cosine
        return self.cosine >= least and abs(self.size / self.wanted - 1) <= limits.size

    def __str__(self) -> str:
        return (
            f"of length {self.size:.3g}, in the reference {self.wanted:.3g}, "
            f"at a cosine of {self.cosine:.4f}"
        )
