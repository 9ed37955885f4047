"""An optimizer that clips, accumulates, steps and reports the gradient norm."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class OptimConfig:
    """Adam, as every paper uses it."""

    lr: float = 3e-4
    eps: float = 1e-8
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    clip: float = 0.0
    """Largest global gradient norm; 0 does not clip."""


class Optimizer:
    """One Adam over `params`. With `accumulate` = k, every k-th call of `step` moves the weights."""

    def __init__(self, config: OptimConfig, params: Iterable[nn.Parameter]) -> None:
        self.config = config
        self.params = list(params)
        self.accumulate = 1
        self.pending = 0
        self.inner = torch.optim.AdamW(
            self.params,
            lr=config.lr,
            eps=config.eps,
            betas=config.betas,
            weight_decay=config.weight_decay,
            fused=all(p.device.type in ("cpu", "cuda") for p in self.params),
        )

    @property
    def lr(self) -> float:
        return float(self.inner.param_groups[0]["lr"])

    def set_lr(self, lr: float) -> None:
        """Use this learning rate from the next step on."""
        for group in self.inner.param_groups:
            group["lr"] = lr

    def step(self, loss: Tensor) -> Tensor:
        """Follow the gradient of `loss` and return its norm before clipping."""
        if self.pending == 0:
            for p in self.params:
                p.grad = None
        inputs = self.params if loss.requires_grad else None
        (loss / self.accumulate if self.accumulate > 1 else loss).backward(inputs=inputs)
        self.pending += 1
        norm = self.grad_norm()
        if self.pending == self.accumulate:
            self.apply(norm)
        return norm

    def grad_norm(self) -> Tensor:
        """Return the global norm of the gradients as they are."""
        grads = [p.grad for p in self.params if p.grad is not None]
        norms = torch._foreach_norm(grads)  # pyright: ignore[reportPrivateUsage]
        return torch.linalg.vector_norm(torch.stack(norms))

    def apply(self, norm: Tensor) -> None:
        """Clip by `norm` and move the weights."""
        if self.config.clip > 0:
            scale = (self.config.clip / (norm + 1e-6)).clamp_(max=1.0)
            grads = [p.grad for p in self.params if p.grad is not None]
            torch._foreach_mul_(grads, scale)  # pyright: ignore[reportPrivateUsage]
        self.inner.step()
        self.pending = 0

    def state_dict(self) -> dict[str, object]:
        """Return everything the next step depends on, gradients half accumulated included."""
        grads = [None if p.grad is None else p.grad.clone() for p in self.params]
        return {
            "inner": self.inner.state_dict(),
            "pending": self.pending,
            "grads": grads if self.pending else [],
        }

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Continue from what `state_dict` returned."""
        self.inner.load_state_dict(state["inner"])  # type: ignore[arg-type]
        self.pending = state["pending"]  # type: ignore[assignment]
        for p, grad in zip(self.params, state["grads"], strict=False):  # type: ignore[arg-type]
            p.grad = None if grad is None else grad.to(p.device)
