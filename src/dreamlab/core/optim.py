"""An optimizer with clipping, gradient accumulation, weight averaging and gradient norms.

In YAML it is a part: its kind, its options, or both (`optimizer: {_target_: adamw, lr: 1e-3}`).
Each kind has its own options and rejects those of others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from dreamlab.core import sharding, world
from dreamlab.core.config import Part, optional_part, part
from dreamlab.core.errors import ConfigError, unknown
from dreamlab.core.update_rules import (
    SGD,
    Adam,
    AdamConfig,
    AdamW,
    AdamWConfig,
    Grads,
    Group,
    GroupConfig,
    LaProp,
    LaPropConfig,
    OptimConfig,
    RMSprop,
    RMSpropConfig,
    Rule,
    SGDConfig,
    computed_once,
)

PARTS = {
    "adam": "dreamlab.core.update_rules.Adam",
    "adamw": "dreamlab.core.update_rules.AdamW",
    "laprop": "dreamlab.core.update_rules.LaProp",
    "rmsprop": "dreamlab.core.update_rules.RMSprop",
    "sgd": "dreamlab.core.update_rules.SGD",
}
OPTIMIZERS = "dreamlab.core.optim"
"""The registry of optimizer names in the configuration."""
KINDS: dict[type, type[Rule]] = {r.Config: r for r in (Adam, AdamW, LaProp, RMSprop, SGD)}


def optimizer_part(kind: str, **options: Any) -> Part:
    """Return an optimizer's config as loaded from YAML: kind and options."""
    return Part.load(kind, options, OPTIMIZERS, Rule)


def optimizer_field(kind: str, **options: Any) -> Any:
    """Declare a dataclass field for an optimizer's config, with its default."""
    return part(kind, OPTIMIZERS, Rule, **options)


def optional_optimizer() -> Any:
    """Declare a dataclass field for an optional optimizer's config, None by default."""
    return optional_part(OPTIMIZERS, Rule)


def without_groups(config: Part) -> Part:
    """Return an optimizer's config without its parameter groups."""
    return config.but(groups={})


