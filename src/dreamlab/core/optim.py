"""An optimizer that clips, accumulates, steps, averages and reports the gradient norm.

In YAML it is a part: its kind, its options, or both (`optimizer: {_target_: adamw, lr: 1e-3}`).
Each kind has its own options and refuses those of others.
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
    """Return an optimizer's config as YAML would give it: kind and options."""
    return Part.load(kind, options, OPTIMIZERS, Rule)


def optimizer_field(kind: str, **options: Any) -> Any:
    """Declare a dataclass field that holds an optimizer's config, with its default."""
    return part(kind, OPTIMIZERS, Rule, **options)


def optional_optimizer() -> Any:
    """Declare a dataclass field that holds an optimizer's config or, by default, None."""
    return optional_part(OPTIMIZERS, Rule)


def without_groups(config: Part) -> Part:
    """Return an optimizer's config for other parameters than those it names."""
    return config.but(groups={})


class Optimizer:
    """Moves `params` along gradients. With `accumulate` = k, only every k-th `step` does."""

    def __init__(
        self,
        config: OptimConfig | Part,
        params: Iterable[nn.Parameter],
        names: Mapping[int, str] | None = None,
    ) -> None:
        """Start with no step taken; `names` of parameters, by their `id`, are for groups."""
        rule, self.config = _kind_of(config)
        self.params = list(params)
        self.accumulate = 1
        self.pending = 0
        self.sources: list[nn.Parameter] = self.params
        """The weights that losses use: the parameters, or lower-precision copies."""
        self.fused: Callable[[Grads], Tensor] | None = None
        """A fused GPU step that replaces the default one and returns the gradient norm."""
        self.heard: Callable[[Grads], None] | None = None
        """Called with the gradients of every step before clipping."""
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
        """Set the learning rate for this moment of the training, if it follows a schedule."""
        factor = self.inner.schedule.at(progress)
        if factor is not None:
            self.set_lr(self.config.lr * factor)

    def allocate(self) -> None:
        """Make room for everything a step changes, once the parameters are where they will stay."""
        self.inner.allocate()
        if self.config.ema and not self.average:
            self.average = [p.detach().clone() for p in self.params]

    # -- a step -----------------------------------------------------------------------------------

    def step(self, loss: Tensor) -> Tensor:
        """Follow the gradient of `loss` and return its norm before clipping.

        Only this optimizer's parameters receive a gradient, whatever else the loss went through.
        """
        return self.follow(self.gradients(loss))

    def gradients(self, loss: Tensor, keep_graph: bool = False) -> Grads:
        """Return the gradient of `loss` at each parameter; nothing moves."""
        scaled = loss / self.accumulate if self.accumulate > 1 else loss
        return torch.autograd.grad(
            scaled, self.sources, allow_unused=True, retain_graph=keep_graph or None
        )

    def follow(self, new: Grads) -> Tensor:
        """Clip gradients and move the weights along them; return the norm before clipping.

        Of several processes each brings its own; all of them follow the mean.
        """
        if world.size() > 1:
            new = sharding.mean_gradients(self.params, new)
        if self.heard is not None:
            self.heard(new)
        if self.grad_norms is not None:
            self._note(new, self.grad_norms)
        if self.config.ema:  # the average starts with the weights that nothing has moved yet
            self.allocate()
        if self.fused is not None:
            norm = self.fused(new)
            self._average()
            return norm
        if self.sources is not self.params:
            new = _widened(new, self.params)
        if torch.compiler.is_compiling():
            assert self.accumulate == 1
            grads: list[Tensor | None] = list(new)  # None where the loss did not pass
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
        """Return the global norm, over all processes where each has a part."""
        there = [(p, g) for p, g in zip(self.params, grads, strict=True) if g is not None]
        if not any(sharding.shard_of(p) for p, _ in there):
            return self.grad_norm([g for _, g in there])
        return torch.linalg.vector_norm(sharding.norms(*zip(*there, strict=True)))

    def watch_grads(self) -> None:
        """Keep `grad_norms` from now on, in one place that recorded steps may write to."""
        self.grad_norms = torch.zeros(len(self.params), device=self.params[0].device)

    @torch.no_grad()
    def _note(self, grads: Grads, norms: Tensor) -> None:
        params = [p for p, g in zip(self.params, grads, strict=True) if g is not None]
        found = iter(sharding.norms(params, [g.float() for g in grads if g is not None]).unbind())
        norms.copy_(torch.stack([norms.new_zeros(()) if g is None else next(found) for g in grads]))

    @staticmethod
    def grad_norm(grads: list[Tensor]) -> Tensor:
        """Return the global norm of these gradients."""
        if torch.compiler.is_compiling():  # loops that the compiler joins with others
            return torch.stack([g.square().sum() for g in grads]).sum().sqrt()
        return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))

    def apply(self, grads: Grads, norm: Tensor) -> None:
        """Clip by `norm`, then each gradient by its own, and move the weights."""
        # where reading the norm is free, gradients that are short enough are left alone
        if self.config.clip > 0 and (_unread(norm) or norm > self.config.clip):
            scale = computed_once((self.config.clip / (norm + 1e-6)).clamp_(max=1.0))
            torch._foreach_mul_([g for g in grads if g is not None], scale)
        if self.config.agc > 0:
            grads = clip_each(grads, self.params, self.config.agc)
        self.inner.step(grads)
        self._average()
        self.pending = 0

    @torch.no_grad()
    def restart(self) -> None:
        """Forget the steps taken, where weights continue to learn something else; they stay."""
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
        """Put the averages, if there are any, in the place of the weights inside the block."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def adopt_average(self) -> None:
        """Continue with the averages, if there are any, as weights."""
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
        """Return everything the next step depends on, gradients half accumulated included."""
        grads = [None if p.grad is None else p.grad.clone() for p in self.params]
        state = {
            "inner": self.inner.state_dict(),
            "pending": self.pending,
            "grads": grads if self.pending else [],
        }
        return {**state, "average": self.average} if self.config.ema else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
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
    """Return the gradients of numbers at tensors, by the name of their place; nothing moves.

    Other outputs than numbers are pulled at; one that is not, or that has no past, is left out.
    """
    pairs: Any = zip(outputs, pulls or [None] * len(outputs), strict=True)
    if pulls:
        pairs = [(x, g) for x, g in pairs if g is not None and x.requires_grad]
    given, along = zip(*pairs, strict=True)
    sources = [x for group in places.values() for x in group]
    found = iter(torch.autograd.grad(given, sources, along, allow_unused=True))
    return {k: [next(found) for _ in group] for k, group in places.items()}


def add_grads(grads: Sequence[Grads]) -> list[Tensor | None]:
    """Return the sum of gradients, None where no loss passed."""
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
    """Return gradients no longer than a fraction of their parameters (Brock et al. 2021)."""
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
    """Return the parameters by what is said of them; the rest is the first group."""
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
    """Return a group, or say why it would have no effect."""
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
    """Return gradients in full precision and laid out as parameters, converted all at once."""
    pairs = zip(grads, params, strict=True)
    there = [(g, torch.empty_like(p)) for g, p in pairs if g is not None]
    wide = [w for _, w in there]
    torch._foreach_copy_(wide, [g for g, _ in there])
    found = iter(wide)
    return [None if g is None else next(found) for g in grads]


def _unread(x: Tensor) -> bool:
    """Return whether looking at a number would cost more than not knowing it."""
    return torch.compiler.is_compiling() or x.device.type != "cpu"


__all__ = [
    "OPTIMIZERS", "PARTS", "SGD", "Adam", "AdamConfig", "AdamW", "AdamWConfig", "Group",
    "GroupConfig", "LaProp", "LaPropConfig", "OptimConfig", "Optimizer", "RMSprop",
    "RMSpropConfig", "Rule", "SGDConfig", "add_grads", "clip_each", "gradients_at",
    "optimizer_field", "optimizer_part", "optional_optimizer", "without_groups",
]  # fmt: skip
