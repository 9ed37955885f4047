"""LaProp for a GPU: all parameters in one array, updated by three kernels instead of a thousand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from dreamlab.accel import ahead
from dreamlab.accel.dispatch import kernels
from dreamlab.accel.side_stream import SideStream
from dreamlab.core.update_rules import LaProp, LaPropConfig

ALIGN = 64
"""Alignment of parameters in entries, so that copies suit matrix products."""
CHUNK = 4096


def padded(size: int) -> int:
    """Return the entries that a parameter takes."""
    return -(-size // ALIGN) * ALIGN


class Layout:
    """Moves parameters into one array; `halved` come first, so that one copy converts them all."""

    def __init__(self, halved: Iterable[nn.Parameter], others: Iterable[nn.Parameter]) -> None:
        self.first: dict[int, int] = {}
        self.halved: set[int] = set()
        size = 0
        groups = [list(halved), list(others)]
        ends: list[int] = []
        for group in groups:
            for p in group:
                self.first[id(p)] = size
                size += padded(p.numel())
            ends.append(size)
        self.halved = {id(p) for p in groups[0]}
        self.low_end = ends[0]
        every = [p for group in groups for p in group]
        self.flat = torch.zeros(size, device=every[0].device)
        for p in every:
            view = self.view(self.flat, p)
            view.copy_(p.data)
            p.data = view

    def view(self, flat: Tensor, p: nn.Parameter) -> Tensor:
        """Return a parameter's view of an array with this layout."""
        first = self.first[id(p)]
        return flat[first : first + p.numel()].view(p.shape)