class Optimizer:
    """Updates `params` along gradients. With `accumulate` = k, only every k-th `step` does."""

    def __init__(
        self,
        config: OptimConfig | Part,
        params: Iterable[nn.Parameter],
        names: Mapping[int, str] | None = None,
    ) -> None:
        """Create an optimizer; `names` maps the `id` of parameters to names, for groups."""
        rule, self.config = _kind_of(config)
        self.params = list(params)
        self.accumulate = 1
        self.pending = 0
        self.sources: list[nn.Parameter] = self.params
        """The weights that losses use: the parameters, low-precision copies, gathered weights."""
        self.fused: Callable[[Grads], Tensor] | None = None
        """A fused GPU step that replaces the default one and returns the gradient norm."""
        self.heard: Callable[[Grads], None] | None = None
        """Called with the gradients of every step before clipping."""
        self.limit: Callable[[], None] | None = None
        """Bounds weights after every step, before averages and copies follow them."""
        self.changed: Callable[[], None] | None = None
        """Called after every change of the weights."""
        self.grad_norms: Tensor | None = None
        """The norm of each parameter's last gradient before clipping, if requested."""
        self.inner = rule(self.config, self.params, _groups(self.config, self.params, names or {}))
        self.average: list[Tensor] = []

    @property
    def lr(self) -> float:
        return self.inner.lr

    def set_lr(self, lr: float) -> None:
        """Use this learning rate from the next step on."""
        self.inner.set_lr(lr)

    def at(self, progress: float) -> None:
        """Set the learning rate for this progress of training, if scheduled."""
        factor = self.inner.schedule.at(progress)
        if factor is not None:
            self.set_lr(self.config.lr * factor)

    def allocate(self) -> None:
        """Allocate the optimizer state, once the parameters are on their final device."""
        self.inner.allocate()
        if self.config.ema and not self.average:
            self.average = [p.detach().clone() for p in self.params]

    # -- a step -----------------------------------------------------------------------------------

    def step(self, loss: Tensor) -> Tensor:
        """Take a gradient step on `loss` and return the gradient norm before clipping.

        Only this optimizer's parameters receive a gradient.
        """
        return self.follow(self.gradients(loss))

    def gradients(self, loss: Tensor, keep_graph: bool = False) -> Grads:
        """Compute the gradient of `loss` at each parameter, without a step."""
        scaled = loss / self.accumulate if self.accumulate > 1 else loss
        return sharding.gradients([scaled], self.sources, keep_graph=keep_graph or None)

    def follow(self, new: Grads) -> Tensor:
        """Clip gradients and update the weights; return the norm before clipping.

        With several processes, all of them use the mean of their gradients.
        """
        if world.size() > 1:
            new = sharding.mean_gradients(self.params, new)
        if self.heard is not None:
            self.heard(new)
        if self.grad_norms is not None:
            self._note(new, self.grad_norms)
        if self.config.ema:  # the average starts from the initial weights
            self.allocate()
        if self.fused is not None:
            norm = self.fused(new)
            self._stepped()
            return norm
        if self.sources is not self.params:
            new = _widened(new, self.params)
        if torch.compiler.is_compiling():
            assert self.accumulate == 1
            grads: list[Tensor | None] = list(new)  # None for parameters unused by the loss
            norm = self.grad_norm([g for g in grads if g is not None])
            self.apply(grads, norm)
            return norm
        for p, g in zip(self.params, new, strict=True):
            p.grad = _sum(p.grad, g) if self.pending > 0 else g
        self.pending += 1
        grads = [p.grad for p in self.params]
        norm = self._norm(grads)
        if self.pending == self.accumulate:
            self.apply(grads, norm)
        return norm

    def _norm(self, grads: Grads) -> Tensor:
        """Return the global norm, over all processes if sharded."""
        there = [(p, g) for p, g in zip(self.params, grads, strict=True) if g is not None]
        if not any(sharding.owner_of(p) is not None for p, _ in there):
            return self.grad_norm([g for _, g in there])
        return torch.linalg.vector_norm(sharding.norms(*zip(*there, strict=True)))

    def watch_grads(self) -> None:
        """Record `grad_norms` from now on, at a fixed address that captured steps can write to."""
        self.grad_norms = torch.zeros(len(self.params), device=self.params[0].device)

    @torch.no_grad()
    def _note(self, grads: Grads, norms: Tensor) -> None:
        params = [p for p, g in zip(self.params, grads, strict=True) if g is not None]
        found = iter(sharding.norms(params, [g.float() for g in grads if g is not None]).unbind())
        norms.copy_(torch.stack([norms.new_zeros(()) if g is None else next(found) for g in grads]))

    @staticmethod
    def grad_norm(grads: list[Tensor]) -> Tensor:
        """Compute the global norm of these gradients."""
        if torch.compiler.is_compiling():  # loops that the compiler can fuse
            return torch.stack([g.square().sum() for g in grads]).sum().sqrt()
        return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))

    def apply(self, grads: Grads, norm: Tensor) -> None:
        """Clip by `norm`, then each gradient by its own norm, and update the weights."""
        # where reading the norm is free, skip clipping of small gradients
        if self.config.clip > 0 and (_unread(norm) or norm > self.config.clip):
            scale = computed_once((self.config.clip / (norm + 1e-6)).clamp_(max=1.0))
            torch._foreach_mul_([g for g in grads if g is not None], scale)
        if self.config.agc > 0:
            grads = clip_each(grads, self.params, self.config.agc)
        self.inner.step(grads)
        self._stepped()
        self.pending = 0

    def _stepped(self) -> None:
        """Bound the new weights, and follow them."""
        if self.limit is not None:
            self.limit()
        self._average()
        if self.changed is not None:
            self.changed()

    @torch.no_grad()
    def restart(self) -> None:
        """Reset the optimizer state but keep the weights, for a new training objective."""
        self.pending = 0
        if self.inner.steps is not None:
            moments = [x for name in self.inner.names for x in getattr(self.inner, name)]
            torch._foreach_zero_([self.inner.steps, *moments])

    # -- averaged weights -------------------------------------------------------------------------

    @torch.no_grad()
    def _average(self) -> None:
        c = self.config
        if c.ema and not c.ema_power:
            torch._foreach_lerp_(self.average, tuple(self.params), 1 - c.ema)
        elif c.ema:
            count = self.inner.count
            assert count is not None
            share = computed_once((count**-c.ema_power).clamp(min=1 - c.ema).float())
            gaps = torch._foreach_sub(tuple(self.params), self.average)
            torch._foreach_add_(self.average, torch._foreach_mul(gaps, share))

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Swap in the averaged weights, if any, inside the block."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def adopt_average(self) -> None:
        """Replace the weights by their averages, if any."""
        for p, average in zip(self.params, self.average, strict=False):
            p.copy_(average)

    @torch.no_grad()
    def _swap(self) -> None:
        for p, other in zip(self.params, self.average, strict=False):
            kept = p.detach().clone()
            p.copy_(other)  # in place: a captured graph reads this memory
            other.copy_(kept)

    # -- state ------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return everything the next step depends on, including accumulated gradients."""
        grads = [None if p.grad is None else p.grad.clone() for p in self.params]
        state = {
            "inner": self.inner.state_dict(),
            "pending": self.pending,
            "grads": grads if self.pending else [],
        }
        return {**state, "average": self.average} if self.config.ema else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state from `state_dict`."""
        self.inner.load_state_dict(state["inner"])
        self.pending = int(state["pending"])
        for p, grad in zip(self.params, state["grads"], strict=False):
            p.grad = None if grad is None else grad.to(p.device)
        if self.config.ema:
            pairs = zip(self.params, state["average"], strict=False)
            self.average = [x.to(p.device).clone() for p, x in pairs]


def gradients_at(
    places: Mapping[str, Sequence[Tensor]], outputs: Sequence[Tensor], pulls: Grads = ()
) -> dict[str, Grads]:
    """Compute the gradients of outputs at tensors, keyed by place, without a step.

    Non-scalar outputs use `pulls` as output gradients; those without one, or without a graph, are
    skipped.
    """
    pairs: Any = zip(outputs, pulls or [None] * len(outputs), strict=True)
    if pulls:
        pairs = [(x, g) for x, g in pairs if g is not None and x.requires_grad]
    given, along = zip(*pairs, strict=True)
    sources = [x for group in places.values() for x in group]
    found = iter(sharding.gradients(given, sources, along))
    return {k: [next(found) for _ in group] for k, group in places.items()}


def add_grads(grads: Sequence[Grads]) -> list[Tensor | None]:
    """Sum gradients; None for parameters unused by all losses."""
    total = list(grads[0])
    for more in grads[1:]:
        both = [i for i, (a, b) in enumerate(zip(total, more, strict=True)) if _both(a, b)]
        total = [b if a is None else a for a, b in zip(total, more, strict=True)]
        if both:
            pairs: Any = [(total[i], more[i]) for i in both]
            sums = torch._foreach_add([a for a, _ in pairs], [b for _, b in pairs])
            for i, both_of in zip(both, sums, strict=True):
                total[i] = both_of
    return total


def _both(a: Tensor | None, b: Tensor | None) -> bool:
    return a is not None and b is not None


def clip_each(grads: Grads, params: Sequence[Tensor], share: float) -> list[Tensor | None]:
    """Clip each gradient to a fraction of its parameter's norm (AGC, Brock et al. 2021)."""
    used = [i for i, g in enumerate(grads) if g is not None]
    there: Any = [grads[i] for i in used]
    with torch.no_grad():
        mine = [params[i] for i in used]
        lengths, sizes = sharding.norms(mine, there), sharding.norms(mine, mine)
        excess = (lengths / (sizes.clamp(min=1e-3) * share)).clamp(min=1.0)
        found = iter(torch._foreach_div(there, list(excess.unbind())))
    return [None if g is None else next(found) for g in grads]


