"""A collector for remote actors: stores the steps that they collect."""

from __future__ import annotations

import math
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dreamlab.core import rng as random
from dreamlab.core.errors import EnvError, LabError
from dreamlab.core.types import Array, Batch, Metrics, Spec
from dreamlab.core.workflow import Workflow
from dreamlab.data.store import Store
from dreamlab.engine.actors.blocks import Block, Stream, side_by_side, tick_of
from dreamlab.engine.actors.moments import add_up
from dreamlab.engine.actors.options import ActorsConfig
from dreamlab.engine.actors.transport import Event, Gone, Transport
from dreamlab.engine.actors.weights import pack
from dreamlab.engine.actors.worker import Failure, Request
from dreamlab.engine.collector import Collected
from dreamlab.engine.observer import Observer, Observers
from dreamlab.envs.normalize import Normalizer

if TYPE_CHECKING:
    from dreamlab.engine.orchestrator import Orchestrator

LOOK_S = 0.25
"""Interval in which a waiting learner checks for a stop."""


@dataclass
class Streams:
    """The environments of all actors, as known to the learner."""

    num_envs: int
    spec: Spec
    frames_per_tick: int
    normalizer: Normalizer
    parallel: bool = True
    pending: bool = False


class RemoteCollector(Observer):
    """Merges the ticks of K actors, each with its own environments, into ticks of one vector.

    actor 0   t0 t1 t2 t3 | t4 t5 ...      a tick is stored when every actor has sent it;
    actor 1   t0 t1 t2    | t3 ...         the rest waits in its stream; with what it was asked
    store     t0 t1 t2                     for, these are at most `queue_ticks`

    The store is that of a vector of K * num_envs environments, and `collect` stores exactly the
    ticks that the phase requests: the train ratio holds as in the plain loop. The learner waits for
    slower actors, and actors wait for a slower learner.
    """

    def __init__(
        self,
        config: ActorsConfig,
        workflow: Workflow[Any],
        streams: Streams,
        transport: Transport,
        observers: Observers,
    ) -> None:
        self.config, self.workflow, self.envs = config, workflow, streams
        self.transport, self.observers = transport, observers
        self.streams = [Stream() for _ in range(config.num)]
        self.asked = [deque[int]() for _ in range(config.num)]
        """Ticks of each requested block, in order."""
        self.block_ticks = [config.block_ticks] * config.num
        """Ticks that each actor collects within `block_s`, by its last block."""
        self.random_actions = False
        self.deaths = [0] * config.num
        self.generation = 0
        self.weights = Published()
        self.waited_s, self.published_s, self.busy_s = 0.0, 0.0, 0.0
        self.since = time.monotonic()
        self.lost = 0
        self.loop: Orchestrator | None = None
        observers.add(self)

    # -- what the loop asks of a collector --------------------------------------------------------

    def collect(
        self, ticks: int, buffer: Store, random_actions: bool = False, fresh: bool = False
    ) -> Collected:
        """Store the next `ticks` of all actors; fewer if the run is stopped meanwhile."""
        assert not fresh, "it was checked"
        out, left = Collected(), ticks
        self.random_actions = random_actions
        self._take_arrived()
        while left:
            self._publish_if_due()
            self._ask()
            here = min(left, *(s.ticks for s in self.streams))
            if here:
                self._store(here, buffer, out)
                left -= here
            elif self._stopped():
                break
            else:
                self._wait()
        self._ask()  # actors continue while the learner computes
        out.decisions = (ticks - left) * self.envs.num_envs
        self.workflow.decided(out.decisions)
        return out

    def agree(self) -> None:
        """Do nothing: there is only one learner process."""

    def statistics(self) -> dict[str, Any]:
        """Return the normalization statistics of all actors."""
        return self.envs.normalizer.get_state()

    def get_state(self) -> dict[str, Any]:
        """Return the state for a restart: statistics, and the generation of random numbers.

        Running episodes, and steps that are not stored yet, are lost.
        """
        num = self.envs.num_envs
        rng = np.random.default_rng(self.generation)  # for a plain loop that continues from here
        return {
            "envs": {"envs": [], "normalizer": self.statistics()},
            "step": None,
            "state": self.workflow.initial_state(num),
            "returns": np.zeros(num),
            "lengths": np.zeros(num, np.int64),
            "rng": random.generator_state(rng),
            "generation": self.generation,
            "lost": self.lost,
        }

    def set_state(self, state: dict[str, Any]) -> list[int]:
        """Restore statistics; return all environments, which start new episodes."""
        self.envs.normalizer.set_state(state["envs"]["normalizer"])
        self.generation = int(state.get("generation", -1)) + 1
        self.lost = int(state.get("lost", 0))
        return list(range(self.envs.num_envs))

    # -- steps ------------------------------------------------------------------------------------

    def _store(self, ticks: int, buffer: Store, out: Collected) -> None:
        parts: list[dict[str, Array]] = []
        for stream in self.streams:
            rows, ended = stream.take(ticks)
            parts.append(rows)
            for done in ended:
                for name in ("returns", "lengths", "finals"):
                    getattr(out, name).extend(getattr(done, name))
        rows = side_by_side(parts)
        for tick in range(ticks):
            step, decision = tick_of(rows, tick)
            buffer.add(step, decision)
            ended = int(np.count_nonzero(step.is_last))
            for tell in self.observers.ticked:
                tell(step, decision.action.numpy(), ended)
            out.frames += (self.envs.num_envs - ended) * self.envs.frames_per_tick

    def _ask(self) -> None:
        """Request as many ticks from every actor as the learner has room for.

        A block that `block_s` cuts short has fewer ticks than were reserved for it: requests are
        as long as the last block suggests, so that few ticks of the queue are reserved in vain.
        """
        c = self.config
        for index, (stream, asked) in enumerate(zip(self.streams, self.asked, strict=True)):
            ticks = self.block_ticks[index]
            room = c.queue_ticks - stream.ticks - sum(asked)
            if blocks := max(room // ticks, 0):
                request = Request(ticks, c.block_s, self.random_actions)
                self.transport.ask(index, request, blocks)
                asked.extend([ticks] * blocks)

    def _take_arrived(self) -> None:
        """Take everything that has arrived, without waiting."""
        while events := self.transport.events(0.0):
            for index, event in events:
                self._take(index, event)

    def _wait(self) -> None:
        began = time.monotonic()
        until_due_s = self.weights.due_in_s(self.config.weights_age_s)
        for index, event in self.transport.events(min(LOOK_S, until_due_s)):
            self._take(index, event)
        self.waited_s += time.monotonic() - began

    def _take(self, index: int, event: Event) -> None:
        if isinstance(event, Failure):
            kind = EnvError if event.kind == "EnvError" else LabError
            raise kind(f"actor {index}: {event.text}")
        if isinstance(event, Gone):
            self._replace(index, event.why)
            return
        self.streams[index].put(event)
        self.asked[index].popleft()
        self.block_ticks[index] = self._ticks_in_time(event)
        self.deaths[index] = 0
        self.busy_s += event.busy_s
        add_up(self.envs.normalizer, event.moments)
        self.weights.arrived(event)

    def _ticks_in_time(self, block: Block) -> int:
        """Return how many ticks fit into a block, at the speed of this one."""
        fit = int(self.config.block_s * block.ticks / max(block.busy_s, 1e-9))
        return min(max(fit, 1), self.config.block_ticks)

    def _replace(self, index: int, why: str) -> None:
        """Replace an actor that died; its episodes are cut there.

        The first step of the new one starts an episode, so that no window spans both.
        """
        self.deaths[index] += 1
        self.lost += 1
        if self.deaths[index] > self.config.restarts:
            raise LabError(
                f"actor {index} died {self.deaths[index]} times without a step: {why}. "
                "The last checkpoint is complete; actors.restarts sets the number of attempts."
            )
        self.generation += 1
        if self.loop is not None:
            self.loop.parts.terminal.say(f"actor {index} died: {why}; starting another")
            self.loop.run_log.event("actor_replaced", actor=index, why=why, **self._now())
        self.asked[index].clear()
        self.transport.start(index, self.generation)

    def _now(self) -> dict[str, int]:
        return {} if self.loop is None else {"env_frames": self.loop.counters.env_frames}

    def _stopped(self) -> bool:
        return self.loop is not None and self.loop.stop_requested

    # -- what the loop tells its observers --------------------------------------------------------

    def started(self, loop: Orchestrator) -> None:
        """Start all actors with the current weights."""
        self.loop = loop
        try:
            self._publish()
            for index in range(self.config.num):
                self.transport.start(index, self.generation)
        except BaseException:
            self.transport.close()
            raise
        self.since = time.monotonic()

    def updated(self, batch: Batch, metrics: Metrics) -> None:
        """Send new weights if they are due; make room for what has arrived meanwhile."""
        self.weights.updated()
        self._publish_if_due()
        self._take_arrived()
        self._ask()

    def _publish_if_due(self) -> None:
        """Send new weights if those of the actors have been outdated for long enough."""
        if self.weights.due_in_s(self.config.weights_age_s) <= 0:
            self._publish()

    def _publish(self) -> None:
        began, version = time.monotonic(), self.weights.next()
        self.transport.publish(version, pack(self.workflow, version, self.statistics()))
        self.published_s += time.monotonic() - began

    def flushing(self, record: dict[str, float]) -> None:
        """Report the age of weights, the queue length and waiting times."""
        now = time.monotonic()
        elapsed, self.since = max(now - self.since, 1e-9), now
        record |= self.weights.pop_ages()
        record["actors/queue_ticks"] = float(np.mean([s.ticks for s in self.streams]))
        record["actors/learner_waited"] = self.waited_s / elapsed
        record["actors/learner_published"] = self.published_s / elapsed
        record["actors/busy"] = self.busy_s / elapsed / self.config.num
        record["actors/replaced"] = float(self.lost)
        self.waited_s, self.published_s, self.busy_s = 0.0, 0.0, 0.0

    def finished(self, status: str) -> None:
        """Stop all actors."""
        with suppress(OSError):
            self.transport.close()


REMEMBERED = 10_000
"""Number of versions whose age is tracked: no actor is that far behind."""


class Published:
    """Published weight versions, and how long they have been outdated."""

    def __init__(self) -> None:
        self.version, self.updates = -1, 0
        self.made: dict[int, int] = {}
        """Number of updates in a version."""
        self.since: dict[int, float] = {}
        """Time of the first update after a version."""
        self.ages_s: list[float] = []
        self.ages: list[int] = []

    def next(self) -> int:
        """Return the version number to publish now."""
        self.version += 1
        self.made[self.version] = self.updates
        for past in (self.made, self.since):
            past.pop(self.version - REMEMBERED, None)
        return self.version

    def updated(self) -> None:
        """Record an update: from the first one on, the published weights are outdated."""
        self.updates += 1
        self.since.setdefault(self.version, time.monotonic())

    def due_in_s(self, age_s: float) -> float:
        """Return when the published weights will have been outdated for that long."""
        since = self.since.get(self.version)
        return math.inf if since is None else max(0.0, since + age_s - time.monotonic())

    def arrived(self, block: Block) -> None:
        """Record the age of the weights behind an actor's newest steps."""
        since = self.since.get(block.version)
        self.ages_s.append(0.0 if since is None else time.monotonic() - since)
        self.ages.append(self.updates - self.made[block.version])

    def pop_ages(self) -> dict[str, float]:
        """Return the mean and maximum age since the last call."""
        if not self.ages:
            return {}
        out = {
            "actors/weights_age_s": float(np.mean(self.ages_s)),
            "actors/weights_age_max_s": max(self.ages_s),
            "actors/weights_age_updates": float(np.mean(self.ages)),
        }
        self.ages_s, self.ages = [], []
        return out
