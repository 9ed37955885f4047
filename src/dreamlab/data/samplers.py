"""Which windows a replay samples. A start has an id, `tick * num_envs + env`, never reused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dreamlab.core.config import Part, part
from dreamlab.core.errors import LabError
from dreamlab.core.limits import Natural, NonNegative, Positive, PositiveInt, Share
from dreamlab.core.types import Array

MAX_TRIES = 100


@dataclass(frozen=True)
class Window:
    """The starts that exist now: ids from `oldest` (included) to `newest` (excluded)."""

    oldest: int
    newest: int
    valid: Callable[[Array], Array] | None = None
    """Return which starts may be sampled (None: all)."""
    num_envs: int = 1
    length: int = 1
    """Steps of a window."""

    def ids(self) -> Array:
        """Return every start that may be sampled."""
        ids = np.arange(self.oldest, self.newest)
        ids = ids if self.valid is None else ids[self.valid(ids)]
        if not ids.size:
            raise LabError(
                "replay: no valid window is stored; the episodes are shorter than the window. "
                "Use windows=across, or a shorter length."
            )
        return ids


Draw = tuple[Array, Array | None]
Former = tuple[dict[str, Any], Window]
"""The state of another process's sampler, and the starts that existed for it."""


class Sampler(Protocol):
    """Chooses starts, and may learn from what comes back."""

    learns: bool
    """Whether `insert` has an effect; checked at every stored step."""
    prioritises: bool
    """Whether `update` has an effect."""

    def draw(self, window: Window, num: int, rng: np.random.Generator) -> Draw:
        """Return `num` ids of valid starts and their importance weights, if it has any.

        A weight is 1 where the start is sampled as often as a uniform sampler would sample it.
        """
        ...

    def insert(self, ids: Array, usable: Array) -> None:
        """Learn that the windows starting at `ids` are complete; unusable ones are never drawn."""
        ...

    def update(self, ids: Array, priority: Array) -> None:
        """Learn the priorities of starts sampled before."""
        ...

    def take_over(self, window: Window, former: Sequence[Former]) -> list[str]:
        """Begin with steps that others had stored; return what is lost of what they knew."""
        ...

    def get_state(self) -> dict[str, Any]: ...

    def set_state(self, state: dict[str, Any]) -> None: ...


class _Stateless:
    """A sampler that learns nothing."""

    learns = False
    prioritises = False

    def insert(self, ids: Array, usable: Array) -> None: ...

    def update(self, ids: Array, priority: Array) -> None: ...

    def take_over(self, window: Window, former: Sequence[Former]) -> list[str]:
        return []

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None: ...


def _retry(draw: Callable[[int], Array], window: Window, num: int) -> tuple[Array, Array]:
    """Sample until `num` starts are valid; return them and the places that never were."""
    ids, bad = draw(num), np.zeros(0, np.int64)
    if window.valid is None:
        return ids, bad
    for _ in range(MAX_TRIES):
        bad = np.flatnonzero(~window.valid(ids))
        if not bad.size:
            break
        ids[bad] = draw(bad.size)
    return ids, bad


@dataclass(frozen=True)
class UniformConfig:
    """Has no options."""


class Uniform(_Stateless):
    """Every start equally often."""

    Config = UniformConfig

    def __init__(self, config: UniformConfig, capacity: int) -> None: ...

    def draw(self, window: Window, num: int, rng: np.random.Generator) -> Draw:
        ids, bad = _retry(lambda n: rng.integers(window.oldest, window.newest, n), window, num)
        if bad.size:  # valid starts are so rare that listing them is the way to find one
            ids[bad] = rng.choice(window.ids(), bad.size)
        return ids, None


@dataclass(frozen=True)
class RecencyConfig:
    """Probability falls as a power of the age."""

    exponent: NonNegative = 1.0


