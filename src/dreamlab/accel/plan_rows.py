"""Layers of TD-MPC2's plans for few rows, in tiles that read whole rows at once.

A tile of 32 rows has room for all columns of its input and all numbers that its weights sum, so
nothing is loaded in a loop, norms need no parts, and weights are read before the input is there.
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
    launch,
)
from dreamlab.accel.rssm_scan import power


def fits(n: Sizes) -> bool:
    """Return whether rows can be read whole."""
    return n.d == power(n.d) and n.w == power(n.w)


class WholeRows(Layers):
    """As `Layers`, but only latents and critics have parts, for those that read them in tiles."""

    def __init__(self, n: Sizes, nets: Nets, plans: int, bounds: list[float]) -> None:
        super().__init__(n, nets, plans, bounds)
        self.of_rows = kernels("plan_rows")

    def latents(self, steps: int) -> Rows:
        return self.room("row_layer", self.n.d, steps)

    def whole(self, size: int) -> Rows:
        """Return memory for a layer's output without parts."""
        x = torch.empty(self.rows, size, dtype=self.dtype, device=self.device)
        return Rows(x, torch.empty(0, device=self.device))

    def layer(
        self, x: Rows, norm: Norm, weight: Tensor, bias: Tensor, acts: Acts | None = None,
        out: Rows | None = None,
    ) -> Rows:  # fmt: skip
        n_size, k_size = weight.shape
        options = self.tiled("row_layer", norm.group, BN=n_size)
        y = self.whole(n_size) if out is None else out
        action, stride, of_action = Acts(y.x, 0, weight) if acts is None else acts
        self.of_rows.row_layer_kernel[n_size // options["BN"], -(-self.rows // options["BM"])](
            x.x, norm.scale, norm.shift, weight, bias, action, of_action, *y, self.rows,
            self.plans, stride, k_size=k_size, n_size=n_size, a=0 if acts is None else self.n.a,
            G=norm.group, FIRST=bias.ndim == 2, STATS=out is not None, **options,
        )  # fmt: skip
        return y

    def begin(self, net: Dynamics | Policy, acts: Acts | None = None) -> Rows:
        w = self.n.w
        if self.plans % launch("row_begin", self.rows, self.dtype, BN=w)["BM"]:
            return super().begin(net, acts)  # a tile has rows of several environments
        options, y = self.tiled("row_begin", 0, BN=w), self.whole(w)
        action, stride, of_action = Acts(y.x, 0, net.second) if acts is None else acts
        self.of_rows.row_begin_kernel[w // options["BN"], -(-self.rows // options["BM"])](
            net.start, action, of_action, net.first_scale, net.first_shift, net.second,
            net.second_bias, *y, self.rows, self.plans, stride, size=w,
            a=0 if acts is None else self.n.a, STATS=False, **options,
        )  # fmt: skip
        return y

    def choose(self, y: Rows, noise: Tensor, mask: Tensor | None, out: Tensor) -> None:
        p, n, options = self.nets.policy, self.n, self.options("row_act")
        self.of_rows.row_act_kernel[(-(-self.rows // options["BM"]),)](
            y.x, p.second_scale, p.second_shift, p.out, p.out_bias, noise,
            noise if mask is None else mask, out, self.rows, self.plans,
            0 if noise.shape[0] == 1 else noise.stride(0), out.stride(1), *self.bounds, w=n.w,
            a=n.a, MASKED=mask is not None, AP=self.wide, **options,
        )  # fmt: skip
