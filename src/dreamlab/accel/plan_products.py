"""Layers of TD-MPC2's plans for many rows: the library's products, and one pass over each output.

With thousands of plans a product of the library runs at several times the rate of one that
normalizes what it reads, tile by tile; a pass adds bias and action, normalizes and activates.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from dreamlab.accel.dispatch import kernels
from dreamlab.accel.latent_plans import Acts, Dynamics, Layers, Nets, Norm, Policy, Rows, Sizes
from dreamlab.accel.rssm_scan import power
from dreamlab.accel.side_stream import SideStream

TUNING = {"rows": 4, "warps": 4}
"""Rows of a program that finishes a layer."""
ASIDE = {"on": True}
"""Whether rewards are computed beside what leads to the values."""


class Ending(NamedTuple):
    """What follows a product."""

    norm: Norm
    bias: Tensor
    """[envs, out] of a first layer; critics, and steps of a reward, have one each."""
    first: bool = False
    acts: Acts | None = None
    critics: bool = False
    times: bool = False
    """Whether rows are those of the pair of critics, or of a reward's steps."""


class Products(Layers):
    """As `Layers`, but what is stored is activated, or a product without its bias."""

    pair: Tensor | None = None

    def __init__(self, n: Sizes, nets: Nets, plans: int, bounds: list[float]) -> None:
        super().__init__(n, nets, plans, bounds)
        self.of_rows = kernels("plan_rows")

    def latents(self, steps: int) -> Rows:
        """Return memory for the latents of so many steps."""
        return Rows(self.rows_of(steps, size=self.n.d), self.without_parts(steps))

    def without_parts(self, *lead: int) -> Tensor:
        return torch.empty(*lead, 0, device=self.device)

    def rows_of(self, *lead: int, size: int) -> Tensor:
        return torch.empty(*lead, self.rows, size, dtype=self.dtype, device=self.device)

    def finish(self, x: Tensor | None, ending: Ending, out: Tensor) -> Tensor:
        """Put the activated layer of a product into `out`, which may be the product's memory."""
        size, norm, height = out.shape[-1], ending.norm, TUNING["rows"]
        acts = Acts(out, 0, out) if ending.acts is None else ending.acts
        jobs = len(out) if ending.critics or ending.times else 1
        self.of_rows.plan_finish_kernel[-(-self.rows // height), jobs](
            out if x is None else x, ending.bias, *acts[::2],
            out if self.pair is None else self.pair, norm.scale, norm.shift, out, self.rows,
            self.plans, acts.stride, self.n.envs, self.n.step * size, size=size,
            a=0 if ending.acts is None else self.n.a, G=norm.group, CRITICS=ending.critics,
            TIMES=ending.times, FIRST=ending.first, PRODUCT=x is not None,
            MIXED=self.plans % height > 0, BM=height, N=power(size), num_warps=TUNING["warps"],
        )  # fmt: skip
        return out

    def hidden(self, x: Tensor | None, net: Dynamics | Policy, acts: Acts | None = None) -> Tensor:
        """Return the product of the second layer, at latents or if there are none, at the start."""
        here = int(x is not None)
        y = self.rows_of(size=self.n.w) if x is None else x @ net.first.t()
        norm = Norm(net.first_scale, net.first_shift)
        self.finish(y if here else None, Ending(norm, net.start[here], True, acts), y)
        return y @ net.second.t()

    def move(self, x: Rows | None, action: Tensor, out: Rows) -> Rows:
        d = self.nets.dynamics
        y = self.hidden(None if x is None else x.x, d, Acts(action, action.stride(1), d.action))
        self.finish(y, Ending(Norm(d.second_scale, d.second_shift), d.second_bias), y)
        self.finish(y @ d.out.t(), Ending(self.latent, d.out_bias), out.x)
        return out

    def act(self, x: Rows | None, noise: Tensor, mask: Tensor | None, out: Tensor) -> None:
        y = self.hidden(None if x is None else x.x, self.nets.policy)
        self.choose(Rows(y, self.without_parts()), noise, mask, out)

    def prepare(self, states: Rows, actions: Tensor, pair: Tensor) -> None:
        """Compute the rewards' hidden layers, on a second stream; all latents but the last exist.

        A reward at the environments' latents needs no product: it is in the start.
        """
        n, (r, q) = self.n, (self.nets.reward, self.nets.critics)
        self.pair = pair
        # made here and kept: memory of one stream must not be given to another while it is used
        self.x, self.y = (self.rows_of(n.horizon + 2, size=n.w) for _ in range(2))
        self.q_first, self.q_second = (torch.empty_like(x[:2]) for x in (q.first, q.second))
        acts = Acts(actions, actions.stride(1), r.action)
        ending = Ending(Norm(r.first_scale, r.first_shift), r.start, True, acts, times=True)
        x, before = self.x[2:], states.x[:-1].flatten(0, 1)
        self.side = SideStream(self.device, urgent=False)
        with self.side if ASIDE["on"] else nullcontext():
            torch.index_select(q.first, 0, pair, out=self.q_first)
            torch.index_select(q.second, 0, pair, out=self.q_second)
            if n.horizon > 1:
                torch.mm(before, r.first, out=x[1:].flatten(0, 1))
            self.finish(x, ending, x)
            torch.mm(x.flatten(0, 1), r.second, out=self.y[2:].flatten(0, 1))

    def values(self, states: Rows, actions: Tensor, last: Tensor, pair: Tensor) -> Tensor:
        n, q = self.n, self.nets.critics
        self.side.join()
        ends, weight = self.x[:2], self.q_first[:, : n.d]
        torch.bmm(states.x[-1].expand(2, -1, -1), weight, out=ends)
        acts = Acts(last, n.a, q.first[:, n.step - n.a :])
        norm = Norm(q.first_scale, q.first_shift)
        self.finish(ends, Ending(norm, q.start, True, acts, critics=True), ends)
        torch.bmm(ends, self.q_second, out=self.y[:2])
        return self.value_out(Rows(self.y, self.without_parts()), pair)
