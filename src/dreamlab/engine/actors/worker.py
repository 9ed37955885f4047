"""An actor, independent of where it runs: collects with the newest weights, and sends blocks."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from dreamlab.core.types import Decision, Step
from dreamlab.engine.actors.blocks import Block, BlockStore
from dreamlab.engine.actors.moments import Seen, take_statistics
from dreamlab.engine.actors.weights import Snapshot, adopt
from dreamlab.engine.collector import Collected, Collector

RETRY_S = 0.001
"""Interval of attempts to read the first weights."""


@dataclass(frozen=True)
class Request:
    """A request for a block."""

    ticks: int
    seconds: float
    random_actions: bool


@dataclass(frozen=True)
class Failure:
    """An actor's own error, such as an environment's: the run cannot continue."""

    text: str
    kind: str


class Kept(BlockStore):
    """A block that also records normalization moments."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self.seen = seen

    def add(self, step: Step, decision: Decision) -> None:
        super().add(step, decision)
        self.seen.add(step)


class Worker:
    """One actor: environments, a copy of the policy on the CPU, and the running episodes."""

    def __init__(
        self, collector: Collector, computing: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self.collector, self.computing = collector, computing
        self.version = -1
        self.store = Kept(Seen(collector.envs))

    def adopt(self, snapshot: Snapshot) -> None:
        """Act with these weights from the next tick on."""
        adopt(self.collector.workflow, snapshot)
        take_statistics(self.collector.envs.normalizer, snapshot.statistics)
        self.version = snapshot.version

    def collect(
        self, request: Request, newer: Callable[[], Snapshot | None], stopped: Callable[[], bool]
    ) -> Block | None:
        """Return the requested block; None if stopped before the first tick.

        Checks for newer weights before each tick; waits for the first ones.
        """
        began, ended = time.monotonic(), list[Collected]()
        while len(self.store) < request.ticks and not stopped():
            if (snapshot := newer()) is not None:
                self.adopt(snapshot)
            elif self.version < 0:  # the writer was faster than the reader, and there are no others
                time.sleep(RETRY_S)
                continue
            with self.computing():
                done = self.collector.collect(1, self.store, request.random_actions)
            ended.append(done)
            if time.monotonic() - began >= request.seconds:
                break
        if not len(self.store):
            return None
        moments, spent = self.store.seen.pop(), time.monotonic() - began
        return Block(self.store.pop(), ended, self.version, moments, spent)

    def begin_anew(self) -> None:
        """Drop the running episodes, and accept any weights next."""
        self.version = -1
        self.store = Kept(Seen(self.collector.envs))
        self.collector.begin_anew()

    def close(self) -> None:
        envs: Any = self.collector.envs
        envs.close()
