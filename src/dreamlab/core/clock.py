"""The time axis of progress, records, checkpoints, videos and comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Unit = Literal["frames", "updates"]
CLOCK = "clock"
"""Key of a record's position on the axis, for runs counted in updates."""

LATE = "late"
"""Marks a record that was measured late, for an earlier moment than the records before it."""


@dataclass
class Counters:
    """Progress of a run."""

    env_frames: int = 0
    decisions: int = 0
    updates: int = 0
    episodes: int = 0
    cycles: int = 0


@dataclass(frozen=True)
class Clock:
    """The count of one unit: env frames if a run collects, else updates."""

    unit: Unit = "frames"
    count: int = 0
    updates: int = 0
    moving: bool = True
    """False in a phase without collection, in a run counted in frames."""
    alone: bool = True
    """Whether the count alone identifies the point: no update since then without collecting."""

    @property
    def name(self) -> str:
        """Return a unique name for this moment; names sort by time."""
        return f"{self.count:012d}" if self.alone else f"{self.count:012d}_{self.updates:012d}"

    @property
    def words(self) -> str:
        """Return this moment in human-readable form."""
        return f"{self.count:,} {self.unit}"

    def record(self) -> dict[str, int]:
        """Return the fields that place a record on the axis of its run, besides its counters."""
        return {CLOCK: self.count} if self.unit == "updates" else {}


def moment_of(record: Mapping[str, Any]) -> int:
    """Return the position of a metrics record on the axis of its run."""
    return int(record.get(CLOCK, record["env_frames"]))


def unit_of(record: Mapping[str, Any]) -> Unit:
    """Return the unit of a record's axis."""
    return "updates" if CLOCK in record else "frames"


def axis_name(unit: Unit) -> str:
    """Return the label of an axis of this unit."""
    return "env frames" if unit == "frames" else "updates"
