"""Which windows a replay draws. A start is named by its id: `tick * num_envs + env`, never reused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dreamlab.core.config import Part, part
from dreamlab.core.errors import LabError
from dreamlab.core.types import Array

MAX_TRIES = 1000


@dataclass(frozen=True)
class Window:
    """The starts that exist now: ids from `oldest` (included) to `newest` (excluded)."""

    oldest: int
    newest: int
    valid: Callable[[Array], Array] | None
    """Tells which starts may be drawn (None: all of them)."""


class Sampler(Protocol):
    """Chooses starts, and may learn from what comes back."""

    learns: bool
    """Whether `insert` does anything; asked at every step stored."""

    def draw(self, window: Window, num: int, rng: np.random.Generator) -> tuple[Array, Array | None]:
        """Return `num` ids of valid starts and their importance weights, if it has any."""
        ...

    def insert(self, ids: Array, usable: Array) -> None:
        """Learn that the windows starting at `ids` are complete now; unusable ones are never drawn."""
        ...

    def update(self, ids: Array, priority: Array) -> None:
        """Learn the priorities of starts drawn before."""
        ...

    def get_state(self) -> dict[str, Any]: ...

    def set_state(self, state: dict[str, Any]) -> None: ...


class _Stateless:
    """A sampler that learns nothing."""

    learns = False

    def insert(self, ids: Array, usable: Array) -> None: ...

    def update(self, ids: Array, priority: Array) -> None: ...

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None: ...


def _retry(draw: Callable[[int], Array], window: Window, num: int) -> Array:
    """Draw until `num` starts are valid."""
    ids = draw(num)
    if window.valid is None:
        return ids
    for _ in range(MAX_TRIES):
        bad = np.flatnonzero(~window.valid(ids))
        if bad.size == 0:
            return ids
        ids[bad] = draw(bad.size)
    raise LabError(
        f"replay: found no valid window in {MAX_TRIES} tries; episodes are shorter than the window "
        "length. Use windows=across, or a shorter length."
    )


@dataclass(frozen=True)
class UniformConfig:
    """Has no options."""


class Uniform(_Stateless):
    """Every start equally often."""

    Config = UniformConfig

    def __init__(self, config: UniformConfig, capacity: int) -> None: ...

    def draw(self, window: Window, num: int, rng: np.random.Generator) -> tuple[Array, Array | None]:
        return _retry(lambda n: rng.integers(window.oldest, window.newest, n), window, num), None


@dataclass(frozen=True)
class RecencyConfig:
    """Probability falls as a power of the age."""

    exponent: float = 1.0


class Recency(_Stateless):
    """Recent starts more often: the probability of age a is proportional to a^-exponent."""

    Config = RecencyConfig

    def __init__(self, config: RecencyConfig, capacity: int) -> None:
        self.exponent = config.exponent

    def draw(self, window: Window, num: int, rng: np.random.Generator) -> tuple[Array, Array | None]:
        count = window.newest - window.oldest
        return _retry(lambda n: window.newest - 1 - self._ages(n, count, rng), window, num), None

    def _ages(self, num: int, count: int, rng: np.random.Generator) -> Array:
        """Invert the distribution function of the (continuous) power law on [1, count + 1]."""
        u, top = rng.random(num), count + 1.0
        if abs(self.exponent - 1.0) < 1e-6:
            age = top**u
        else:
            e = 1.0 - self.exponent
            age = ((top**e - 1.0) * u + 1.0) ** (1.0 / e)
        return np.minimum(age.astype(np.int64) - 1, count - 1)


@dataclass(frozen=True)
class PrioritisedConfig:
    """Prioritised experience replay (Schaul et al. 2016)."""

    exponent: float = 0.6
    beta: float = 0.4
    """Strength of the importance weights at the beginning."""
    beta_final: float = 1.0
    beta_draws: int = 100_000
    """Batches after which `beta_final` is reached."""
    eps: float = 1e-6


class Prioritised:
    """A start as often as its last error was large; new ones first have the largest priority so far."""

    Config = PrioritisedConfig
    learns = True

    def __init__(self, config: PrioritisedConfig, capacity: int) -> None:
        self.config = config
        self.capacity = capacity
        self.tree = SumTree(capacity)
        self.ids = np.full(capacity, -1, np.int64)
        self.top, self.draws = 1.0, 0

    def insert(self, ids: Array, usable: Array) -> None:
        rows = ids % self.capacity
        self.ids[rows] = ids
        self.tree.set(rows, np.where(usable, self.top, 0.0))

    def draw(self, window: Window, num: int, rng: np.random.Generator) -> tuple[Array, Array | None]:
        c, total = self.config, self.tree.total
        if total <= 0:
            raise LabError("replay: no valid window to draw; episodes are shorter than the window length")
        strata = (np.arange(num) + rng.random(num)) / num
        rows = self.tree.find(np.minimum(strata * total, np.nextafter(total, 0)))
        ids = self.ids[rows]
        stale = (ids < window.oldest) | (ids >= window.newest) | (self.tree.get(rows) <= 0)
        if stale.any():  # rounding in the tree, or a start just overwritten
            fallback = _retry(lambda n: rng.integers(window.oldest, window.newest, n), window, int(stale.sum()))
            ids, rows = ids.copy(), rows.copy()
            ids[stale], rows[stale] = fallback, fallback % self.capacity
        beta = c.beta + (c.beta_final - c.beta) * min(1.0, self.draws / c.beta_draws)
        self.draws += 1
        probability = np.maximum(self.tree.get(rows) / total, 1e-12)
        weight = (probability * (window.newest - window.oldest)) ** -beta
        return ids, (weight / weight.max()).astype(np.float32)

    def update(self, ids: Array, priority: Array) -> None:
        rows = ids % self.capacity
        live = (self.ids[rows] == ids) & (self.tree.get(rows) > 0)
        value = (np.abs(priority[live].astype(np.float64)) + self.config.eps) ** self.config.exponent
        self.tree.set(rows[live], value)
        if value.size:
            self.top = max(self.top, float(value.max()))

    def get_state(self) -> dict[str, Any]:
        return {"tree": self.tree.leaves().copy(), "ids": self.ids.copy(), "top": self.top, "draws": self.draws}

    def set_state(self, state: dict[str, Any]) -> None:
        self.ids = np.array(state["ids"])
        self.tree.set(np.arange(self.capacity), np.array(state["tree"]))
        self.top, self.draws = float(state["top"]), int(state["draws"])


class SumTree:
    """Sums of non-negative numbers in a binary tree: find by cumulative sum in log time."""

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
        """Return the first row at which the running sum exceeds each of `sums`."""
        at, rest = np.ones(len(sums), np.int64), sums.copy()
        for _ in range(self.depth):
            at *= 2
            left = self.nodes[at]
            right = rest >= left
            rest -= np.where(right, left, 0.0)
            at += right
        return np.minimum(at - self.size, self.capacity - 1)


@dataclass(frozen=True)
class MixtureConfig:
    """Shares of each sampler; they need not sum to one."""

    uniform: float = 1.0
    prioritised: float = 0.0
    recency: float = 0.0
    prioritised_sampler: Part = part("prioritised", home="dreamlab.data")
    recency_sampler: Part = part("recency", home="dreamlab.data")


class Mixture:
    """Every window from one of several samplers, chosen by their shares."""

    Config = MixtureConfig
    learns = True

    def __init__(self, config: MixtureConfig, capacity: int) -> None:
        members: dict[str, tuple[float, Any]] = {
            "uniform": (config.uniform, Uniform(UniformConfig(), capacity)),
            "prioritised": (config.prioritised, config.prioritised_sampler.build(capacity)),
            "recency": (config.recency, config.recency_sampler.build(capacity)),
        }
        self.members = {k: s for k, (share, s) in members.items() if share > 0}
        shares = np.array([share for share, _ in members.values() if share > 0])
        self.shares = shares / shares.sum()

    def draw(self, window: Window, num: int, rng: np.random.Generator) -> tuple[Array, Array | None]:
        counts = rng.multinomial(num, self.shares)
        ids, weights = [], []
        for count, sampler in zip(counts, self.members.values(), strict=True):
            if count:
                drawn, weight = sampler.draw(window, int(count), rng)
                ids.append(drawn)
                weights.append(np.ones(count, np.float32) if weight is None else weight)
        has_weights = "prioritised" in self.members
        return np.concatenate(ids), np.concatenate(weights) if has_weights else None

    def insert(self, ids: Array, usable: Array) -> None:
        for sampler in self.members.values():
            sampler.insert(ids, usable)

    def update(self, ids: Array, priority: Array) -> None:
        for sampler in self.members.values():
            sampler.update(ids, priority)

    def get_state(self) -> dict[str, Any]:
        return {k: s.get_state() for k, s in self.members.items()}

    def set_state(self, state: dict[str, Any]) -> None:
        for k, s in self.members.items():
            s.set_state(state[k])
