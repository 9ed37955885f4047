"""DreamerV3's recurrence over a whole sequence as one autograd node, for GPUs.

Step by step, a sequence costs a hundred small kernels per step, and autograd accumulates the weight
gradient at each step. Here a step is five kernels in each direction, and the weight gradients are
computed once, from all steps together: the same result with less rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from dreamlab.accel import ahead
from dreamlab.accel.dispatch import kernels
from dreamlab.accel.rssm_weights import turned, weight_grads

TILE = 16


class Tuning(NamedTuple):
    """Launch options of a kernel: columns read at once, warps, pipeline stages."""

    chunk: int
    warps: int
    stages: int


TUNING = {
    "stoch": Tuning(256, 2, 3),
    "hidden": Tuning(128, 4, 3),
    "gates": Tuning(128, 2, 3),
    "look": Tuning(512, 2, 3),
    "sample": Tuning(64, 8, 3),
    "sample_back": Tuning(128, 4, 3),
    "memory_back": Tuning(64, 4, 3),
    "gates_back": Tuning(256, 2, 3),
    "hidden_back": Tuning(256, 4, 1),
    "inputs_back": Tuning(256, 8, 3),
}
"""Chosen on an H200 by benchmarks/scan_kernels.py."""
SPLIT = 4
"""Splits of a sum over all blocks, so that no tile has to read them all."""


class Weights(NamedTuple):
    """The layers of a step: weight, bias, and the scale of the norm after it."""

    memory: Tensor
    memory_bias: Tensor
    memory_scale: Tensor
    stoch: Tensor
    stoch_bias: Tensor
    stoch_scale: Tensor
    hidden: Tensor
    hidden_bias: Tensor
    hidden_scale: Tensor
    gates: Tensor
    gates_bias: Tensor
    look: Tensor
    look_bias: Tensor
    look_scale: Tensor
    logits: Tensor
    logits_bias: Tensor


@dataclass(frozen=True)
class Sizes:
    """Letters as in `kernels/rssm_scan.py`."""

    steps: int
    rows: int
    d: int
    g: int
    u: int
    s: int
    c: int
    unimix: float

    @property
    def w(self) -> int:
        return self.d // self.g

    @property
    def z(self) -> int:
        return self.s * self.c

    @property
    def parts(self) -> int:
        return self.d // TILE

    @property
    def row_tiles(self) -> int:
        return -(-self.rows // TILE)


def dtype_of(x: Tensor) -> torch.dtype:
    """Return the current precision of matrix products with `x`."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def fits(d: int, g: int, u: int, z: int) -> bool:
    """Return whether layers of these widths divide into tiles."""
    return d % (g * TILE) == u % TILE == z % TILE == 0


def chunk(size: int, most: int = 128) -> int:
    """Return the largest power of two that divides `size`, up to `most`."""
    return min(size & -size, most)


def launch(kernel: str, **sizes: int) -> dict[str, int]:
    """Return the launch options of a kernel; `sizes` are the widths it reads in chunks."""
    tuned = TUNING[kernel]
    chunks = {k: chunk(s, tuned.chunk) for k, s in sizes.items()}
    return {**chunks, "num_warps": tuned.warps, "num_stages": tuned.stages}


def power(size: int) -> int:
    """Return the smallest power of two of at least `size`."""
    return 1 << (size - 1).bit_length()


@dataclass
class Saved:
    """Tensors saved for the backward pass: [steps, rows, ...] unless noted."""

    h: Tensor
    """Deterministic states, including the initial one: [steps + 1, rows, d]; `z` likewise."""
    z: Tensor
    p0: Tensor
    """Outputs of the input layers of deterministic and stochastic part, `q` of the hidden layer,
    `o` of the posterior: all before their norm. `inv` [4, steps, rows] are the norms' factors.
    """
    p1: Tensor
    q: Tensor
    o: Tensor
    inv: Tensor
    gate: Tensor
    logit: Tensor

    def all(self) -> tuple[Tensor, ...]:
        return tuple(getattr(self, f.name) for f in fields(self))


