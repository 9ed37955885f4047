"""Plans in the latents of TD-MPC2, scored layer by layer in tiles, for GPUs.

Every layer is one kernel in tiles of rows and columns, and so are all critics' and rewards' layers
of the same depth: 14 launches for a score of three steps instead of a hundred. Norms and
activations are computed by whoever reads a layer. `plan_rows` is faster where rows are few,
`plan_whole` where they are many.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dreamlab.accel.dispatch import kernels
from dreamlab.accel.rssm_scan import chunk, power

WIDEST = 512
"""Numbers of a row up to which it pays: wider layers are left to the library's products."""
MOST_ACTIONS = 64
TILE = 16
TINY, FEW = 400, 2048
"""Rows up to which there are too few for tall tiles; launch options are chosen for each."""


class Tuning(NamedTuple):
    """Launch options: a tile's rows and columns, numbers summed at once, warps, loads ahead."""

    rows: int
    cols: int
    depth: int
    warps: int
    stages: int


TUNING = {
    ("layer", "tiny"): Tuning(16, 16, 128, 4, 5),
    ("layer", "few"): Tuning(32, 64, 256, 4, 3),
    ("layer", "many"): Tuning(64, 256, 32, 4, 4),
    ("begin", "tiny"): Tuning(16, 32, 512, 4, 1),
    ("begin", "few"): Tuning(32, 64, 512, 8, 1),
    ("begin", "many"): Tuning(64, 256, 64, 4, 3),
    ("act", "tiny"): Tuning(16, 0, 128, 4, 5),
    ("act", "few"): Tuning(16, 0, 128, 2, 5),
    ("act", "many"): Tuning(32, 0, 128, 4, 4),
    ("value_first", "few"): Tuning(64, 128, 64, 4, 4),
    ("value_first", "many"): Tuning(64, 256, 32, 4, 4),
    ("value_hidden", "few"): Tuning(64, 256, 64, 4, 3),
    ("value_hidden", "many"): Tuning(64, 256, 64, 4, 2),
    ("value_out", "few"): Tuning(32, 0, 128, 4, 4),
    ("value_out", "many"): Tuning(64, 0, 64, 4, 4),
    ("whole_layer", "many"): Tuning(64, 0, 64, 8, 3),
    ("whole_begin", "many"): Tuning(16, 0, 32, 4, 1),
    ("whole_value_first", "many"): Tuning(64, 0, 64, 8, 3),
    ("whole_value_hidden", "many"): Tuning(64, 0, 64, 8, 3),
    ("whole_value_out", "many"): Tuning(128, 0, 64, 8, 3),
    ("whole_act", "many"): Tuning(64, 0, 128, 4, 3),
    ("row_layer", "tiny"): Tuning(16, 16, 0, 4, 1),
    ("row_layer", "few"): Tuning(32, 64, 0, 8, 1),
    ("row_begin", "tiny"): Tuning(16, 16, 0, 4, 1),
    ("row_begin", "few"): Tuning(32, 64, 0, 8, 1),
    ("row_act", "tiny"): Tuning(16, 0, 0, 4, 1),
    ("row_act", "few"): Tuning(16, 0, 0, 4, 1),
}
"""By kernel and number of rows; chosen on an H200 by benchmarks/plan_kernels.py."""
SLOW = Tuning(16, 32, 32, 4, 2)
"""In float32, which tensor cores do not multiply exactly: for checks."""


class Sizes(NamedTuple):
    """Letters as in `kernels/plan_layers.py`."""

    envs: int
    horizon: int
    d: int
    w: int
    a: int
    group: int
    """Entries of a latent that sum to 1."""
    half: int
    """Bins above the middle, padded to a power of two."""
    step: int
    """Size of the critics' input: a latent, a task embedding, an action."""


