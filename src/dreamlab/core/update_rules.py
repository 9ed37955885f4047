"""Update rules of optimizers: one rule and one config for each kind.

A rule knows nothing of losses, clipping or averages, which are handled by `optim.Optimizer`. All of
its changing state is in tensors, so that a step can be compiled and captured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from dreamlab.core.config import Part, part
from dreamlab.core.limits import Decay, Natural, NonNegative
from dreamlab.core.schedules import Constant

Grads = Sequence[Tensor | None]


@dataclass(frozen=True)
class GroupConfig:
    """Overrides for a group of parameters; None keeps the common value."""

    lr_scale: NonNegative | None = None
    """Factor of the learning rate."""
    weight_decay: NonNegative | None = None
    eps: NonNegative | None = None


@dataclass(frozen=True)
class OptimConfig:
    """Options shared by all optimizers."""

    lr: NonNegative = 3e-4
    clip: NonNegative = 0.0
    """Maximum global gradient norm; 0 disables clipping."""
    agc: NonNegative = 0.0
    """Maximum norm of each gradient relative to its parameter's norm (AGC); 0 disables clipping."""
    warmup_steps: Natural = 0
    """Linear warmup of the learning rate, in optimizer steps."""
    schedule: Part = part("constant", "dreamlab.core.schedules", Constant)
    """Learning rate decay: `constant`, `linear` or `cosine`."""
    ema: Decay = 0.0
    """Decay of the exponential moving average of the weights; policies are evaluated with the
    average. 0 disables it."""
    ema_power: NonNegative = 0.0
    """Warmup of `ema`: the decay at step n is min(ema, 1 - n^-power). 0.75 is usual for diffusion;
    0 disables the warmup."""
    groups: dict[str, GroupConfig] = field(default_factory=dict)
    """Options of parameter groups, keyed by name prefix (`encoder`, `model.decoder`)."""

    def __post_init__(self) -> None:
        if self.ema_power and not self.ema:
            raise ValueError("ema_power has no effect without ema")


@dataclass(frozen=True)
class AdamConfig(OptimConfig):
    """Kingma & Ba 2015."""

    eps: NonNegative = 1e-8
    betas: tuple[Decay, Decay] = (0.9, 0.999)


@dataclass(frozen=True)
class AdamWConfig(AdamConfig):
    """Loshchilov & Hutter 2019: Adam with decoupled weight decay."""

    weight_decay: NonNegative = 0.01
    decay_follows_lr: bool = True
    """Multiply the decay by the learning rate, as torch does. If false, it is the fraction by which
    a weight shrinks per step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.decay_follows_lr and self.weight_decay > 1:
            raise ValueError(
                "weight_decay must be at most 1 with decay_follows_lr=false: it is a fraction"
            )


@dataclass(frozen=True)
class LaPropConfig(OptimConfig):
    """Ziyin et al. 2020, arXiv:2002.04839."""

    eps: NonNegative = 1e-15
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    weight_decay: NonNegative = 0.0
    """Weight decay, multiplied by the learning rate."""


@dataclass(frozen=True)
class SGDConfig(OptimConfig):
    """Stochastic gradient descent."""

    momentum: Decay = 0.0
    nesterov: bool = False
    """Nesterov momentum."""
    weight_decay: NonNegative = 0.0
    """L2 penalty: fraction of each weight added to its gradient."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs momentum")


@dataclass(frozen=True)
class RMSpropConfig(OptimConfig):
    """Tieleman & Hinton 2012, as torch writes it."""

    alpha: Decay = 0.99
    """Decay of the mean of squared gradients."""
    eps: NonNegative = 1e-8
    momentum: Decay = 0.0
    centered: bool = False
    """Divide by the standard deviation of the gradients instead of their RMS."""


@dataclass(frozen=True)
class Group:
    """Parameters, by index, that share options."""

    index: Sequence[int]
    options: Any
    """The kind's config with overrides."""
    scale: float = 1.0
    """Factor of the learning rate."""