class Recency(_Stateless):
    """Recent starts more often: the probability of age a is proportional to a^-exponent.

    The age counts ticks, and is 1 for the newest complete window. Environments are equally likely.
    """

    Config = RecencyConfig

    def __init__(self, config: RecencyConfig, capacity: int) -> None:
        self.weights = np.arange(1, capacity + 1, dtype=np.float64) ** -config.exponent
        self.sums = np.cumsum(self.weights)

    def draw(self, window: Window, num: int, rng: np.random.Generator) -> Draw:
        ticks = (window.newest - window.oldest) // window.num_envs

        def choose(n: int) -> Array:
            age = np.searchsorted(self.sums[:ticks], rng.random(n) * self.sums[ticks - 1], "right")
            first = window.newest - np.minimum(age + 1, ticks) * window.num_envs
            return first + rng.integers(0, window.num_envs, n)

        ids, bad = _retry(choose, window, num)
        if bad.size:
            every = window.ids()
            weight = self.weights[(window.newest - 1 - every) // window.num_envs]
            ids[bad] = rng.choice(every, bad.size, p=weight / weight.sum())
        return ids, None


@dataclass(frozen=True)
class PrioritisedConfig:
    """Prioritized experience replay (Schaul et al. 2016)."""

    exponent: NonNegative = 0.6
    beta: Share = 0.4
    """Initial exponent of the importance weights."""
    beta_final: Share = 1.0
    beta_draws: PositiveInt = 100_000
    """Batches over which `beta` is annealed to `beta_final`."""
    eps: Positive = 1e-6
    """Added to every priority, so that starts with zero error can be sampled again."""


class Prioritised:
    """A start as often as its last error was large; new ones have the largest priority so far."""

    Config = PrioritisedConfig
    learns = True
    prioritises = True

    def __init__(self, config: PrioritisedConfig, capacity: int) -> None:
        self.config = config
        self.capacity = capacity
        self.tree = SumTree(capacity)
        self.ids = np.full(capacity, -1, np.int64)  # -1: nothing to sample in this row
        self.top, self.draws, self.usable = 1.0, 0, 0

    def insert(self, ids: Array, usable: Array) -> None:
        for_row = ids % self.capacity
        self.usable -= int(np.count_nonzero(self.ids[for_row] >= 0))
        self.ids[for_row] = np.where(usable, ids, -1)
        self.usable += int(np.count_nonzero(usable))
        self.tree.set(for_row, np.where(usable, self.top, 0.0))

    def draw(self, window: Window, num: int, rng: np.random.Generator) -> Draw:
        c, total = self.config, self.tree.total
        if total <= 0:
            window.ids()  # raises: there is none
        strata = (np.arange(num) + rng.random(num)) / num
        rows = self.tree.find(strata * total)
        beta = c.beta + (c.beta_final - c.beta) * min(1.0, self.draws / c.beta_draws)
        self.draws += 1
        return self.ids[rows], (self.tree.get(rows) / total * self.usable) ** -beta

    def update(self, ids: Array, priority: Array) -> None:
        """Learn priorities; starts overwritten meanwhile and values not finite are ignored."""
        rows = ids % self.capacity
        live = (self.ids[rows] == ids) & np.isfinite(priority)
        size = np.abs(priority[live].astype(np.float64))
        value = (size + self.config.eps) ** self.config.exponent
        self.tree.set(rows[live], value)
        if value.size:
            self.top = max(self.top, float(value.max()))

    def take_over(self, window: Window, former: Sequence[Former]) -> list[str]:
        return ["priorities"]

    def get_state(self) -> dict[str, Any]:
        leaves = self.tree.leaves().copy()
        return {"tree": leaves, "ids": self.ids.copy(), "top": self.top, "draws": self.draws}

    def set_state(self, state: dict[str, Any]) -> None:
        self.ids = np.array(state["ids"])
        self.usable = int(np.count_nonzero(self.ids >= 0))
        self.tree.set(np.arange(self.capacity), np.array(state["tree"]))
        self.top, self.draws = float(state["top"]), int(state["draws"])


class SumTree:
    """Sums of non-negative numbers in a binary tree: find by cumulative sum in log time.

    A sum is always that of its two children as they are now, so it depends on the leaves alone and
    not on the order in which they were set.
    """

    def __init__(self, capacity: int) -> None:
        self.depth = max(1, int(np.ceil(np.log2(capacity))))
        self.size = 1 << self.depth
        self.capacity = capacity
        self.nodes = np.zeros(2 * self.size)

    @property
    def total(self) -> float:
        return float(self.nodes[1])

    def leaves(self) -> Array:
        return self.nodes[self.size : self.size + self.capacity]

    def get(self, rows: Array) -> Array:
        return self.nodes[self.size + rows]

    def set(self, rows: Array, values: Array) -> None:
        """Change leaves and every sum above them; of a row named twice, the last value stays."""
        at = self.size + rows
        self.nodes[at] = values
        for _ in range(self.depth):
            at = np.unique(at >> 1) if at.size > 64 else at >> 1
            self.nodes[at] = self.nodes[2 * at] + self.nodes[2 * at + 1]

    def find(self, sums: Array) -> Array:
        """Return the first row at which the running sum exceeds each of `sums`; never a zero."""
        at, rest = np.ones(len(sums), np.int64), sums.copy()
        for _ in range(self.depth):
            at *= 2
            left = self.nodes[at]
            # rounding may leave a rest that no leaf covers: it must not lead into an empty branch
            right = (rest >= left) & (self.nodes[at + 1] > 0)
            rest -= np.where(right, left, 0.0)
            at += right
        return at - self.size


@dataclass(frozen=True)
class MixtureConfig:
    """Shares of each sampler; they need not sum to one."""

    uniform: NonNegative = 1.0
    prioritised: NonNegative = 0.0
    recency: NonNegative = 0.0
    prioritised_sampler: Part = part("prioritised", home="dreamlab.data", kind=Sampler)
    recency_sampler: Part = part("recency", home="dreamlab.data", kind=Sampler)

    def __post_init__(self) -> None:
        shares = (self.uniform, self.prioritised, self.recency)
        if not any(shares):
            raise ValueError("uniform, prioritised and recency are all 0: nothing can be sampled")


class Mixture:
    """Every window from one of several samplers, chosen by their shares."""

    Config = MixtureConfig

    def __init__(self, config: MixtureConfig, capacity: int) -> None:
        shares = {k: getattr(config, k) for k in ("uniform", "prioritised", "recency")}
        parts = {
            "uniform": Part.load("uniform", home="dreamlab.data", kind=Sampler),
            "prioritised": config.prioritised_sampler,
            "recency": config.recency_sampler,
        }
        self.members: dict[str, Sampler] = {
            k: parts[k].build(capacity) for k, share in shares.items() if share > 0
        }
        self.shares = np.array([shares[k] for k in self.members]) / sum(shares.values())
        self.learns = any(s.learns for s in self.members.values())
        self.prioritises = any(s.prioritises for s in self.members.values())

    def draw(self, window: Window, num: int, rng: np.random.Generator) -> Draw:
        counts = rng.multinomial(num, self.shares)
        ids, weights = [], []
        for count, sampler in zip(counts, self.members.values(), strict=True):
            if count:
                drawn, weight = sampler.draw(window, int(count), rng)
                ids.append(drawn)
                weights.append(np.ones(count) if weight is None else weight)
        has_weights = "prioritised" in self.members
        return np.concatenate(ids), np.concatenate(weights) if has_weights else None

    def insert(self, ids: Array, usable: Array) -> None:
        for sampler in self.members.values():
            sampler.insert(ids, usable)

    def update(self, ids: Array, priority: Array) -> None:
        for sampler in self.members.values():
            sampler.update(ids, priority)

    def take_over(self, window: Window, former: Sequence[Former]) -> list[str]:
        every = self.members.items()
        lost = [s.take_over(window, [(f[k], w) for f, w in former]) for k, s in every]
        return list(dict.fromkeys(x for found in lost for x in found))

    def get_state(self) -> dict[str, Any]:
        return {k: s.get_state() for k, s in self.members.items()}

    def set_state(self, state: dict[str, Any]) -> None:
        for k, s in self.members.items():
            s.set_state(state[k])


@dataclass(frozen=True)
class OnlineConfig:
    """Fresh windows first, the rest by another sampler."""

    base: Part = part("uniform", home="dreamlab.data", kind=Sampler)
    every: Natural = 0
    """Ticks between fresh windows of a stream; 0: their length, so that they are contiguous."""


class Online:
    """Every step once soon after it was stored, as DreamerV3 does; beyond that, the base sampler.

    tick      0  1  2  3  4  5  6  7  8  9      two environments, windows of length 4
    queue     0  .  .  .  8  .  .  .  .  .      number 0, number 2: starts in stream 0
              1  .  .  .  9  .  .  .  .  .      number 1, number 3: starts in stream 1

    What waits follows from the streams alone, so the queue is the number of its next window. One
    that is overwritten before its turn, or that may not be sampled, loses it.
    """

    Config = OnlineConfig

    def __init__(self, config: OnlineConfig, capacity: int) -> None:
        self.every = config.every
        self.base: Sampler = config.base.build(capacity)
        self.learns, self.prioritises = self.base.learns, self.base.prioritises
        self.next = 0

    def draw(self, window: Window, num: int, rng: np.random.Generator) -> Draw:
        ids, weight = self.base.draw(window, num, rng)
        fresh = self._pop(window, num)
        if fresh.size:  # a base may sample in layers: any of them makes room, not always the lowest
            places = rng.choice(num, fresh.size, replace=False)
            ids[places] = fresh
            if weight is not None:
                weight[places] = 1.0
        return ids, weight

    def _pop(self, window: Window, num: int) -> Array:
        """Return up to `num` starts that wait, the oldest first."""
        num_envs = window.num_envs
        stride, first, end = self._queue(window)
        numbers = np.arange(max(self.next, first), end)
        ids = numbers // num_envs * stride + numbers % num_envs
        if window.valid is not None:
            usable = window.valid(ids)
            numbers, ids = numbers[usable], ids[usable]
        self.next = end if len(ids) < num else int(numbers[num - 1]) + 1
        return ids[:num]

    def _queue(self, window: Window) -> tuple[int, int, int]:
        """Return ids per round, and the numbers of the oldest window and of the next to come."""
        stride = (self.every or window.length) * window.num_envs
        first, end = (-(-x // stride) * window.num_envs for x in (window.oldest, window.newest))
        return stride, first, end

    def insert(self, ids: Array, usable: Array) -> None:
        self.base.insert(ids, usable)

    def update(self, ids: Array, priority: Array) -> None:
        self.base.update(ids, priority)

    def take_over(self, window: Window, former: Sequence[Former]) -> list[str]:
        """Count all windows there are as seen: most were, and none shall come twice."""
        *_, self.next = self._queue(window)
        lost = self.base.take_over(window, [(f["base"], w) for f, w in former])
        waited = any(max(int(f["next"]), (q := self._queue(w))[1]) < q[2] for f, w in former)
        return [*lost, *(["fresh windows that were not sampled yet"] if waited else [])]

    def get_state(self) -> dict[str, Any]:
        return {"next": self.next, "base": self.base.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        self.next = int(state["next"])
        self.base.set_state(state["base"])
