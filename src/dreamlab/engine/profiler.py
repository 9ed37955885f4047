"""A torch.profiler trace of some updates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dreamlab.core.types import Batch, Metrics
from dreamlab.engine.observer import Observer


class Profiler(Observer):
    """Records `updates` updates after the first of this process, which warms things up."""

    def __init__(self, updates: int, path: Path, say: Callable[[str], None]) -> None:
        self.updates, self.path, self.say = updates, path, say
        self.seen = 0
        self.running = False
        self.profile: Any = None

    @property
    def done(self) -> bool:
        """Return whether everything that was to be recorded is."""
        return self.seen > self.updates

    def updated(self, batch: Batch, metrics: Metrics) -> None:
        self.seen += 1
        if self.seen == 1:
            self.profile = torch.profiler.profile()
            self.profile.start()
            self.running = True
        elif self.running and self.done:
            self._stop(write=True)

    def finished(self, status: str) -> None:
        """Write what there is, if fewer updates came than were to be recorded."""
        if self.running:
            self._stop(write=status != "failed" and self.seen > 1)

    def _stop(self, write: bool) -> None:
        self.running = False
        self.profile.stop()
        if write:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.profile.export_chrome_trace(str(self.path))
            self.say(f"profile of {self.seen - 1} updates: {self.path}")

    def operations(self, num: int) -> list[tuple[str, float]]:
        """Return the most expensive operations recorded, with their share."""
        if self.profile is None:
            return []
        events = sorted(self.profile.key_averages(), key=lambda e: -e.self_cpu_time_total)
        total = sum(e.self_cpu_time_total for e in events) or 1.0
        return [(e.key, e.self_cpu_time_total / total) for e in events[:num]]
