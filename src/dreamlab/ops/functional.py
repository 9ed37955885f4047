"""Small tensor functions, each in the fastest form for its device."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from dreamlab.accel import cpu_fast
from dreamlab.accel.dispatch import use_cpu_kernels


def softmax(x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
    """Compute the softmax over a short last axis."""
    return cpu_fast.small_softmax(x) if use_cpu_kernels(x) else torch.softmax(x, -1)


def log_softmax(x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
    """Compute the logarithm of `softmax`."""
    return cpu_fast.small_log_softmax(x) if use_cpu_kernels(x) else torch.log_softmax(x, -1)


def tanh(x: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """Compute the hyperbolic tangent."""
    return cpu_fast.tanh(x) if use_cpu_kernels(x) else torch.tanh(x)


def gumbel(*shape: int, device: torch.device | str | None = None) -> Float[Tensor, " ..."]:
    """Sample Gumbel noise: the argmax of logits plus noise is a sample from their softmax."""
    return torch.rand(*shape, device=device).log_().neg_().log_().neg_()


def one_hot_max(x: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
    """Return 1 at the largest entry of the last axis and 0 elsewhere."""
    return torch.zeros_like(x).scatter_(-1, x.argmax(-1, keepdim=True), 1.0)
