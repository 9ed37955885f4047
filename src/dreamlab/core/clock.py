"""What progress, records, checkpoints, videos and comparisons are measured in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Unit = Literal["frames", "updates"]
CLOCK = "clock"
"""The key of a record's position on the axis, for runs counted in updates."""

LATE = "late"
"""In a record of an earlier moment than those before it: what took until now to measure."""


@dataclass
class Counters:
    """How far a run has come."""

    env_frames: int = 0
    decisions: int = 0
    updates: int = 0
    episodes: int = 0
    cycles: int = 0


@dataclass(frozen=True)
class Clock:
    """The count of one unit: env frames where a run collects, updates where it does not."""

    unit: Unit = "frames"
    count: int = 0
    updates: int = 0
    moving: bool = True
    """False in a phase without collection, in a run counted in frames."""
    alone: bool = True
    """The count alone identifies the point: no update happened since without collecting."""

    @property
    def name(self) -> str:
        """Return a name for this moment; names sort by time, and no two moments share one."""
        return f"{self.count:012d}" if self.alone else f"{self.count:012d}_{self.updates:012d}"

    @property
    def words(self) -> str:
        """Return this moment for a person."""
        return f"{self.count:,} {self.unit}"

    def record(self) -> dict[str, int]:
        """Return what a record needs beside its counters to be found on the axis of its run."""
        return {CLOCK: self.count} if self.unit == "updates" else {}


def moment_of(record: Mapping[str, Any]) -> int:
    """Return where a record of metrics lies on the axis of its run."""
    return int(record.get(CLOCK, record["env_frames"]))


def unit_of(record: Mapping[str, Any]) -> Unit:
    """Return the unit of a record's axis."""
    return "updates" if CLOCK in record else "frames"


def axis_name(unit: Unit) -> str:
    """Return what an axis of this unit is called."""
    return "env frames" if unit == "frames" else "updates"
