"""When something is due that happens every so often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dreamlab.core.clock import Clock
from dreamlab.core.limits import Natural


@dataclass(frozen=True)
class EveryConfig:
    """How often something happens; 0 is never."""

    every_frames: Natural = 0
    """Interval in env frames, in phases that collect."""
    every_updates: Natural = 0
    """Interval in updates, in phases that do not."""


class Every:
    """Fires once whenever a count passes the next multiple of `period`; 0 never fires."""

    def __init__(self, period: int) -> None:
        self.period, self.last = period, 0

    def passed(self, count: int) -> bool:
        """Return whether it would fire."""
        return self.period > 0 and count // self.period > self.last // self.period


class Due:
    """Fires by frames in phases that collect them, by updates in those that do not."""

    def __init__(self, config: EveryConfig) -> None:
        self.frames, self.updates = Every(config.every_frames), Every(config.every_updates)

    def passed(self, clock: Clock) -> bool:
        """Return whether it would fire."""
        if clock.unit == "frames" and clock.moving:
            self.updates.last = clock.updates  # what was due in between does not fire later
            return self.frames.passed(clock.count)
        return self.updates.passed(clock.updates)

    def done(self, clock: Clock) -> None:
        """Take note that what was due is done."""
        if clock.unit == "frames":
            self.frames.last = clock.count
        self.updates.last = clock.updates

    def __call__(self, clock: Clock) -> bool:
        """Return whether it fires now, and take note of it."""
        fires = self.passed(clock)
        if fires:
            self.done(clock)
        return fires

    def get_state(self) -> list[int]:
        return [self.frames.last, self.updates.last]

    def set_state(self, state: Any) -> None:
        """Continue from saved counts; older checkpoints have that of frames only."""
        self.frames.last, self.updates.last = state if isinstance(state, list) else (state, 0)
