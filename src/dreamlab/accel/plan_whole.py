"""Layers of TD-MPC2's plans for many rows, in tiles of all columns.

Where rows are many, each tile has room for whole rows of its output: it normalizes and activates
them before they are stored, once, instead of whoever reads them, column by column.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dreamlab.accel.dispatch import kernels
from dreamlab.accel.latent_plans import (
    Acts,
    Dynamics,
    Layers,
    Nets,
    Norm,
    Policy,
    Rows,
    Sizes,
)
from dreamlab.accel.rssm_scan import power


class Activated(Layers):
    """As `Layers`, but what is stored is activated, and has no parts."""

    def __init__(self, n: Sizes, nets: Nets, plans: int, bounds: list[float]) -> None:
        super().__init__(n, nets, plans, bounds)
        self.whole = kernels("plan_whole")

    def room(self, kernel: str, size: int, *lead: int) -> Rows:
        x = torch.empty(*lead, self.rows, size, dtype=self.dtype, device=self.device)
        return Rows(x, x.new_empty(*lead, 0))

    def finished(
        self, x: Tensor | None, weight: Tensor, bias: Tensor, norm: Norm, acts: Acts | None = None,
        out: Rows | None = None,
    ) -> Tensor:  # fmt: skip
        """Return an activated layer; a first one [envs, out] without input has it in its bias."""
        size, k_size = weight.shape
        options = self.tiled("whole_begin" if x is None else "whole_layer", 0, BK=k_size)
        y = self.room("", size).x if out is None else out.x
        action, stride, of_action = Acts(y, 0, weight) if acts is None else acts
        self.whole.whole_layer_kernel[(-(-self.rows // options["BM"]),)](
            y if x is None else x, weight, bias, action, of_action, norm.scale, norm.shift, y,
            self.rows, self.plans, stride, k_size=0 if x is None else k_size, size=size,
            a=0 if acts is None else self.n.a, G=norm.group, FIRST=bias.ndim == 2, N=power(size),
            **options,
        )  # fmt: skip
        return y

    def second(self, x: Rows | None, net: Dynamics | Policy, acts: Acts | None = None) -> Rows:
        norms = (Norm(net.first_scale, net.first_shift), Norm(net.second_scale, net.second_shift))
        here = None if x is None else x.x
        y = self.finished(here, net.first, net.start[int(x is not None)], norms[0], acts)
        y = self.finished(y, net.second, net.second_bias, norms[1])
        return Rows(y, y.new_empty(0))

    def move(self, x: Rows | None, action: Tensor, out: Rows) -> Rows:
        d = self.nets.dynamics
        y = self.second(x, d, Acts(action, action.stride(1), d.action))
        self.finished(y.x, d.out, d.out_bias, self.latent, out=out)
        return out

    def choose(self, y: Rows, noise: Tensor, mask: Tensor | None, out: Tensor) -> None:
        p, n, options = self.nets.policy, self.n, self.options("whole_act", BK=self.n.w)
        self.whole.whole_act_kernel[(-(-self.rows // options["BM"]),)](
            y.x, p.out, p.out_bias, noise, noise if mask is None else mask, out, self.rows,
            self.plans, 0 if noise.shape[0] == 1 else noise.stride(0), out.stride(1),
            *self.bounds, w=n.w, a=n.a, MASKED=mask is not None, AP=self.wide, **options,
        )  # fmt: skip

    def value_first(self, states: Rows, actions: Tensor, last: Tensor, pair: Tensor) -> Rows:
        n, (r, q), jobs = self.n, (self.nets.reward, self.nets.critics), self.n.horizon + 2
        options, y = self.tiled("whole_value_first", 0, BK=n.d), self.room("", n.w, jobs)
        self.whole.whole_value_first_kernel[-(-self.rows // options["BM"]), jobs](
            states.x, actions, last, pair, r.start, r.first, r.action, r.first_scale,
            r.first_shift, q.start, q.first, q.first_scale, q.first_shift, y.x, self.rows,
            self.plans, n.envs, H=n.horizon, step=n.step, d=n.d, w=n.w, a=n.a, N=power(n.w),
            **options,
        )  # fmt: skip
        return y

    def value_hidden(self, x: Rows, pair: Tensor) -> Rows:
        w, jobs = self.n.w, self.n.horizon + 2
        options, y = self.options("whole_value_hidden", BK=w), self.room("", w, jobs)
        weights = [
            (net.second, net.second_bias, net.second_scale, net.second_shift)
            for net in (self.nets.reward, self.nets.critics)
        ]
        self.whole.whole_value_hidden_kernel[-(-self.rows // options["BM"]), jobs](
            x.x, pair, *weights[0], *weights[1], y.x, self.rows, w=w, N=power(w), **options
        )
        return y

    def value_out(self, x: Rows, pair: Tensor) -> Tensor:
        n, options = self.n, self.options("whole_value_out", BK=self.n.w)
        gains = torch.empty(n.horizon + 2, n.envs, self.plans, device=self.device)
        r, q = self.nets.reward, self.nets.critics
        self.whole.whole_value_out_kernel[-(-self.rows // options["BM"]), len(gains)](
            x.x, pair, r.out, r.out_bias, q.out, q.out_bias, self.nets.centre, gains, self.rows,
            H=n.horizon, w=n.w, HB=n.half, **options,
        )  # fmt: skip
        return gains
