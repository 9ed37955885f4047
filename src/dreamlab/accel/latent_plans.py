"""Plans in the latents of TD-MPC2, scored by two kernels instead of a hundred, for GPUs.

A tile of candidates is rolled out in one program, all layers of all steps; then a program per tile
and part of the score (the reward of a step, one critic's value of the end) computes that part. The
policy's own plans are rolled out in one kernel likewise. Operators, so that compilers pass them on.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from dreamlab.accel.dispatch import kernels
from dreamlab.accel.rssm_scan import chunk, power

WIDEST = 512
"""Numbers of a row that a program can hold: wider layers are left to the library's products."""
SIDE = 64
"""Numbers beside a latent in the input of a step: an action, padded by zeros."""
TILE = 16
FILL = 132
"""Multiprocessors of an H200: tiles are as high as leaves enough of them for all."""


class Tuning(NamedTuple):
    """Launch options of a kernel: rows read at once of a bfloat16 weight, warps, loads ahead."""

    chunk: int
    warps: int
    stages: int


TUNING = {
    ("roll", 16): Tuning(64, 8, 4),
    ("roll", 32): Tuning(64, 8, 3),
    ("roll", 64): Tuning(64, 8, 3),
    ("value", 16): Tuning(32, 4, 3),
    ("value", 32): Tuning(64, 8, 3),
    ("value", 64): Tuning(64, 8, 3),
}
"""By kernel and rows of a tile; times of others: benchmarks/plan_kernels.py."""
ROWS: dict[str, int] = {}
"""Rows of a tile by kernel, if not as `tile_rows` chooses: to measure others."""
SLOW = Tuning(32, 8, 2)
"""In float32, which tensor cores do not multiply exactly: for checks."""


class Sizes(NamedTuple):
    """Letters as in `kernels/latent_plans.py`."""

    envs: int
    horizon: int
    d: int
    w: int
    a: int
    group: int
    """Entries of a latent that sum to 1."""
    half: int
    """Bins above the middle, padded to a power of two."""


class Dynamics(NamedTuple):
    """Layers [out, in] of the dynamics; inputs of the first are a latent and `SIDE` more.

    `start` [2, envs, w] is what the first layer's sums begin with: at the environment's latent,
    with its part of the product, and at any other.
    """

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
    """Layers [in, out] of the reward; its outputs are in the order of `nn.latent_plans.paired`."""

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
    return whole and max(d, w) <= WIDEST and a <= SIDE


def tile_rows(kernel: str, plans: int, rows: int, dtype: torch.dtype) -> int:
    """Return the rows of a tile: few if there are few `rows` in all, so that there are many tiles.

    A tile belongs to one environment, which has `plans` rows.
    """
    if kernel in ROWS:
        return ROWS[kernel]
    tile, most = TILE, TILE if dtype == torch.float32 else 64
    while tile < most and plans % (2 * tile) == 0 and rows > tile * FILL:
        tile *= 2
    return tile


