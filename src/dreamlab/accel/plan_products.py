"""Layers of TD-MPC2's plans for many rows: the library's products, and one pass over each output.

With thousands of plans a product of the library runs at several times the rate of one that
normalizes what it reads, tile by tile; a pass adds bias and action, normalizes and activates.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dreamlab.accel.latent_plans import Acts, Dynamics, Layers, Norm, Policy, Rows
from dreamlab.accel.rssm_scan import power

TUNING = {"rows": 4, "warps": 4}
"""Rows of a program that finishes a layer."""


class Ending(NamedTuple):
    """What follows a product."""

    norm: Norm
    bias: Tensor
    """[envs, out] of a first layer; those of critics have them in front."""
    first: bool = False
    acts: Acts | None = None
    critic: int = -1
    """Which of the pair; -1 for other networks."""


class Products(Layers):
    """As `Layers`, but latents are activated when they are stored; their parts are not used."""

    pair: Tensor | None = None

    def latents(self, steps: int) -> Rows:
        """Return memory for the latents of so many steps."""
        return Rows(self.rows_of(steps, size=self.n.d), torch.empty(steps, 0, device=self.device))

    def rows_of(self, *lead: int, size: int) -> Tensor:
        return torch.empty(*lead, self.rows, size, dtype=self.dtype, device=self.device)

    def finish(
        self, x: Tensor | None, ending: Ending, out: Tensor, part: Tensor | None = None
    ) -> Tensor:
        """Put the activated layer of a product into `out`, which may be the product's memory.

        With `part` it is stored before its norm, and means and spreads of rows in `part`, as tiles
        are: for layers that normalize what they read.
        """
        (rows, size), norm = out.shape, ending.norm
        acts = Acts(out, 0, out) if ending.acts is None else ending.acts
        height, pair = TUNING["rows"], out if self.pair is None else self.pair
        self.k.plan_finish_kernel[(-(-rows // height),)](
            out if x is None else x, ending.bias, *acts[::2], pair, norm.scale, norm.shift, out,
            out if part is None else part, rows, self.plans, acts.stride, self.n.envs,
            self.n.step * size, size=size, a=0 if ending.acts is None else self.n.a, G=norm.group,
            CRITIC=ending.critic, FIRST=ending.first, PRODUCT=x is not None, RAW=part is not None,
            MIXED=self.plans % height > 0, BM=height, N=power(size), num_warps=TUNING["warps"],
        )  # fmt: skip
        return out

    def raw(self, x: Tensor, ending: Ending, part: Tensor) -> Rows:
        """Return a layer before its norm, in the memory of its product."""
        return Rows(self.finish(x, ending, x, part), part)

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
        p = self.nets.policy
        y = self.hidden(None if x is None else x.x, p)
        part = torch.empty(self.rows, 2, 1, device=self.device)
        ending = Ending(Norm(p.second_scale, p.second_shift), p.second_bias)
        self.choose(self.raw(y, ending, part), noise, mask, out)

    def values(self, states: Rows, actions: Tensor, last: Tensor, pair: Tensor) -> Tensor:
        self.pair = pair
        x = self.value_firsts(states.x, actions, last)
        r, q = self.nets.reward, self.nets.critics
        y = torch.empty_like(x)
        torch.bmm(x[:2], q.second.index_select(0, pair), out=y[:2])
        torch.mm(x[2:].flatten(0, 1), r.second, out=y[2:].flatten(0, 1))
        part = torch.empty(len(x), self.rows, 2, 1, device=self.device)
        for i in range(2):
            ending = Ending(Norm(q.second_scale, q.second_shift), q.second_bias, critic=i)
            self.raw(y[i], ending, part[i])
        ending = Ending(Norm(r.second_scale, r.second_shift), r.second_bias)
        self.raw(y[2:].flatten(0, 1), ending, part[2:])
        return self.value_out(Rows(y, part), pair)

    def value_firsts(self, states: Tensor, actions: Tensor, last: Tensor) -> Tensor:
        """Return the first layers of two critics, then of the reward of each step, the last first.

        A reward at the environments' latents needs no product: it is in the start.
        """
        n, (r, q) = self.n, (self.nets.reward, self.nets.critics)
        x = self.rows_of(n.horizon + 2, size=n.w)
        assert self.pair is not None
        weight = q.first.index_select(0, self.pair)[:, : n.d]
        torch.bmm(states[-1].expand(2, -1, -1), weight, out=x[:2])
        acts = Acts(last, n.a, q.first[:, n.step - n.a :])
        for i in range(2):
            ending = Ending(Norm(q.first_scale, q.first_shift), q.start, True, acts, i)
            self.finish(x[i], ending, x[i])
        norm = Norm(r.first_scale, r.first_shift)
        for t in range(n.horizon):
            y, action = x[n.horizon + 1 - t], actions[:, :, t]
            if t:
                torch.mm(states[t - 1], r.first, out=y)
            ending = Ending(
                norm, r.start[int(t > 0)], True, Acts(action, action.stride(1), r.action)
            )
            self.finish(y if t else None, ending, y)
        return x
