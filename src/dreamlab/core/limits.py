"""Limits of options, declared with their defaults: `gamma: Share = 0.99`.

The strict loader checks them before anything is allocated. A config declares limits with one of the
names below, or with its own `Annotated[int, Range(2)]`.
"""

from __future__ import annotations

import math
from collections.abc import Sized
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, runtime_checkable

from dreamlab.core.errors import ConfigError

LARGEST_INT = 2**63 - 1
LARGEST_FLOAT = 3.4e38  # weights are float32: larger values overflow to infinity
SHOWN_CHARACTERS = 60


@runtime_checkable
class Limit(Protocol):
    """A constraint on a value beyond its type."""

    def check(self, value: Any, where: str) -> None:
        """Raise a ConfigError that names the option, the limit and the value."""
        ...


@dataclass(frozen=True)
class Range:
    """Finite numbers from `low` to `high`; open ends are excluded."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False

    def check(self, value: float, where: str) -> None:
        """Raise if the number is out of range."""
        most = LARGEST_INT if isinstance(value, int) else LARGEST_FLOAT
        if not abs(value) <= most:  # written so that nan fails too
            bits = "a 64-bit integer" if isinstance(value, int) else "a finite number"
            raise ConfigError(f"{where}: must be {bits}, got {shown(value)}")
        below = value <= self.low if self.open_low else value < self.low
        above = value >= self.high if self.open_high else value > self.high
        if below or above:
            raise ConfigError(f"{where}: must be {self.text()}, got {shown(value)}")

    def text(self) -> str:
        """Return the limits in words."""
        low = f"{'above' if self.open_low else 'at least'} {self.low:.12g}"
        high = f"{'below' if self.open_high else 'at most'} {self.high:.12g}"
        if math.isinf(self.high):
            return low
        if math.isinf(self.low):
            return high
        if self.open_low or self.open_high:
            return f"{low} and {high}"
        return f"between {self.low:.12g} and {self.high:.12g}"


@dataclass(frozen=True)
class Items:
    """Minimum length of a list."""

    least: int = 1

    def check(self, value: Sized, where: str) -> None:
        """Raise if the list is too short."""
        if len(value) < self.least:
            raise ConfigError(f"{where}: must have at least {self.least} value, got {value!r}")


def shown(value: Any) -> str:
    """Format a value for an error: on one line, truncated if long."""
    if isinstance(value, int) and abs(value) > LARGEST_INT:
        return f"a {value.bit_length()}-bit number"
    text = f"{value:.12g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


AnyInt = Annotated[int, Range()]
Natural = Annotated[int, Range(0)]
PositiveInt = Annotated[int, Range(1)]
Seed = Annotated[int, Range(0, 2**32 - 1)]
EVAL_SEED = 20_000
"""Base seed of the environments of a requested evaluation, for new episodes."""
Width = Annotated[int, Range(1, 65_536)]
"""Units of a layer; a larger weight matrix would not fit into memory."""
Depth = Annotated[int, Range(0, 1_000)]
"""Layers of a network."""
Side = Annotated[int, Range(1, 4_096)]
"""Height or width of an image, in pixels."""

Finite = Annotated[float, Range()]
NonNegative = Annotated[float, Range(0)]
Positive = Annotated[float, Range(0, open_low=True)]
Share = Annotated[float, Range(0, 1)]
SomeShare = Annotated[float, Range(0, 1, open_low=True)]
"""A fraction above zero."""
Decay = Annotated[float, Range(0, 1, open_high=True)]
"""A fraction below one."""

__all__ = [
    "AnyInt", "Decay", "Depth", "Finite", "Items", "Limit", "Natural", "NonNegative",
    "Positive", "PositiveInt", "Range", "Seed", "Share", "Side", "SomeShare", "Width", "shown",
]  # fmt: skip