def half(width: int) -> int:
    """Return the size of the halves in which rows are held, the second one padded."""
    return max(TILE, power(width) // 2)


def launch(kernel: str, rows: int, n: Sizes, dtype: torch.dtype) -> dict[str, int]:
    """Return the launch options of a kernel."""
    tuned = SLOW if dtype == torch.float32 else TUNING[kernel, rows]
    bk = chunk(n.d | n.w | SIDE, tuned.chunk)
    padded = {"BM": rows, "BW": half(n.w), "SIDE": SIDE, "BK": bk}
    return {**padded, "num_warps": tuned.warps, "num_stages": tuned.stages}


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


GAINS = (
    "(Tensor actions, Tensor last, Tensor pair, Tensor? mask, Tensor[] weights, int[] sizes, "
    "float[] bounds) -> Tensor"
)


@torch.library.custom_op("dreamlab::plan_gains", mutates_args=(), schema=GAINS)
def plan_gains(
    actions: Tensor, last: Tensor, pair: Tensor, mask: Tensor | None, weights: list[Tensor],
    sizes: list[int], bounds: list[float],
) -> Tensor:  # fmt: skip
    """Return the rewards of plans, then halves of two critics' values of their ends: [h + 2, n, s].

    `actions` are [n, s, horizon, a], `last` [n or 1, s, a] the noise of the policy's action at the
    end, `pair` the critics, `mask` [n, a] the valid entries.
    """
    n, s, nets = Sizes(*sizes), actions.shape[1], Nets.of(weights)
    dtype = nets.dynamics.first.dtype
    rows, jobs = n.envs * s, n.horizon + 2
    tall = tile_rows("roll", s, rows, dtype)
    each = tile_rows("value", s, jobs * rows, dtype)
    make = lambda *shape: torch.empty(shape, dtype=dtype, device=actions.device)  # noqa: E731
    x, hidden = make(n.horizon + 1, rows, n.d + SIDE), make(2, jobs, rows, n.w)
    gains = torch.empty(jobs, n.envs, s, device=actions.device)
    k = kernels("latent_plans")
    k.roll_kernel[(rows // tall,)](
        actions, last, actions if mask is None else mask, x, *hidden, *nets.dynamics, *nets.policy,
         n.envs, s, s // tall, 0 if last.shape[0] == 1 else s * n.a, 0, *bounds,
        n.horizon, n.group, n.d, n.w, n.a, MASKED=mask is not None, POLICY=False, BD=half(n.d),
        **launch("roll", tall, n, dtype),
    )  # fmt: skip
    k.value_kernel[(rows // each, jobs)](
        x, pair, gains, *hidden, nets.centre, *nets.reward, *nets.critics, n.envs, s, n.horizon,
        n.d, n.w, n.a, n.half, **launch("value", each, n, dtype),
    )  # fmt: skip
    return gains


@plan_gains.register_fake
def _(
    actions: Tensor, last: Tensor, pair: Tensor, mask: Tensor | None, weights: list[Tensor],
    sizes: list[int], bounds: list[float],
) -> Tensor:  # fmt: skip
    return actions.new_empty(sizes[1] + 2, actions.shape[0], actions.shape[1])


PLANS = "(Tensor noise, Tensor? mask, Tensor[] weights, int[] sizes, float[] bounds) -> Tensor"


@torch.library.custom_op("dreamlab::policy_plans", mutates_args=(), schema=PLANS)
def policy_plans(
    noise: Tensor, mask: Tensor | None, weights: list[Tensor], sizes: list[int],
    bounds: list[float],
) -> Tensor:  # fmt: skip
    """Return the policy's actions [n, p, horizon, a] in the model, for noise [h, n or 1, p, a]."""
    n, plans, nets = Sizes(*sizes), noise.shape[2], Nets.of(weights)
    dtype = nets.dynamics.first.dtype
    tiles = -(-plans // TILE)
    rows = n.envs * tiles * TILE
    make = lambda *shape: torch.empty(shape, dtype=dtype, device=noise.device)  # noqa: E731
    x, hidden = make(n.horizon, rows, n.d + SIDE), make(2, rows, n.w)
    out = torch.empty(n.envs, plans, n.horizon, n.a, device=noise.device)
    kernels("latent_plans").roll_kernel[(rows // TILE,)](
        out, noise, noise if mask is None else mask, x, *hidden, *nets.dynamics, *nets.policy,
         n.envs, plans, tiles, 0 if noise.shape[1] == 1 else noise.stride(1),
        noise.stride(0), *bounds, n.horizon, n.group, n.d, n.w, n.a, MASKED=mask is not None,
        POLICY=True, BD=half(n.d), **launch("roll", TILE, n, dtype),
    )  # fmt: skip
    return out


@policy_plans.register_fake
def _(
    noise: Tensor, mask: Tensor | None, weights: list[Tensor], sizes: list[int],
    bounds: list[float],
) -> Tensor:  # fmt: skip
    horizon, _, plans, a = noise.shape
    return noise.new_empty(sizes[0], plans, horizon, a)