class Rule:
    """Updates parameters from gradients."""

    Config: ClassVar[Any]
    dtype = torch.float32

    def __init__(
        self, config: Any, params: list[nn.Parameter], groups: Sequence[Group] = ()
    ) -> None:
        self.config, self.params, self.lr = config, params, config.lr
        self.groups = list(groups) or [Group(range(len(params)), config)]
        self.schedule = config.schedule.build()
        self.steps: Tensor | None = None
        """Step count [1]: compiled functions cannot update a 0-d tensor."""
        self.rate: Tensor | None = None
        self.names = self.moments()
        for name in self.names:
            setattr(self, name, [])

    def moments(self) -> tuple[str, ...]:
        """Return the names of the attributes with one tensor per parameter."""
        return ()

    @property
    def count(self) -> Tensor | None:
        """Return the number of steps taken, once allocated."""
        return None if self.steps is None else self.steps[0]

    def allocate(self) -> Tensor:
        """Allocate the moments, once the parameters are on their final device."""
        if self.steps is None:
            self.steps = torch.zeros(1, dtype=self.dtype, device=self.params[0].device)
            for name in self.names:
                setattr(self, name, [torch.zeros_like(p) for p in self.params])
        if self.rate is None:  # read by a compiled or captured step instead of `lr`
            self.rate = torch.full_like(self.steps[0], self.lr)
        return self.steps[0]

    def set_lr(self, lr: float) -> None:
        """Use this learning rate from the next step on."""
        self.lr = lr
        if self.rate is not None:
            self.rate.fill_(lr)

    def pace(self, count: Tensor) -> Tensor | float:
        """Return the learning rate factor after the steps taken so far."""
        c = self.config
        rise = (count / c.warmup_steps).clamp(max=1.0) if c.warmup_steps else 1.0
        return rise * self.schedule.after(count)

    @torch.no_grad()
    def step(self, grads: Grads) -> None:
        """Update the parameters."""
        pace = self.pace(self.allocate())
        assert self.steps is not None
        self.steps += 1
        for group in self.groups:
            self.move(group, grads, pace)

    def move(self, group: Group, grads: Grads, pace: Tensor | float) -> None:
        """Update the parameters of a group."""
        raise NotImplementedError

    def rate_of(self, group: Group, pace: Tensor | float) -> Tensor:
        """Return a group's learning rate on the device."""
        assert self.rate is not None
        factor = pace if group.scale == 1.0 else pace * group.scale
        return self.rate * factor if isinstance(factor, Tensor) or factor != 1.0 else self.rate

    def used(self, group: Group, grads: Grads) -> list[int]:
        """Return the indices of the parameters that have a gradient."""
        return [i for i in group.index if grads[i] is not None]

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, **{k: getattr(self, k) for k in self.names}, "lr": self.lr}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.set_lr(state["lr"])
        device = self.params[0].device
        count = state["count"]
        self.steps = None if count is None else count.to(device).reshape(1).clone()
        for name in self.names:
            pairs = zip(self.params, state[name], strict=False)
            setattr(self, name, [x.to(p.device).clone() for p, x in pairs])


class Adam(Rule):
    """One fused kernel over all parameters; those without a gradient are unchanged.

    `torch.optim` calls the same kernel with 130 us of Python overhead, three times the kernel's
    time on a small network.
    """

    Config = AdamConfig
    single_ops = False
    """Disable the fused step of every Adam of this process."""
    mean: list[Tensor]
    square: list[Tensor]

    def moments(self) -> tuple[str, ...]:
        return ("mean", "square")

    def move(self, group: Group, grads: Grads, pace: Tensor | float) -> None:
        used = self.used(group, grads)
        whole = len(used) == len(self.params)
        every = (self.params, grads, self.mean, self.square)
        rows: list[Any] = list(every) if whole else [[x[i] for i in used] for x in every]
        if self.single_ops or torch.compiler.is_compiling():
            self._plain(group, rows, self.rate_of(group, pace))
            return
        count = self.count
        assert count is not None
        on_device = count.is_cuda
        lr: Any = self.rate_of(group, pace) if on_device else self.lr * float(pace) * group.scale
        beta1, beta2 = group.options.betas
        params, given, mean, square = rows
        if on_device:  # a convolution's gradient may have another memory layout than its weight
            given = [_laid_out_as(g, p) for g, p in zip(given, params, strict=True)]
        torch._fused_adamw_(
            params, given, mean, square, [], [count] * len(used), lr=lr, beta1=beta1,
            beta2=beta2, eps=group.options.eps, weight_decay=self.decay(group), amsgrad=False,
            maximize=False,
        )  # fmt: skip

    def decay(self, group: Group) -> float:
        """Return the weight decay, as a factor of the learning rate."""
        return 0.0

    def _plain(self, group: Group, rows: Sequence[Sequence[Any]], rate: Tensor) -> None:
        """Take the same step in elementary operations, which a compiler fuses."""
        count = self.count
        assert count is not None
        beta1, beta2 = group.options.betas
        pace = computed_once(rate / (1 - beta1**count))
        scale = computed_once((1 - beta2**count).rsqrt())  # a division per weight less
        for p, g, mean, square in zip(*rows, strict=True):
            if self.decay(group):
                p.mul_(1 - rate * self.decay(group))
            mean.lerp_(g, 1 - beta1)
            square.mul_(beta2).addcmul_(g, g, value=1 - beta2)
            p.sub_(pace * mean / (square.sqrt() * scale + group.options.eps))


class AdamW(Adam):
    """Adam with decoupled weight decay."""

    Config = AdamWConfig

    def move(self, group: Group, grads: Grads, pace: Tensor | float) -> None:
        if not group.options.decay_follows_lr:
            used = tuple(self.params[i] for i in self.used(group, grads))
            torch._foreach_mul_(used, 1 - group.options.weight_decay)
        super().move(group, grads, pace)

    def decay(self, group: Group) -> float:
        return group.options.weight_decay if group.options.decay_follows_lr else 0.0