def forward(
    w: Weights, n: Sizes, inputs: tuple[Tensor, Tensor, Tensor, Tensor], h0: Tensor, z0: Tensor
) -> Saved:
    """Run every step; `inputs` are the action's layer, the tokens' part, keep flags and noise."""
    k = kernels("rssm_scan")
    x2, tokens, keep, noise = inputs
    t, b, device = n.steps, n.rows, x2.device
    make = lambda steps, size: torch.empty(steps, b, size, dtype=x2.dtype, device=device)  # noqa: E731
    wide, narrow = (make(t + 1, n.d), make(t + 1, n.z)), (make(t, n.u), make(t, n.u))
    inv = torch.empty(4, t, b, device=device)
    v = Saved(*wide, *narrow, make(t, n.d), make(t, n.u), inv, make(t, 3 * n.d), make(t, n.z))
    v.h[0], v.z[0] = h0, z0
    v.p0[0] = F.linear(v.h[0] * keep[0][:, None], w.memory, w.memory_bias)
    cols, part = n.u // TILE, torch.empty(b, n.parts, device=device)
    part0 = v.p0[0].float().square().view(b, cols, TILE).sum(-1)
    part1, part_o = torch.empty_like(part0), torch.empty_like(part0)
    pu = power(cols)
    hidden, gates = turned(w.hidden), turned(w.gates)

    def step(k: Any, i: int) -> None:
        last = i == t - 1
        j = i if last else i + 1
        k.stoch_kernel[(cols, n.row_tiles)](
            v.z[i], w.stoch, w.stoch_bias, keep[i], v.p1[i], part1, b, n.z, n.u,
            BN=TILE, **launch("stoch", BK=n.z),
        )  # fmt: skip
        k.hidden_kernel[(n.parts, n.row_tiles)](
            v.h[i], keep[i], v.p0[i], part0, inv[0, i], w.memory_scale, v.p1[i], part1, inv[1, i],
            w.stoch_scale, x2[i], hidden, w.hidden_bias, v.q[i], part, b, n.d, n.w, n.u, n.parts,
            PARTS=pu, BN=TILE, **launch("hidden", BW=n.w, BU=n.u),
        )  # fmt: skip
        k.gates_kernel[(n.parts, n.row_tiles)](
            v.h[i], keep[i], v.q[i], part, w.hidden_scale, gates, w.gates_bias, v.gate[i],
            inv[2, i], v.h[i + 1], b, n.d, n.w, n.parts, PARTS=power(n.parts), BN=TILE,
            **launch("gates", BW=n.w),
        )  # fmt: skip
        k.look_kernel[(cols if last else 2 * cols, n.row_tiles)](
            v.h[i + 1], w.look, w.look_bias, tokens[i], v.o[i], part_o, w.memory, w.memory_bias,
            keep[j], v.p0[j], part0, b, n.d, n.u, w.look.stride(0), BN=TILE,
            **launch("look", BK=n.d),
        )  # fmt: skip
        k.sample_kernel[(n.s, n.row_tiles)](
            v.o[i], part_o, inv[3, i], w.look_scale, w.logits, w.logits_bias, noise[i], v.logit[i],
            v.z[i + 1], n.unimix, b, n.u, cols, PARTS=pu, S=n.s, C=n.c, CP=max(TILE, power(n.c)),
            **launch("sample", BU=n.u),
        )  # fmt: skip

    if ahead.build(k, partial(step, i=0)):
        for i in range(t):
            step(k, i)
    return v


