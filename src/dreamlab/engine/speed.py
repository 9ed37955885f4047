"""How fast a run trains: frames and updates per second, evaluations and reports left out.

Beside them the seconds of the whole run, by the clock and of the processor.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager


def cpu_seconds() -> float:
    """Return what this process has computed so far, with the processes that it waited for.

    All threads count. Processes that still run do not (on Windows no other process does).
    """
    return sum(os.times()[:4])


class Speed:
    """Measures between records; where nothing was trained since the last one, its rates hold."""

    def __init__(self) -> None:
        self.wall_s, self.cpu_s = 0.0, 0.0
        self.rates: dict[str, float] = {"time/frames_per_s": 0.0, "time/updates_per_s": 0.0}
        self.restart(0, 0)

    def restart(self, frames: int, updates: int) -> None:
        """Start to measure here."""
        self.mark, self.away_s = (time.monotonic(), frames, updates), 0.0
        self.cpu_mark = cpu_seconds()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out of the rates what happens meanwhile; it counts as time of the run."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.away_s += time.monotonic() - began

    def record(self, frames: int, updates: int) -> dict[str, float]:
        """Return the rates since the last record, and the seconds of the whole run."""
        then, frames_then, updates_then = self.mark
        elapsed = max(time.monotonic() - then, 1e-9)
        trained = max(elapsed - self.away_s, 1e-9)
        if frames > frames_then or updates > updates_then:
            self.rates = {
                "time/frames_per_s": (frames - frames_then) / trained,
                "time/updates_per_s": (updates - updates_then) / trained,
            }
        self.wall_s += elapsed
        self.cpu_s += cpu_seconds() - self.cpu_mark
        self.restart(frames, updates)
        return {**self.rates, "time/wall_s": self.wall_s, "time/cpu_s": self.cpu_s}