class LaProp(Rule):
    """Normalizes gradients, then averages them; without a gradient, momentum continues.

    `flush` treats squares below the smallest normal float as 0, as XLA does on a CPU: gradients of
    1e-18 then move their weights by hundreds of learning rates. Only used for comparisons.
    """

    Config = LaPropConfig
    flush = False
    dtype = torch.float64
    mean: list[Tensor]
    square: list[Tensor]

    def moments(self) -> tuple[str, ...]:
        return ("mean", "square")

    def move(self, group: Group, grads: Grads, pace: Tensor | float) -> None:
        c, count = group.options, self.count
        assert count is not None
        params, mean, square = (
            [x[i] for i in group.index] for x in (self.params, self.mean, self.square)
        )
        full = [_given(grads[i], self.params[i]) for i in group.index]
        beta1, beta2 = c.betas
        rate = self.rate_of(group, pace)
        torch._foreach_mul_(square, beta2)
        new = torch._foreach_mul(torch._foreach_mul(full, full), 1 - beta2)
        torch._foreach_add_(square, [_flushed(x) for x in new] if self.flush else new)
        scale = torch._foreach_div(square, (1 - beta2**count).float())
        torch._foreach_sqrt_(scale)
        torch._foreach_add_(scale, c.eps)
        torch._foreach_lerp_(mean, torch._foreach_div(full, scale), 1 - beta1)
        move = torch._foreach_mul(mean, (-rate / (1 - beta1**count)).float())
        if c.weight_decay:
            torch._foreach_mul_(params, (1 - rate * c.weight_decay).float())
        torch._foreach_add_(params, move)


class SGD(Rule):
    """Gradient descent; parameters without a gradient are unchanged."""

    Config = SGDConfig
    momentum: list[Tensor]

    def moments(self) -> tuple[str, ...]:
        return ("momentum",) if self.config.momentum else ()

    def move(self, group: Group, grads: Grads, pace: Tensor | float) -> None:
        c, used = group.options, self.used(group, grads)
        params: list[Any] = [self.params[i] for i in used]
        move: Any = [grads[i] for i in used]
        if c.weight_decay:
            move = torch._foreach_add(move, torch._foreach_mul(params, c.weight_decay))
        if c.momentum:
            kept = [self.momentum[i] for i in used]
            torch._foreach_mul_(kept, c.momentum)
            torch._foreach_add_(kept, move)
            ahead = torch._foreach_add(move, torch._foreach_mul(kept, c.momentum))
            move = ahead if c.nesterov else kept
        rate = self.rate_of(group, pace).float()
        torch._foreach_sub_(params, torch._foreach_mul(move, rate))


class RMSprop(Rule):
    """Gradients divided by their running RMS; parameters without one are unchanged."""

    Config = RMSpropConfig
    square: list[Tensor]
    mean: list[Tensor]
    momentum: list[Tensor]

    def moments(self) -> tuple[str, ...]:
        wanted = {"square": True, "mean": self.config.centered, "momentum": self.config.momentum}
        return tuple(k for k, v in wanted.items() if v)

    def move(self, group: Group, grads: Grads, pace: Tensor | float) -> None:
        c, used = group.options, self.used(group, grads)
        given: Any = [grads[i] for i in used]
        params: list[Any] = [self.params[i] for i in used]
        square = [self.square[i] for i in used]
        torch._foreach_lerp_(square, torch._foreach_mul(given, given), 1 - c.alpha)
        scale = square
        if c.centered:
            mean = [self.mean[i] for i in used]
            torch._foreach_lerp_(mean, given, 1 - c.alpha)
            scale = torch._foreach_sub(square, torch._foreach_mul(mean, mean))
        move = torch._foreach_div(given, torch._foreach_add(torch._foreach_sqrt(scale), c.eps))
        if c.momentum:
            kept = [self.momentum[i] for i in used]
            torch._foreach_mul_(kept, c.momentum)
            torch._foreach_add_(kept, move)
            move = kept
        rate = self.rate_of(group, pace).float()
        torch._foreach_sub_(params, torch._foreach_mul(move, rate))


def computed_once(x: Tensor) -> Tensor:
    """Force a scalar into memory, so that the compiler does not recompute it in a loop.

    A power costs more than everything else an optimizer does with sixteen weights. Requesting
    strides makes the compiler store the value first.
    """
    return torch.as_strided(x, (), ()) if torch.compiler.is_compiling() else x


def _given(grad: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if grad is None else grad


def _flushed(x: Tensor) -> Tensor:
    return x.where(x.abs() >= torch.finfo(x.dtype).tiny, 0.0)


def _laid_out_as(x: Tensor, other: Tensor) -> Tensor:
    return x if x.stride() == other.stride() else torch.empty_like(other).copy_(x)
