"""Callbacks of the training loop: they see what it does and may stop it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dreamlab.core.types import Array, Batch, Metrics, Step

if TYPE_CHECKING:
    from dreamlab.engine.orchestrator import Orchestrator


class Observer:
    """A callback of the training loop; override the methods you need, the rest costs nothing.

    Registered by `loop.observers.add(observer)`. It changes neither batches nor weights nor random
    numbers: a run that is observed is the run that is not.
    """

    def started(self, loop: Orchestrator) -> None:
        """Called when the loop starts, new or resumed."""

    def before(self, action: str) -> None:
        """Called before a stage: `collect`, `update`, `evaluate` or `checkpoint`."""

    def after(self, action: str) -> None:
        """Called after a stage; counters include it, due logs and checkpoints come afterwards."""

    def ticked(self, step: Step, action: Array, ended: int) -> None:
        """See a tick: the step, the actions chosen there, how many episodes end with it."""

    def updated(self, batch: Batch, metrics: Metrics) -> None:
        """See an update: its batch, and what all its hooks reported."""

    def flushing(self, record: dict[str, float]) -> None:
        """Add to the fixed values of a record, which nothing averages, before it is written."""

    def flushed(self, record: dict[str, float]) -> None:
        """See a record of metrics that was written."""

    def saved(self, path: Path) -> None:
        """Called after a checkpoint."""

    def finished(self, status: str) -> None:
        """Called at the end: `finished`, `interrupted` or `failed`."""


class Observers:
    """The observers of a loop: for each event the methods that override it."""

    def __init__(self) -> None:
        self.all: list[Observer] = []
        self.started: list[Callable[[Orchestrator], None]] = []
        self.before: list[Callable[[str], None]] = []
        self.after: list[Callable[[str], None]] = []
        self.ticked: list[Callable[[Step, Array, int], None]] = []
        self.updated: list[Callable[[Batch, Metrics], None]] = []
        self.flushing: list[Callable[[dict[str, float]], None]] = []
        self.flushed: list[Callable[[dict[str, float]], None]] = []
        self.saved: list[Callable[[Path], None]] = []
        self.finished: list[Callable[[str], None]] = []

    def add(self, observer: Observer) -> None:
        """Register an observer for the events whose methods it overrides."""
        self.all.append(observer)
        for event in EVENTS:
            if getattr(type(observer), event) is not getattr(Observer, event):
                getattr(self, event).append(getattr(observer, event))


EVENTS = [name for name in vars(Observer) if not name.startswith("_")]


class StopWhen(Observer):
    """Ends a run, as Ctrl-C would, after the action that makes `done` true."""

    def __init__(self, done: Callable[[Orchestrator], bool]) -> None:
        self.done = done

    def started(self, loop: Orchestrator) -> None:
        self.loop = loop

    def after(self, action: str) -> None:
        if self.done(self.loop):
            self.loop.stop()


class StageTimes(Observer):
    """Adds up the seconds of each stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.began = 0.0

    def before(self, action: str) -> None:
        self.began = time.perf_counter()

    def after(self, action: str) -> None:
        spent = time.perf_counter() - self.began
        self.seconds[action] = self.seconds.get(action, 0.0) + spent