def _kind_of(config: OptimConfig | Part) -> tuple[type[Rule], Any]:
    if isinstance(config, Part):
        return config.cls("optimizer"), config.config
    return KINDS[type(config)], config


def _groups(
    config: OptimConfig, params: Sequence[nn.Parameter], names: Mapping[int, str]
) -> list[Group]:
    """Assign parameters to groups; the rest is the first group."""
    if not config.groups:
        return []
    members: dict[str, list[int]] = {"": [], **{key: [] for key in config.groups}}
    mine = [names.get(id(p), "") for p in params]
    for i, name in enumerate(mine):
        fitting = [k for k in config.groups if name == k or name.startswith(f"{k}.")]
        members[max(fitting, key=len, default="")].append(i)
    rest = Group(members.pop(""), config)
    found = [_group(config, k, index, mine) for k, index in members.items()]
    return [group for group in (rest, *found) if group.index]


def _group(config: OptimConfig, key: str, index: list[int], names: Iterable[str]) -> Group:
    """Create a group, or raise if it would have no effect."""
    where, options = f"optimizer.groups.{key}", config.groups[key]
    if not index:
        known = {n.rpartition(".")[0] for n in names} - {""}
        raise ConfigError(unknown("parameter prefix", key, known, where))
    given = {f.name: getattr(options, f.name) for f in fields(options)}
    changed = {k: v for k, v in given.items() if v is not None}
    scale = changed.pop("lr_scale", None)
    if scale is None and not changed:
        raise ConfigError(f"{where}: is empty; set lr_scale, weight_decay or eps")
    for option in changed:
        if not hasattr(config, option):
            kinds = ", ".join(k for k, cls in _configs().items() if hasattr(cls, option))
            raise ConfigError(
                f"{where}.{option}: has no effect with this kind; supported by {kinds}"
            )
    try:
        return Group(index, replace(config, **changed), 1.0 if scale is None else scale)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def _configs() -> dict[str, type]:
    return {cls.__name__.lower(): cls.Config for cls in KINDS.values()}


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


def _widened(grads: Grads, params: Sequence[Tensor]) -> list[Tensor | None]:
    """Convert gradients to full precision and the parameters' layout, all at once."""
    pairs = zip(grads, params, strict=True)
    there = [(g, torch.empty_like(p)) for g, p in pairs if g is not None]
    wide = [w for _, w in there]
    torch._foreach_copy_(wide, [g for g, _ in there])
    found = iter(wide)
    return [None if g is None else next(found) for g in grads]


def _unread(x: Tensor) -> bool:
    """Return whether reading a tensor's value would cost a device synchronization."""
    return torch.compiler.is_compiling() or x.device.type != "cpu"


__all__ = [
    "OPTIMIZERS", "PARTS", "SGD", "Adam", "AdamConfig", "AdamW", "AdamWConfig", "Group",
    "GroupConfig", "LaProp", "LaPropConfig", "OptimConfig", "Optimizer", "RMSprop",
    "RMSpropConfig", "Rule", "SGDConfig", "add_grads", "clip_each", "gradients_at",
    "optimizer_field", "optimizer_part", "optional_optimizer", "without_groups",
]  # fmt: skip
