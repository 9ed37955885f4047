"""DreamerV3's imagination without gradients, for GPUs: six kernels a step instead of 24.

States are written where the heads read them: one array [rows, steps + 1, memory + sample].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from dreamlab.accel import ahead
from dreamlab.accel.dispatch import kernels
from dreamlab.accel.rssm_scan import TILE, chunk, power

Choose = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Maps the actor's last hidden layer to an action, and to the cell's input layer of it."""


class Tuning(NamedTuple):
    """Launch options of a kernel: a tile's rows and columns, numbers summed at once, warps, stages.

    Kernels that run several layers hold whole rows and sum them at once.
    """

    rows: int
    cols: int
    depth: int
    warps: int
    stages: int


TUNING = {
    "memory": Tuning(128, 64, 64, 8, 4),
    "stoch": Tuning(64, 64, 128, 4, 3),
    "policy": Tuning(16, 128, 0, 8, 2),
    "hidden": Tuning(128, 128, 64, 8, 3),
    "gates": Tuning(64, 128, 64, 8, 3),
    "prior": Tuning(16, 128, 0, 8, 2),
}
"""To be chosen on an H200 by benchmarks/dream_kernels.py."""
WIDEST = 512
"""Hidden units up to which it pays: wider layers are large products, which libraries do well."""


class Use:
    """When to dream with these kernels; for benchmarks and tests."""

    when: Literal["default", "always", "never"] = "default"


class Weights(NamedTuple):
    """The layers of a step: weight, bias, and scale of the norm after it.

    `prior_more` and `actor_more` are the hidden layers after the first, [layers, out, in];
    `prior_scale` and `actor_scale` those of all hidden layers.
    """

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
    prior: Tensor
    prior_bias: Tensor
    prior_more: Tensor
    prior_more_bias: Tensor
    prior_scale: Tensor
    logits: Tensor
    logits_bias: Tensor
    actor: Tensor
    actor_bias: Tensor
    actor_more: Tensor
    actor_more_bias: Tensor
    actor_scale: Tensor


class Output(NamedTuple):
    """The actor's output layers, and the cell's input layer of the action; see `Actions`."""

    mean: Tensor
    """The logits' layer of a class, which has no `spread`."""
    mean_bias: Tensor
    spread: Tensor
    spread_bias: Tensor
    act: Tensor
    act_bias: Tensor
    act_scale: Tensor


@dataclass(frozen=True)
class Actions:
    """Actions as `LatentPolicy` samples them: one of `num` classes, or `num` numbers."""

    num: int
    is_class: bool
    low: float
    """Smallest and largest standard deviation of numbers; uniform share of classes."""
    high: float
    unimix: float

    def noise(self, steps: int, rows: int, device: torch.device) -> list[Tensor]:
        """Draw what each state's sample needs, in the order of single steps."""
        empty = [torch.empty(rows, self.num, device=device) for _ in range(steps)]
        return [x.exponential_() if self.is_class else x.normal_() for x in empty]


class Chosen(NamedTuple):
    """Actions sampled by the kernels."""

    output: Output
    actions: Actions


@dataclass(frozen=True)
class Sizes:
    """Letters as in `kernels/dream.py`."""

    steps: int
    rows: int
    d: int
    g: int
    u: int
    v: int
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
    def stride(self) -> int:
        """Numbers from a row's state to that of the next row."""
        return (self.steps + 1) * (self.d + self.z)


def fits(d: int, g: int, u: int, v: int, z: int) -> bool:
    """Return whether layers of these widths divide into tiles, and are not too wide."""
    whole = d % (g * TILE) == u % TILE == v % TILE == z % TILE == 0
    return whole and (Use.when == "always" or max(u, v) <= WIDEST)


def pays(dtype: torch.dtype) -> bool:
    """Return whether to use the kernels in this precision: full precision has no tensor cores."""
    return Use.when == "always" or (Use.when == "default" and dtype != torch.float32)


def launch(kernel: str, rows: int, **sizes: int) -> dict[str, int]:
    """Return tile sizes and launch options; `sizes` are the widths that BN and BK must divide."""
    tuned = TUNING[kernel]
    most = {"BN": tuned.cols, "BK": tuned.depth}
    tiles = {k: chunk(size, most[k]) for k, size in sizes.items()}
    height = max(TILE, min(tuned.rows, power(rows)))
    return {"BM": height, **tiles, "num_warps": tuned.warps, "num_stages": tuned.stages}


