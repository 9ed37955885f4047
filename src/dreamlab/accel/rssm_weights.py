"""What the weights of a recurrence need besides its steps: other layouts, gradients."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dreamlab.accel import ahead
from dreamlab.accel.dispatch import kernels

if TYPE_CHECKING:
    from dreamlab.accel.rssm_scan import Saved, Sizes, Slopes, Weights

BLOCK = 64
"""Rows and columns that a tile of `turn_kernel` transposes."""
LAYER_ROWS, LAYER_COLS = 64, 16
"""Rows summed by one tile of `layer_kernel`, and its columns."""


def turned(weight: Tensor) -> Tensor:
    """Transpose the last two dimensions of a weight, contiguously."""
    assert weight.stride(-1) == 1, weight.stride()
    *lead, rows, cols = weight.shape
    out = weight.new_empty(*lead, cols, rows)

    def launch(k: Any) -> None:
        k.turn_kernel[(-(-rows // BLOCK), -(-cols // BLOCK), math.prod(lead))](
            weight, out, rows, cols, weight.stride(-2), weight.stride(0) if lead else 0,
            BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip

    k = kernels("rssm_scan")
    if ahead.build(k, launch):
        launch(k)
    return out


def layer_grads(
    p: Tensor, inv: Tensor, scale: Tensor, back: Tensor, dp: Tensor, act: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Return a layer's output in all steps, and the gradients of its scale and bias.

    `back` [rows, n] or [shares, rows, n] is the gradient of its output, `dp` that before the norm.
    """
    num, n = p.numel() // p.shape[-1], p.shape[-1]
    x, blocks = torch.empty_like(p), -(-num // LAYER_ROWS)
    part = torch.empty(blocks, 2, n, device=p.device)
    shares = back.shape[0] if back.ndim == 3 else 1

    def launch(k: Any) -> None:
        k.layer_kernel[(n // LAYER_COLS, blocks)](
            p, inv, scale, back, dp, x, part, num, n, back.stride(-2), back.stride(0),
            SHARES=shares, ACT=act, BM=LAYER_ROWS, BN=LAYER_COLS, num_warps=4,
        )  # fmt: skip

    k = kernels("rssm_scan_back")
    if ahead.build(k, launch):
        launch(k)
    of_scale, of_bias = part.sum(0).unbind()
    return x.view(num, n), of_scale, of_bias


def weight_grads(
    w: Weights, n: Sizes, v: Saved, x2: Tensor, keep: Tensor, d: Slopes
) -> list[Tensor]:
    """Compute the gradient of every weight, from all steps at once."""
    num, dtype = n.steps * n.rows, v.q.dtype
    flat = lambda x: x.reshape(num, -1)  # noqa: E731
    kept = keep.reshape(num, 1).to(dtype)
    memory, stoch = flat(v.h[:-1]) * kept, flat(v.z[:-1]) * kept
    dx = d.x.transpose(0, 1).reshape(d.x.shape[1], num, -1)
    x0, memory_scale, memory_bias = layer_grads(
        v.p0, v.inv[0], w.memory_scale, dx[..., : n.u], d.p0
    )
    x1, stoch_scale, stoch_bias = layer_grads(v.p1, v.inv[1], w.stoch_scale, dx[..., n.u :], d.p1)
    y, hidden_scale, hidden_bias = layer_grads(
        v.q, v.inv[2], w.hidden_scale, flat(d.y), d.q, act=False
    )
    o, look_scale, look_bias = layer_grads(v.o, v.inv[3], w.look_scale, flat(d.o_out), d.o)
    dq = flat(d.q)
    by_block = lambda x: x.reshape(num, n.g, -1).transpose(0, 1)  # noqa: E731
    memories, dqs = by_block(memory), by_block(dq)
    return [
        flat(d.p0).t() @ memory, memory_bias, memory_scale,
        flat(d.p1).t() @ stoch, stoch_bias, stoch_scale,
        _hidden_grad(memories, torch.cat([x0, x1, flat(x2)], -1), dqs),
        hidden_bias.view(n.g, -1), hidden_scale,
        by_block(y).transpose(1, 2) @ by_block(flat(d.gate)),
        flat(d.gate).sum(0).view(n.g, -1),
        flat(d.o).t() @ flat(v.h[1:]), look_bias, look_scale,
        flat(d.logit).t() @ o, flat(d.logit).sum(0),
    ]  # fmt: skip


def _hidden_grad(memories: Tensor, shared: Tensor, dq: Tensor) -> Tensor:
    """Return the hidden layer's gradient: each block reads its own state and the shared inputs."""
    own = memories.transpose(1, 2) @ dq
    g, num, w = dq.shape
    common = (shared.t() @ dq.transpose(0, 1).reshape(num, g * w)).view(-1, g, w)
    return torch.cat([own, common.transpose(0, 1)], 1)
