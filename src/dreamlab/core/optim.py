"""An optimizer that clips, accumulates, steps and reports the gradient norm."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dreamlab.core.limits import Decay, Natural, NonNegative


@dataclass(frozen=True)
class OptimConfig:
    """Adam as every paper uses it, or LaProp as DreamerV3 does."""

    kind: Literal["adam", "laprop"] = "adam"
    lr: NonNegative = 3e-4
    eps: NonNegative = 1e-8
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    weight_decay: NonNegative = 0.0
    clip: NonNegative = 0.0
    """Largest global gradient norm; 0 does not clip."""
    agc: NonNegative = 0.0
    """Largest norm of each gradient as a share of its parameter's; 0 does not clip."""
    warmup: Natural = 0
    """Steps over which the learning rate rises from 0."""


class Adam:
    """Adam (Kingma & Ba 2015; AdamW's decay) as one fused kernel over all parameters.

    `torch.optim` calls the same kernel but spends 130 us of Python around it, three times what the
    kernel takes on a small network.
    """

    dtype = torch.float32
    single_ops = False
    """Step in single operations instead: of every Adam of this process."""

    def __init__(self, config: OptimConfig, params: list[nn.Parameter]) -> None:
        self.config, self.params, self.lr = config, params, config.lr
        self.count: Tensor | None = None
        self.rate: Tensor | None = None
        self.mean: list[Tensor] = []
        self.square: list[Tensor] = []

    def allocate(self) -> Tensor:
        """Make room for the moments, once the parameters are where they will stay."""
        if self.count is None:
            device = self.params[0].device
            self.count = torch.zeros((), dtype=self.dtype, device=device)
            self.mean = [torch.zeros_like(p) for p in self.params]
            self.square = [torch.zeros_like(p) for p in self.params]
        if self.rate is None:  # what a compiled or captured step reads in place of `lr`
            self.rate = torch.full_like(self.count, self.lr)
        return self.count

    def set_lr(self, lr: float) -> None:
        """Use this learning rate from the next step on."""
        self.lr = lr
        if self.rate is not None:
            self.rate.fill_(lr)

    def step(self, grads: Sequence[Tensor | None]) -> None:
        """Move the parameters; one without a gradient stays where it is."""
        self.allocate()
        assert self.count is not None
        self.count += 1
        used = [i for i, g in enumerate(grads) if g is not None]
        pick = (lambda x: x) if len(used) == len(grads) else (lambda x: [x[i] for i in used])
        beta1, beta2 = self.config.betas
        lr: Any = self.rate if self.count.is_cuda else self.lr
        if self.single_ops or torch.compiler.is_compiling():
            groups = (pick(x) for x in (self.params, grads, self.mean, self.square))
            self._plain(zip(*groups, strict=True))
            return
        with torch.no_grad():
            torch._fused_adamw_(
                pick(self.params), pick(grads), pick(self.mean), pick(self.square), [],
                [self.count] * len(used), lr=lr,
                beta1=beta1, beta2=beta2, eps=self.config.eps,
                weight_decay=self.config.weight_decay, amsgrad=False, maximize=False,
            )  # fmt: skip

    @torch.no_grad()
    def _plain(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Take the same step in single operations: a compiler fuses them."""
        assert self.count is not None
        assert self.rate is not None
        beta1, beta2 = self.config.betas
        first, second = 1 - beta1**self.count, 1 - beta2**self.count
        for p, g, mean, square in rows:
            if self.config.weight_decay:
                p.mul_(1 - self.rate * self.config.weight_decay)
            mean.lerp_(g, 1 - beta1)
            square.mul_(beta2).addcmul_(g, g, value=1 - beta2)
            p.sub_(self.rate / first * mean / ((square / second).sqrt() + self.config.eps))

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "mean": self.mean, "square": self.square, "lr": self.lr}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        device = self.params[0].device
        self.set_lr(state["lr"])
        self.count = None if state["count"] is None else state["count"].to(device).clone()
        pairs = [
            (p.device, m, v)
            for p, m, v in zip(self.params, state["mean"], state["square"], strict=False)
        ]
        self.mean = [m.to(d).clone() for d, m, _ in pairs]
        self.square = [v.to(d).clone() for d, _, v in pairs]


class LaProp(Adam):
    """LaProp (Ziyin et al. 2020, arXiv:2002.04839): gradients are normalised, then averaged.

    Every number that changes is a tensor on the parameters' device, so that a step can be captured.
    `flush` treats squares below the smallest normal float as 0, as XLA does on a CPU: gradients of
    1e-18 then move their weights by hundreds of learning rates. Only a comparison wants that.
    """

    flush = False
    dtype = torch.float64

    @torch.no_grad()
    def step(self, grads: Sequence[Tensor | None]) -> None:
        """Move the parameters; one without a gradient moves on by its momentum."""
        c, params = self.config, self.params
        count = self.allocate()
        assert self.rate is not None
        full = [torch.zeros_like(p) if g is None else g for p, g in zip(params, grads, strict=True)]
        full = self._clipped(full)
        beta1, beta2 = c.betas
        rise = (count / c.warmup).clamp(max=1.0) if c.warmup else 1.0
        count += 1
        torch._foreach_mul_(self.square, beta2)
        new = torch._foreach_mul(torch._foreach_mul(full, full), 1 - beta2)
        torch._foreach_add_(self.square, [_flushed(x) for x in new] if self.flush else new)
        scale = torch._foreach_div(self.square, (1 - beta2**count).float())
        torch._foreach_sqrt_(scale)
        torch._foreach_add_(scale, c.eps)
        torch._foreach_div_(full, scale)
        torch._foreach_lerp_(self.mean, full, 1 - beta1)
        move = torch._foreach_mul(self.mean, (-self.rate * rise / (1 - beta1**count)).float())
        torch._foreach_add_(tuple(params), move)

    def _clipped(self, grads: list[Tensor]) -> list[Tensor]:
        """Return gradients no longer than a share of their parameters."""
        if self.config.agc <= 0:
            return [g.clone() for g in grads]
        lengths = torch.stack(torch._foreach_norm(grads))
        limits = (
            torch.stack(torch._foreach_norm(tuple(self.params))).clamp(min=1e-3) * self.config.agc
        )
        return list(torch._foreach_div(grads, list((lengths / limits).clamp(min=1.0).unbind())))


class Optimizer:
    """Moves `params` along gradients. With `accumulate` = k, only every k-th `step` does."""

    def __init__(self, config: OptimConfig, params: Iterable[nn.Parameter]) -> None:
        self.config = config
        self.params = list(params)
        self.accumulate = 1
        self.pending = 0
        self.sources: list[nn.Parameter] = self.params
        """What losses are computed from: the parameters, or copies of lower precision."""
        self.fused: Callable[[Sequence[Tensor | None]], Tensor] | None = None
        """Takes the whole step and returns the norm, where a GPU has a faster way."""
        self.grad_norms: Tensor | None = None
        """The norm of each parameter's last gradient before clipping, if somebody wants it."""
        self.inner = (Adam if config.kind == "adam" else LaProp)(config, self.params)

    @property
    def lr(self) -> float:
        return self.inner.lr

    def set_lr(self, lr: float) -> None:
        """Use this learning rate from the next step on."""
        self.inner.set_lr(lr)

    def step(self, loss: Tensor, keep_graph: bool = False) -> Tensor:
        """Follow the gradient of `loss` and return its norm before clipping.

        Only this optimizer's parameters receive a gradient, whatever else the loss went through;
        `keep_graph` lets another optimizer follow a loss of the same graph afterwards.
        """
        scaled = loss / self.accumulate if self.accumulate > 1 else loss
        new = torch.autograd.grad(
            scaled, self.sources, allow_unused=True, retain_graph=keep_graph or None
        )
        if self.grad_norms is not None:
            self._note(new, self.grad_norms)
        if self.fused is not None:
            return self.fused(new)
        if self.sources is not self.params:
            new = _widened(new)
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
        norm = self.grad_norm([g for g in grads if g is not None])
        if self.pending == self.accumulate:
            self.apply(grads, norm)
        return norm

    def watch_grads(self) -> None:
        """Keep `grad_norms` from now on, in one place that recorded steps may write to."""
        self.grad_norms = torch.zeros(len(self.params), device=self.params[0].device)

    @torch.no_grad()
    def _note(self, grads: Sequence[Tensor | None], norms: Tensor) -> None:
        there = [g.float() for g in grads if g is not None]
        found = iter(torch._foreach_norm(there))
        norms.copy_(torch.stack([norms.new_zeros(()) if g is None else next(found) for g in grads]))

    @staticmethod
    def grad_norm(grads: list[Tensor]) -> Tensor:
        """Return the global norm of these gradients."""
        return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))

    def apply(self, grads: Sequence[Tensor | None], norm: Tensor) -> None:
        """Clip by `norm` and move the weights."""
        # where reading the norm is free, gradients that are short enough are left alone
        if self.config.clip > 0 and (_unread(norm) or norm > self.config.clip):
            scale = (self.config.clip / (norm + 1e-6)).clamp_(max=1.0)
            torch._foreach_mul_([g for g in grads if g is not None], scale)
        self.inner.step(grads)
        self.pending = 0

    def state_dict(self) -> dict[str, Any]:
        """Return everything the next step depends on, gradients half accumulated included."""
        grads = [None if p.grad is None else p.grad.clone() for p in self.params]
        return {
            "inner": self.inner.state_dict(),
            "pending": self.pending,
            "grads": grads if self.pending else [],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        self.inner.load_state_dict(state["inner"])
        self.pending = int(state["pending"])
        for p, grad in zip(self.params, state["grads"], strict=False):
            p.grad = None if grad is None else grad.to(p.device)


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


def _widened(grads: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return gradients in full precision, converted all at once."""
    there = [g for g in grads if g is not None]
    wide = [torch.empty_like(g, dtype=torch.float32) for g in there]
    torch._foreach_copy_(wide, there)
    found = iter(wide)
    return [None if g is None else next(found) for g in grads]


def _flushed(x: Tensor) -> Tensor:
    return x.where(x.abs() >= torch.finfo(x.dtype).tiny, 0.0)


def _unread(x: Tensor) -> bool:
    """Tell whether looking at a number would cost more than not knowing it."""
    return torch.compiler.is_compiling() or x.device.type != "cpu"