def common(*sizes: int) -> int:
    """Return a number that the powers of two dividing all sizes divide."""
    out = 0
    for size in sizes:
        out |= size
    return out


def imagine(
    w: Weights, n: Sizes, start: tuple[Tensor, Tensor], noise: Tensor, choose: Choose | Chosen,
    halfway: Callable[[Tensor], None] | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the states [rows, steps + 1, d + z], the first the start, and an action for each.

    `noise` is Gumbel noise [steps, rows, s, c]. Actions are sampled by the kernels, or by a
    function that is called once per state. `halfway` gets the first half of an even number of
    states as soon as they are made.
    """
    sampled = isinstance(choose, Chosen)
    room = Room(w, n, start, choose if sampled else None)
    noise, actions = noise.contiguous(), list[Tensor]()
    if not room.build(noise):
        return room.state, room.action
    for i in range(n.steps + 1):
        last = i == n.steps
        room.read_memory(i, first=i == 0, last=last)
        if i:
            room.sample(i, noise[i - 1])
        room.read_sample(i, last)
        hidden = room.act(i)
        if not sampled:
            action, room.x[:, 2 * n.u :] = choose(hidden)
            actions.append(action)
        if halfway is not None and 2 * (i + 1) == n.steps + 1:
            halfway(room.state[:, : i + 1])
        if not last:
            room.mix(i)
            room.move(i)
    return room.state, room.action if sampled else torch.stack(actions, 1)


class Room:
    """The numbers of a dream, and its kernels in the order of a step."""

    def __init__(
        self, w: Weights, n: Sizes, start: tuple[Tensor, Tensor], chosen: Chosen | None
    ) -> None:
        """Write the start; everything else is overwritten in each step."""
        self.w, self.n, dtype, device = w, n, w.memory.dtype, start[0].device
        make = lambda *shape: torch.empty(*shape, dtype=dtype, device=device)  # noqa: E731
        self.state = make(n.rows, n.steps + 1, n.d + n.z)
        self.state[:, 0, : n.d], self.state[:, 0, n.d :] = start
        self.o, self.p0, self.p1 = make(3, n.rows, n.u).unbind()
        self.a, self.policy = make(2, n.rows, n.v).unbind()
        self.half_a = torch.empty(n.rows, n.v, device=device)  # the memory's part of `a`
        self.x, self.q = make(n.rows, 3 * n.u), make(n.rows, n.d)
        self.of_hidden = launch("hidden", n.rows, BN=n.w, BK=common(n.w, n.u))
        self.parts = n.d // self.of_hidden["BN"]
        self.part = torch.empty(n.rows, self.parts, device=device)
        more = [len(w.prior_more) * n.u, len(w.actor_more) * n.v]
        self.prior_room, self.actor_room = (make(n.rows, max(1, size)) for size in more)
        self.k, self.of_policy = kernels("dream"), launch("policy", n.rows, BN=n.v)
        self._make_actions(chosen, device)

    def _make_actions(self, chosen: Chosen | None, device: torch.device) -> None:
        n, none = self.n, self.policy
        self.out = Output(*[none] * len(Output._fields)) if chosen is None else chosen.output
        actions = Actions(1, False, 0.0, 0.0, 0.0) if chosen is None else chosen.actions
        self.chance = [none] * (n.steps + 1)
        if chosen is not None:
            self.chance = actions.noise(n.steps + 1, n.rows, device)
        one = actions.is_class
        shape = (n.rows, n.steps + 1, *(() if one else (actions.num,)))
        self.action = torch.empty(shape, dtype=torch.int64 if one else None, device=device)
        self.of_policy |= {
            "KIND": 0 if chosen is None else 1 + one, "num": actions.num,
            "NUM": max(TILE, power(actions.num)), "low": actions.low, "high": actions.high,
            "unimix": actions.unimix,
        }  # fmt: skip

    def build(self, noise: Tensor) -> bool:
        """Build the kernels of the first states and so of all; return whether to dream."""
        kernels_of_dream, steps = self.k, self.n.steps

        def launch(k: Any) -> None:
            self.k = k
            for i in range(min(2, steps + 1)):
                self.read_memory(i, first=i == 0, last=i == steps)
                if i:
                    self.sample(i, noise[0])
                self.read_sample(i, last=i == steps)
                self.act(i)
                if i < steps:
                    self.mix(i)
                    self.move(i)

        try:
            return ahead.build(kernels_of_dream, launch)
        finally:
            self.k = kernels_of_dream

    def h(self, i: int) -> Tensor:
        return self.state[:, i, : self.n.d]

    def z(self, i: int) -> Tensor:
        return self.state[:, i, self.n.d :]

    def read_memory(self, i: int, first: bool, last: bool) -> None:
        """Compute every layer that reads the memory: not the prior's of the first state."""
        w, n = self.w, self.n
        options = launch("memory", n.rows, BN=common(n.u, n.v), BK=n.d)
        cols, actor = n.u // options["BN"], n.v // options["BN"]
        skip = cols if first else 0
        tiles = cols + actor + (0 if last else cols) - skip
        self.k.dream_memory_kernel[(tiles, -(-n.rows // options["BM"]))](
            self.h(i), n.stride, w.prior, w.prior_bias, self.o, w.actor, self.half_a, w.memory,
            w.memory_bias, self.p0, n.rows, skip, d=n.d, u=n.u, v=n.v,
            wa_stride=w.actor.stride(0), **options,
        )  # fmt: skip

    def sample(self, i: int, noise: Tensor) -> None:
        """Sample the stochastic part of state `i` from the prior."""
        w, n, classes = self.w, self.n, max(2, power(self.n.c))
        options = launch("prior", n.rows, BN=n.u)
        at_once = max(1, min(power(n.s), TUNING["prior"].cols // classes))
        at_once = max(at_once, -(-TILE // classes))
        self.k.dream_prior_kernel[(-(-n.rows // options["BM"]),)](
            self.o, w.prior_more, w.prior_more_bias, w.prior_scale, self.prior_room, w.logits,
            w.logits_bias, noise, self.z(i), n.stride, n.rows, n.unimix, u=n.u, U=power(n.u),
            LAYERS=len(w.prior_more), S=n.s, C=n.c, CP=classes, AT_ONCE=at_once, **options,
        )  # fmt: skip

    def read_sample(self, i: int, last: bool) -> None:
        """Compute every layer that reads the stochastic part."""
        w, n = self.w, self.n
        options = launch("stoch", n.rows, BN=common(n.u, n.v), BK=n.z)
        tiles = (n.v + (0 if last else n.u)) // options["BN"]
        self.k.dream_stoch_kernel[(tiles, -(-n.rows // options["BM"]))](
            self.z(i), n.stride, w.actor[:, n.d :], w.actor_bias, self.half_a, self.a, w.stoch,
            w.stoch_bias, self.p1, n.rows, z_dim=n.z, u=n.u, v=n.v,
            wa_stride=w.actor.stride(0), **options,
        )  # fmt: skip

    def act(self, i: int) -> Tensor:
        """Sample the action in state `i`, or return the actor's last hidden layer.

        Also activate what the cell reads.
        """
        w, n, out, options = self.w, self.n, self.out, self.of_policy
        action = self.action[:, i]
        self.k.dream_policy_kernel[(-(-n.rows // options["BM"]),)](
            self.a, w.actor_more, w.actor_more_bias, w.actor_scale, self.actor_room, self.policy,
            self.p0, w.memory_scale, self.p1, w.stoch_scale, self.x, out.mean, out.mean_bias,
            out.spread, out.spread_bias, self.chance[i], action, action.stride(0), out.act,
            out.act_bias, out.act_scale, rows=n.rows, u=n.u, U=power(n.u), v=n.v, V=power(n.v),
            LAYERS=len(w.actor_more), **options,
        )  # fmt: skip
        return self.policy

    def mix(self, i: int) -> None:
        """Compute the cell's hidden layer in state `i`."""
        w, n, options = self.w, self.n, self.of_hidden
        self.k.dream_hidden_kernel[(n.d // options["BN"], -(-n.rows // options["BM"]))](
            self.h(i), n.stride, self.x, w.hidden, w.hidden_bias, self.q, self.part, n.rows,
            d=n.d, w=n.w, u=n.u, **options,
        )  # fmt: skip

    def move(self, i: int) -> None:
        """Compute the memory of state `i + 1`."""
        w, n = self.w, self.n
        options = launch("gates", n.rows, BN=n.w, BK=n.w)
        self.k.dream_gates_kernel[(n.d // options["BN"], -(-n.rows // options["BM"]))](
            self.h(i), n.stride, self.q, self.part, w.hidden_scale, w.gates, w.gates_bias,
            self.h(i + 1), n.rows, d=n.d, w=n.w, parts=self.parts, PARTS=power(self.parts),
            **options,
        )  # fmt: skip
