"""A whole MLP as one autograd node, for networks so small that overhead dominates.

On the CPU an update of a 64 x 64 network spends most of its time between the products: in autograd
nodes, in torch's tanh (ten times slower than numpy's) and in products with a narrow result, which
torch's BLAS computes up to ten times slower than numpy's. The results are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from dreamlab.accel import cpu_fast
from dreamlab.accel.dispatch import use_cpu_kernels

NARROW = 32
BLOCK_ROWS = 512
"""Rows per block without gradients, so that activations stay in the cache."""


def usable(x: Tensor) -> bool:
    """Return whether an input can use the fused form."""
    return _plain_cpu(x) and not torch.compiler.is_compiling()


def compiled(x: Tensor) -> bool:
    """Return whether to compile `compiled_mlp`: not when a policy is exported."""
    return torch.compiler.is_compiling() and not torch.compiler.is_exporting() and _plain_cpu(x)


def _plain_cpu(x: Tensor) -> bool:
    cpu = use_cpu_kernels(x) and x.dtype == torch.float32
    return cpu and not torch.is_autocast_enabled("cpu")


def product(a: Tensor, b: Tensor) -> Tensor:
    """Compute a @ b, by numpy if the result has few columns."""
    if a.shape[-1] == 1 and a.ndim > 2:  # an outer product; a batched one is 8 times slower
        return a * b
    if b.shape[-1] <= NARROW < a.shape[-2] and a.shape[-1] > 1:
        return torch.from_numpy(np.matmul(a.detach().numpy(), b.detach().numpy()))
    return torch.matmul(a, b)


def layers(x: Tensor, act: str, head: bool, params: Sequence[Tensor]) -> list[Tensor]:
    """Return the input and the output of every layer; a head has no activation.

    `params` alternates weights and biases: [out, in] and [out], or [n, in, out] and [n, 1, out] for
    n networks at once.
    """
    outputs = [x]
    last = len(params) - 2
    for i in range(0, len(params), 2):
        weight, bias = params[i], params[i + 1]
        if len(x) == 1 and weight.ndim == 2:  # a decision: a product with a vector
            y = linear(outputs[-1], weight, bias)
        elif (weight := weight if weight.ndim == 3 else weight.t()).shape[-1] <= NARROW:
            y = product(outputs[-1], weight).add_(bias)
        elif weight.ndim == 3:
            y = torch.baddbmm(bias, outputs[-1], weight)
        else:
            y = torch.addmm(bias, outputs[-1], weight)
        if head and i == last:
            pass
        elif act == "tanh":
            np.tanh(array := y.numpy(), out=array)
        else:
            y.relu_()
        outputs.append(y)
    return outputs


class _FusedMLP(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, act: str, head: bool, *params: Tensor) -> Tensor:
        outputs = layers(x, act, head, params)
        ctx.act, ctx.head = act, head
        ctx.save_for_backward(*outputs[:-1], *params[::2], *([] if head else outputs[-1:]))
        return outputs[-1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        saved = ctx.saved_tensors
        num = len(saved) // 2
        outputs, weights = [*saved[:num], *saved[2 * num :]], saved[num : 2 * num]
        learn, pass_on = ctx.needs_input_grad[3], ctx.needs_input_grad[0]
        ours = False  # the incoming gradient is not ours and must not be modified
        grads: list[Tensor | None] = []
        for i in reversed(range(num)):
            if not (ctx.head and i == num - 1):
                grad = _through(ctx.act, grad, outputs[i + 1], ours)
                ours = True
            if learn:
                grads += _of_layer(grad, outputs[i], weights[i])
            else:
                grads += [None, None]
            if i > 0 or pass_on:
                weight = weights[i]
                grad = product(grad, weight.mT if weight.ndim == 3 else weight)
                ours = True
        return grad if pass_on else None, None, None, *reversed(grads)


def _through(act: str, grad: Tensor, output: Tensor, in_place: bool) -> Tensor:
    """Compute the gradient before an activation with this output."""
    out = grad if in_place else torch.empty_like(output)
    if act == "tanh":
        return torch.ops.aten.tanh_backward.grad_input(grad, output, grad_input=out)
    return torch.ops.aten.threshold_backward.grad_input(grad, output, 0, grad_input=out)


def _of_layer(grad: Tensor, x: Tensor, weight: Tensor) -> list[Tensor]:
    """Compute the gradients of a layer's bias and weight."""
    if weight.ndim == 3:
        return [grad.sum(1, keepdim=True), product(x.mT, grad)]
    return [grad.sum(0), product(grad.t(), x)]


def fused_mlp(x: Tensor, act: str, head: bool, params: Sequence[Tensor]) -> Tensor:
    """Apply an MLP to rows [b, in] (or n networks to [n, b, in])."""
    if torch.is_grad_enabled():
        out: Any = _FusedMLP.apply(x, act, head, *params)
        return out
    if x.ndim > 2 or len(x) <= BLOCK_ROWS:
        return layers(x, act, head, params)[-1]
    return torch.cat([layers(rows, act, head, params)[-1] for rows in x.split(BLOCK_ROWS)])


def compiled_mlp(x: Tensor, act: str, head: bool, params: Sequence[Tensor]) -> Tensor:
    """Compute `fused_mlp` in a form that compiles to fast code, including its gradient."""
    last = len(params) - 2
    for i in range(0, len(params), 2):
        x = _compiled_layer(x, params[i], params[i + 1])
        if not (head and i == last):
            x = cpu_fast.tanh(x) if act == "tanh" else x.relu()
    return x


def _compiled_layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Apply a linear layer; products with a narrow side are slow in torch's BLAS."""
    if weight.ndim == 3 and weight.shape[-1] == 1:  # loops, fused with their surroundings
        return (x * weight.mT).sum(-1, keepdim=True) + bias
    if weight.ndim == 3:  # the sum is computed with the activation; baddbmm copies the bias first
        return torch.bmm(x, weight) + bias
    if weight.shape[1] <= NARROW:
        # a copy: the weight's gradient is then x.T @ grad, four times faster than grad.T @ x
        weight = weight.t().contiguous().t()
    # x + y, as the compiler would turn a sum into addmm, which copies the bias first
    return torch.mm(x, weight.t()) - (-bias)