class Dynamics(NamedTuple):
    """Layers [out, in] of the dynamics. `start` [2, envs, w] is what the first layer's sums begin
    with: at the environment's latent, with its part of the product, and at any other. `action` is
    the first layer's weight for actions, [a, w].
    """

    start: Tensor
    first: Tensor
    action: Tensor
    first_scale: Tensor
    first_shift: Tensor
    second: Tensor
    second_bias: Tensor
    second_scale: Tensor
    second_shift: Tensor
    out: Tensor
    out_bias: Tensor
    out_scale: Tensor
    out_shift: Tensor


class Policy(NamedTuple):
    """Layers [out, in] of the policy prior; its start as the dynamics'."""

    start: Tensor
    first: Tensor
    first_scale: Tensor
    first_shift: Tensor
    second: Tensor
    second_bias: Tensor
    second_scale: Tensor
    second_shift: Tensor
    out: Tensor
    out_bias: Tensor


class Reward(NamedTuple):
    """Layers [in, out] of the reward; the outputs are ordered by `paired`."""

    start: Tensor
    first: Tensor
    action: Tensor
    first_scale: Tensor
    first_shift: Tensor
    second: Tensor
    second_bias: Tensor
    second_scale: Tensor
    second_shift: Tensor
    out: Tensor
    out_bias: Tensor


class Critics(NamedTuple):
    """Layers [critics, in, out] of the critics; `start` is [critics, envs, w]."""

    start: Tensor
    first: Tensor
    first_scale: Tensor
    first_shift: Tensor
    second: Tensor
    second_bias: Tensor
    second_scale: Tensor
    second_shift: Tensor
    out: Tensor
    out_bias: Tensor


def fits(d: int, w: int, a: int, samples: int) -> bool:
    """Return whether the kernels take latents, hidden layers, actions and plans of these sizes."""
    whole = d % TILE == w % TILE == samples % TILE == 0
    return whole and max(d, w) <= WIDEST and a <= MOST_ACTIONS


def launch(kernel: str, rows: int, dtype: torch.dtype, **sizes: int) -> dict[str, int]:
    """Return tile sizes and launch options; `sizes` are the widths that BN and BK must divide."""
    size = "tiny" if rows <= TINY else "few" if rows <= FEW else "many"
    size = "few" if size == "tiny" and kernel.startswith("value") else size
    size = "many" if "whole" in kernel else size
    tuned = SLOW if dtype == torch.float32 else TUNING[kernel, size]
    most = {"BN": tuned.cols, "BK": tuned.depth}
    tiles = {k: chunk(x, most[k]) for k, x in sizes.items()}
    height = max(TILE, min(tuned.rows, power(rows)))
    return {"BM": height, **tiles, "num_warps": tuned.warps, "num_stages": tuned.stages}


class Nets(NamedTuple):
    """All weights of a plan's score."""

    dynamics: Dynamics
    policy: Policy
    reward: Reward
    critics: Critics
    centre: Tensor
    """What the first half of the output columns of rewards and values stand for."""

    def flat(self) -> list[Tensor]:
        """Return all tensors, as operators take them."""
        return [*self.dynamics, *self.policy, *self.reward, *self.critics, self.centre]

    @classmethod
    def of(cls, flat: list[Tensor]) -> Nets:
        """Return the weights in a flat list."""
        it = iter(flat)
        take = lambda kind: kind._make(islice(it, len(kind._fields)))  # noqa: E731
        return cls(take(Dynamics), take(Policy), take(Reward), take(Critics), next(it))


class Rows(NamedTuple):
    """A layer's output before its norm, and mean and spread of each tile's part of its rows."""

    x: Tensor
    part: Tensor

    @property
    def parts(self) -> dict[str, int]:
        """Return how many parts there are, and that as a power of two."""
        num = self.part.shape[-1]
        return {"parts": num, "PARTS": power(num)}

    def at(self, i: int) -> Rows:
        return Rows(self.x[i], self.part[i])


class Norm(NamedTuple):
    """Between layers: scale and shift, and how many columns softmax is applied to, or 0: Mish."""

    scale: Tensor
    shift: Tensor
    group: int = 0