@dataclass
class Slopes:
    """Gradients [steps, rows, ...] of each layer's output, before its norm."""

    logit: Tensor
    o_out: Tensor
    """Gradient of the posterior's first layer after its activation."""
    o: Tensor
    gate: Tensor
    y: Tensor
    """Gradient of the hidden layer after its norm, before the activation."""
    q: Tensor
    p0: Tensor
    p1: Tensor
    x: Tensor
    """Gradient of the input layers of deterministic and stochastic part, after their activation, in
    splits: [steps, shares, rows, 2 u].
    """


def backward(
    w: Weights, n: Sizes, v: Saved, keep: Tensor, grads: tuple[Tensor, Tensor, Tensor]
) -> Slopes:
    """Backpropagate through every step, from gradients of states, samples and logits."""
    k = kernels("rssm_scan_back")
    gh, gz, gl = grads
    t, b, dtype, device = n.steps, n.rows, v.q.dtype, v.q.device
    make = lambda size: torch.empty(t, b, size, dtype=dtype, device=device)  # noqa: E731
    split = math.gcd(n.g, SPLIT)
    shares = torch.empty(t, split, b, 2 * n.u, device=device)
    sizes = (n.z, n.u, n.u, 3 * n.d, n.d, n.d, n.u, n.u)
    out = Slopes(*[*(make(s) for s in sizes), shares])
    zeros = lambda size: torch.zeros(b, size, device=device)  # noqa: E731
    dh, dz, direct, part = zeros(n.d), zeros(n.z), zeros(n.d), zeros(n.parts)
    none = torch.zeros(b, n.u, dtype=dtype, device=device)
    cols = n.u // TILE
    part_o, cp = zeros(cols), power(n.c)
    at_once = max(1, min(n.s, TUNING["sample_back"].chunk // cp))
    look, memory, stoch, logits = map(turned, (w.look, w.memory, w.stoch, w.logits))

    def step(k: Any, i: int) -> None:
        last = i == t - 1
        k.sample_back_kernel[(cols, n.row_tiles)](
            gz[i], dz, gl[i], v.logit[i], logits, v.o[i], v.inv[3, i], w.look_scale, out.logit[i],
            out.o_out[i], part_o, n.unimix, b, n.u, S=n.s, C=n.c, VARS=at_once, CP=cp, BN=TILE,
            **launch("sample_back"),
        )  # fmt: skip
        k.memory_back_kernel[(n.parts, n.row_tiles)](
            out.o_out[i], part_o, v.o[i], v.inv[3, i], w.look_scale, look, out.o[i],
            none if last else out.p0[i + 1], keep[i if last else i + 1], memory, gh[i], dh,
            v.gate[i], v.h[i], keep[i], out.gate[i], direct, b, n.d, n.w, n.u,
            PARTS=power(cols), BN=TILE, **launch("memory_back", BU=n.u),
        )  # fmt: skip
        k.gates_back_kernel[(n.parts, n.row_tiles)](
            out.gate[i], w.gates, v.q[i], v.inv[2, i], w.hidden_scale, out.y[i], part,
            b, n.d, n.w, n.parts, BN=TILE, **launch("gates_back", BW=n.w),
        )  # fmt: skip
        k.hidden_back_kernel[(n.parts + 2 * cols * split, n.row_tiles)](
            out.y[i], v.q[i], v.inv[2, i], w.hidden_scale, part, w.hidden, direct, keep[i],
            out.q[i], dh, shares[i], b, n.d, n.w, n.u, n.parts, PARTS=power(n.parts), BLOCKS=n.g,
            SPLIT=split, BN=TILE, **launch("hidden_back", BW=n.w),
        )  # fmt: skip
        k.inputs_back_kernel[(n.z // TILE + 1, n.row_tiles)](
            shares[i], v.p0[i], v.inv[0, i], w.memory_scale, v.p1[i], v.inv[1, i], w.stoch_scale,
            stoch, keep[i], out.p0[i], out.p1[i], dz, b, n.z, n.u, n.z // TILE, SPLIT=split,
            BN=TILE, **launch("inputs_back", BU=n.u),
        )  # fmt: skip

    if ahead.build(k, partial(step, i=t - 1)):
        for i in reversed(range(t)):
            step(k, i)
    return out


@dataclass
class Found:
    """What the gradients of weights are computed from, once a sequence was followed back."""

    saved: tuple[Any, ...] = ()


class _Weights(torch.autograd.Function):
    """A node of its own, so that these gradients need not be ready before those of the tokens.

    Autograd computes them on the stream on which this was called, after `_Scan`'s backward pass,
    whose tensors `found` keeps until the graph is dropped.
    """

    @staticmethod
    def forward(ctx: Any, found: Found, *weights: Tensor) -> Tensor:
        ctx.found = found
        return weights[0].new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None, *weight_grads(*ctx.found.saved)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, n: Sizes, found: Found, mark: Tensor, *tensors: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        x2, tokens, keep, noise, h0, z0, *weights = tensors
        w = Weights(*weights)
        v = forward(w, n, (x2, tokens, keep, noise), h0, z0)
        ctx.n, ctx.found = n, found
        ctx.save_for_backward(x2, keep, *weights, *v.all())
        return v.h[1:], v.z[1:], v.logit

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        n: Sizes = ctx.n
        x2, keep, *rest = ctx.saved_tensors
        size = len(Weights._fields)
        # detached: an output that `found` keeps would keep this node, and so `found` and itself
        w, v = Weights(*rest[:size]), Saved(*(x.detach() for x in rest[size:]))
        gh, gz, gl = (g.contiguous() for g in grads)
        d = backward(w, n, v, keep, (gh, gz, gl))
        ctx.found.saved = (w, n, v, x2.detach(), keep, d)
        action = w.hidden[:, n.w + 2 * n.u :].transpose(1, 2).reshape(n.d, n.u)
        dx2 = (d.q.view(-1, n.d) @ action).view_as(x2)
        return None, None, x2.new_zeros(()), dx2, d.o, *[None] * (4 + size)


class Layers(NamedTuple):
    """The weights, and what links them to the graph; see `_Weights`."""

    weights: Weights
    found: Found
    mark: Tensor


def linked(w: Weights) -> Layers:
    """Return weights whose gradients are computed on the current stream."""
    mark: Any = _Weights.apply(found := Found(), *w)
    return Layers(Weights(*(x.detach() for x in w)), found, mark)


def scan(
    layers: Layers, n: Sizes, x2: Tensor, tokens: Tensor, keep: Tensor, noise: Tensor,
    start: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Follow sequences; return memories, samples and logits, [steps, rows, ...] each.

    `x2` is the action's input layer, `tokens` the tokens' part of the posterior's first layer,
    both [steps, rows, u]; `keep` [steps, rows] is 0 where an episode starts; `noise` is Gumbel
    noise [steps, rows, s, c]. No gradient goes to the start.
    """
    inputs = (x2.contiguous(), tokens.contiguous(), keep.contiguous(), noise.contiguous())
    if torch.is_grad_enabled() or ahead.Rehearsal.on:
        rehearse(layers.weights, n, inputs, start)
    out: Any = _Scan.apply(n, layers.found, layers.mark, *inputs, *start, *layers.weights)
    return out


_rehearsed: set[Any] = set()


@torch.no_grad()
def rehearse(
    w: Weights, n: Sizes, inputs: tuple[Tensor, Tensor, Tensor, Tensor],
    start: tuple[Tensor, Tensor],
) -> None:  # fmt: skip
    """Begin to build the kernels of both directions, once for each size."""
    key = (n, inputs[0].dtype, inputs[0].device)
    if not ahead.BUILDS or key in _rehearsed:
        return
    _rehearsed.add(key)
    x2, _, keep, _ = inputs
    with ahead.rehearsal():
        v = forward(w, n, inputs, *start)
        slopes = backward(w, n, v, keep, (v.h[1:], v.z[1:], v.logit))
        weight_grads(w, n, v, x2, keep, slopes)