class FusedLaProp(LaProp):
    """Computes `LaProp` and both kinds of clipping, for parameters without groups."""

    def __init__(self, config: LaPropConfig, params: list[nn.Parameter], layout: Layout) -> None:
        super().__init__(config, params)
        self.layout = layout
        self.low = [i for i, p in enumerate(params) if id(p) in layout.halved]
        self.high = [i for i, p in enumerate(params) if id(p) not in layout.halved]
        self.halves = sum(padded(params[i].numel()) for i in self.low)
        device = layout.flat.device
        self.flat_mean, self.flat_square = (torch.zeros_like(layout.flat) for _ in range(2))
        rows: list[tuple[int, int, int, int]] = []
        begin, place = [0], 0
        for number, i in enumerate([*self.low, *self.high]):
            first, size = layout.first[id(params[i])], padded(params[i].numel())
            for at in range(0, size, CHUNK):
                rows.append((first + at, place + at, min(CHUNK, size - at), number))
            place += size
            begin.append(len(rows))
        self.most = max(b - a for a, b in pairwise(begin))
        columns = torch.tensor(rows, device=device).t().contiguous()
        self.firsts, self.places, self.sizes, self.owners = columns.unbind()
        self.begin = torch.tensor(begin, device=device)
        self.squares = torch.zeros(2 * len(rows), device=device)
        self.limits, self.sums = torch.zeros(2, len(params), device=device).unbind()
        self.nothing = [torch.zeros_like(p).flatten() for p in params]
        self.rooms: dict[tuple[bool, torch.dtype], list[Tensor]] = {}
        self.allocate()

    def allocate(self) -> Tensor:
        if self.steps is None:
            self.steps = torch.zeros(1, dtype=self.dtype, device=self.params[0].device)
        if not self.mean:
            view = self.layout.view
            self.mean = [view(self.flat_mean, p) for p in self.params]
            self.square = [view(self.flat_square, p) for p in self.params]
        if self.rate is None:
            self.rate = torch.full_like(self.steps[0], self.lr)
        return self.steps[0]

    @torch.no_grad()
    def step_from(self, grads: Sequence[Tensor | None]) -> Tensor:
        """Clip and update the parameters; return the gradient norm before clipping."""
        k = kernels("laprop")
        c, count = self.config, self.allocate()
        assert self.rate is not None
        beta1, beta2 = c.betas
        side = SideStream(self.rate.device, urgent=False)
        with side:  # a dozen operations on single numbers, which wait for no gradient
            rate = self.rate * self.pace(count)
            count += 1
            scalars = torch.stack([1 - beta2**count, -rate / (1 - beta1**count)]).float()
        half, full = self._packed(grads, low=True), self._packed(grads, low=False)
        data = (self.layout.flat, half, full, self.halves)
        ahead.build(k, partial(self._launch, data=data, scalars=scalars))
        self._measure(k, data)
        norm = self.sums.sum().sqrt()
        side.join()
        if c.clip:  # the stricter limit applies
            torch.maximum(self.limits, (norm + 1e-6) / c.clip, out=self.limits)
        if c.weight_decay:
            torch._foreach_mul_(tuple(self.params), (1 - rate * c.weight_decay).float())
        self._move(k, data, scalars)
        return norm

    def rehearse(self, dtype: torch.dtype) -> None:
        """Begin to build the kernels; `dtype` is that of gradients which come in half precision."""
        half = self._room(True, dtype)[0] if self.low else self.nothing[0]
        full = self._room(False, torch.float32)[0] if self.high else self.nothing[0]
        data = (self.layout.flat, half, full, self.halves)
        scalars = torch.zeros(2, device=self.flat_mean.device)
        with ahead.rehearsal():
            ahead.build(kernels("laprop"), partial(self._launch, data=data, scalars=scalars))

    def _launch(self, k: Any, data: tuple[Any, ...], scalars: Tensor) -> None:
        self._measure(k, data)
        self._move(k, data, scalars)

    def _measure(self, k: Any, data: tuple[Any, ...]) -> None:
        """Compute limits from the norms of gradients and parameters."""
        chunks = len(self.owners)
        k.squares_kernel[(chunks,)](
            *data, self.firsts, self.places, self.sizes, self.squares, chunks, CHUNK=CHUNK
        )
        k.limit_kernel[(len(self.params),)](
            self.squares, self.begin, self.limits, self.sums, chunks, self.config.agc or 1e30,
            MOST=1 << (self.most - 1).bit_length(),
        )  # fmt: skip

    def _move(self, k: Any, data: tuple[Any, ...], scalars: Tensor) -> None:
        """Move the parameters."""
        k.step_kernel[(len(self.owners),)](
            *data, self.flat_mean, self.flat_square, self.firsts, self.places, self.sizes,
            self.owners, self.limits, scalars, *self.config.betas, self.config.eps, CHUNK=CHUNK,
        )  # fmt: skip

    def _packed(self, grads: Sequence[Tensor | None], low: bool) -> Tensor:
        """Return gradients one after another, padded as the parameters are."""
        which = self.low if low else self.high
        if not which:
            return self.nothing[0]
        parts = [self.nothing[i] if grads[i] is None else grads[i].reshape(-1) for i in which]  # type: ignore[union-attr]
        room, *places = self._room(low, min((p.dtype for p in parts), key=lambda d: d.itemsize))
        torch._foreach_copy_(places, parts)  # several times faster than `torch.cat`
        return room

    def _room(self, low: bool, dtype: torch.dtype) -> list[Tensor]:
        """Return the memory of gradients, whose padding stays 0, and each gradient's part of it."""
        if (low, dtype) not in self.rooms:
            sizes = [self.params[i].numel() for i in (self.low if low else self.high)]
            room = torch.zeros(sum(map(padded, sizes)), dtype=dtype, device=self.flat_mean.device)
            parts = room.split([padded(n) for n in sizes])
            cut = [part[:n] for part, n in zip(parts, sizes, strict=True)]
            self.rooms[low, dtype] = [room, *cut]
        return self.rooms[low, dtype]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copy the state into the arrays that the kernels use."""
        self.set_lr(state["lr"])
        count = self.allocate()
        count.fill_(0 if state["count"] is None else state["count"])
        pairs = ((self.mean, state["mean"]), (self.square, state["square"]))
        for mine, given in pairs:
            for a, b in zip(mine, given, strict=False):
                a.copy_(b)