class Acts(NamedTuple):
    """Actions [rows, a] at a time, a row's `stride` apart from the next; and their weight."""

    x: Tensor
    stride: int
    weight: Tensor


class Layers:
    """Launches of the layers of plans, `plans` for each environment."""

    def __init__(self, n: Sizes, nets: Nets, plans: int, bounds: list[float]) -> None:
        self.n, self.nets, self.plans, self.rows = n, nets, plans, n.envs * plans
        self.dtype, self.device = nets.dynamics.first.dtype, nets.dynamics.first.device
        self.bounds, self.k, self.wide = bounds, kernels("plan_layers"), max(TILE, power(n.a))
        d = nets.dynamics
        self.latent = Norm(d.out_scale, d.out_shift, n.group)
        self.of_values = kernels("plan_values")

    def room(self, kernel: str, size: int, *lead: int) -> Rows:
        """Return memory for a layer's output, as one kernel writes it."""
        parts = size // launch(kernel, self.rows, self.dtype, BN=size)["BN"]
        x = torch.empty(*lead, self.rows, size, dtype=self.dtype, device=self.device)
        return Rows(x, torch.empty(*lead, self.rows, 2, parts, device=self.device))

    def latents(self, steps: int) -> Rows:
        """Return memory for the latents of so many steps."""
        return self.room("layer", self.n.d, steps)

    def options(self, kernel: str, **sizes: int) -> dict[str, int]:
        """Return launch options of a kernel for these plans."""
        return launch(kernel, self.rows, self.dtype, **sizes)

    def tiled(self, kernel: str, group: int, **sizes: int) -> dict[str, Any]:
        """Return launch options of a kernel that reads actions, or normalizes groups."""
        found = self.options(kernel, **sizes)
        mixed = self.plans % found["BM"] > 0  # a tile has rows of several environments
        if "BK" in found:
            found["BK"] = max(group, found["BK"])
        return {**found, "MIXED": mixed, "AP": self.wide}

    def layer(
        self, x: Rows, norm: Norm, weight: Tensor, bias: Tensor, acts: Acts | None = None,
        out: Rows | None = None,
    ) -> Rows:  # fmt: skip
        """Return a layer's output; a bias [envs, out] is that of a first layer."""
        n_size, k_size = weight.shape
        options = self.tiled("layer", norm.group, BN=n_size, BK=k_size)
        y = self.room("layer", n_size) if out is None else out
        action, stride, of_action = Acts(y.x, 0, weight) if acts is None else acts
        self.k.plan_layer_kernel[n_size // options["BN"], -(-self.rows // options["BM"])](
            *x, norm.scale, norm.shift, weight, bias, action, of_action, *y, self.rows, self.plans,
            stride, k_size=k_size, n_size=n_size, a=0 if acts is None else self.n.a, G=norm.group,
            **x.parts, FIRST=bias.ndim == 2, **options,
        )  # fmt: skip
        return y

    def begin(self, net: Dynamics | Policy, acts: Acts | None = None) -> Rows:
        """Return the second layer's output at the environments' latents."""
        w = self.n.w
        options, y = self.tiled("begin", 0, BN=w, BK=w), self.room("begin", w)
        action, stride, of_action = Acts(y.x, 0, net.second) if acts is None else acts
        self.k.plan_begin_kernel[w // options["BN"], -(-self.rows // options["BM"])](
            net.start, action, of_action, net.first_scale, net.first_shift, net.second,
            net.second_bias, *y, self.rows, self.plans, stride, size=w,
            a=0 if acts is None else self.n.a, **options,
        )  # fmt: skip
        return y

    def second(self, x: Rows | None, net: Dynamics | Policy, acts: Acts | None = None) -> Rows:
        """Return the second layer's output at latents, or if there are none, where plans begin."""
        if x is None:
            return self.begin(net, acts)
        y = self.layer(x, self.latent, net.first, net.start[1], acts)
        return self.layer(y, Norm(net.first_scale, net.first_shift), net.second, net.second_bias)

    def move(self, x: Rows | None, action: Tensor, out: Rows) -> Rows:
        """Return the latents after actions [n, p, a]."""
        d = self.nets.dynamics
        y = self.second(x, d, Acts(action, action.stride(1), d.action))
        norm = Norm(d.second_scale, d.second_shift)
        return self.layer(y, norm, d.out, d.out_bias, out=out)

    def act(self, x: Rows | None, noise: Tensor, mask: Tensor | None, out: Tensor) -> None:
        """Put the policy's actions for noise [n or 1, p, a] into `out` [n, p, a]."""
        self.choose(self.second(x, self.nets.policy), noise, mask, out)

    def choose(self, y: Rows, noise: Tensor, mask: Tensor | None, out: Tensor) -> None:
        """Put actions into `out`, as the policy's output layer finds them."""
        p, n, options = self.nets.policy, self.n, self.options("act", BK=self.n.w)
        self.k.plan_act_kernel[(-(-self.rows // options["BM"]),)](
            *y, p.second_scale, p.second_shift, p.out, p.out_bias, noise,
            noise if mask is None else mask, out, self.rows, self.plans,
            0 if noise.shape[0] == 1 else noise.stride(0), out.stride(1), *self.bounds, w=n.w,
            a=n.a, **y.parts, MASKED=mask is not None, AP=self.wide, **options,
        )  # fmt: skip

    def value_first(self, states: Rows, actions: Tensor, last: Tensor, pair: Tensor) -> Rows:
        """Return the first layers of two critics and all rewards."""
        n, (r, q) = self.n, (self.nets.reward, self.nets.critics)
        options, jobs = self.tiled("value_first", n.group, BN=n.w, BK=n.d), n.horizon + 2
        y = self.room("value_first", n.w, jobs)
        grid = (n.w // options["BN"], -(-self.rows // options["BM"]), jobs)
        self.of_values.plan_value_first_kernel[grid](
            *states, *self.latent[:2], actions, last, pair, r.start, r.first, r.action, q.start,
            q.first, *y, self.rows, self.plans, n.envs, H=n.horizon, step=n.step, d=n.d, w=n.w,
            a=n.a, G=n.group, **states.parts, **options,
        )  # fmt: skip
        return y

    def value_hidden(self, x: Rows, pair: Tensor) -> Rows:
        """Return the second layers of two critics and all rewards."""
        w, jobs = self.n.w, self.n.horizon + 2
        options, y = self.options("value_hidden", BN=w, BK=w), self.room("value_hidden", w, jobs)
        weights = [
            (net.first_scale, net.first_shift, net.second, net.second_bias)
            for net in (self.nets.reward, self.nets.critics)
        ]
        grid = (w // options["BN"], -(-self.rows // options["BM"]), jobs)
        self.of_values.plan_value_hidden_kernel[grid](
            *x, pair, *weights[0], *weights[1], *y, self.rows, w=w, **x.parts, **options,
        )  # fmt: skip
        return y

    def value_out(self, x: Rows, pair: Tensor) -> Tensor:
        """Return the rewards of each time, and the values: [horizon + 2, envs, plans]."""
        n, options = self.n, self.options("value_out", BK=self.n.w)
        gains = torch.empty(n.horizon + 2, n.envs, self.plans, device=self.device)
        weights = [
            (net.second_scale, net.second_shift, net.out, net.out_bias)
            for net in (self.nets.reward, self.nets.critics)
        ]
        self.of_values.plan_value_out_kernel[-(-self.rows // options["BM"]), len(gains)](
            *x, pair, *weights[0], *weights[1], self.nets.centre, gains, self.rows, H=n.horizon,
            w=n.w, HB=n.half, **x.parts, **options,
        )  # fmt: skip
        return gains

    def values(self, states: Rows, actions: Tensor, last: Tensor, pair: Tensor) -> Tensor:
        """Return the rewards of plans and the values of their ends, for their latents."""
        y = self.value_first(states, actions, last, pair)
        return self.value_out(self.value_hidden(y, pair), pair)
