"""Actors on a Ray cluster."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from dreamlab.core.errors import EnvError, LabError, require
from dreamlab.core.ray_cluster import join_cluster
from dreamlab.engine.actors.blocks import Block
from dreamlab.engine.actors.local import MakeWorker
from dreamlab.engine.actors.options import ActorsConfig
from dreamlab.engine.actors.transport import Event, Gone
from dreamlab.engine.actors.weights import Snapshot, unpack
from dreamlab.engine.actors.worker import Failure, Request, Worker

NAMESPACE = "dreamlab"
END_S = 5.0
CONTROL = "control"
"""Ray's name for the thread of an actor that is told of weights while it collects."""
BEATS = 5
"""Heartbeats of a learner within its actors' timeout."""


Weights = tuple[int, list[Any]]
"""A version and the reference to it, in a list: only an actor that needs them fetches them."""
NOTHING: Weights = (-1, [])


class Remote:
    """A Ray actor: sequential calls, each of which returns a block; weights overtake them."""

    def __init__(self, make: MakeWorker, index: int, generation: int, linger_s: float) -> None:
        self.make, self.who = make, (index, generation)
        self.worker: Worker | None = None
        self.newest = NOTHING
        self.heard, self.busy = time.monotonic(), False
        if linger_s:
            threading.Thread(target=self._watch, args=(linger_s,), daemon=True).start()

    def _watch(self, linger_s: float) -> None:
        """End the process if there was no heartbeat of a learner for too long."""
        while self.busy or time.monotonic() - self.heard < linger_s:
            time.sleep(min(1.0, linger_s / BEATS))
        os._exit(0)

    def hear(self) -> None:
        """Record a heartbeat of the learner."""
        self.heard = time.monotonic()

    def begin_anew(self) -> None:
        """Serve a new learner: restart all episodes and request weights."""
        self.hear()
        self.newest = NOTHING
        if self.worker is not None:
            self.worker.begin_anew()

    def show(self, weights: Weights) -> None:
        """Tell of new weights, also for blocks that were requested before."""
        self.newest = weights

    def collect(self, request: Request, weights: Weights) -> Block | Failure:
        """Return the next block; fetch newer weights before each tick."""
        self.busy = True
        try:
            return self._collect(request, weights)
        except LabError as error:
            return Failure(str(error), "EnvError" if isinstance(error, EnvError) else "LabError")
        finally:
            self.busy = False
            self.hear()

    def _collect(self, request: Request, weights: Weights) -> Block:
        if self.worker is None:  # not in the constructor: errors keep their type here
            self.worker = self.make(*self.who)
        worker = self.worker

        def newer() -> Snapshot | None:
            version, reference = max(weights, self.newest, key=lambda w: w[0])
            if worker.version == version:
                return None
            return unpack(require("ray", "ray").get(reference[0]))

        block = worker.collect(request, newer, lambda: False)
        assert block is not None, "nobody stops it"
        return block

    def close(self) -> None:
        """Close the environments."""
        if self.worker is not None:
            self.worker.close()


@dataclass
class Handle:
    """An actor of the cluster, and its pending blocks, in order."""

    actor: Any
    asked: deque[Any] = field(default_factory=deque[Any])
    since: float = field(default_factory=time.monotonic)
    """Time of its last answer, or when it was last idle."""


class RayActors:
    """Requests blocks by asynchronous calls, whose number bounds the queue.

    Weights are put into Ray's object store once; each machine fetches them once.
    """

    def __init__(self, config: ActorsConfig, make: MakeWorker, name: str) -> None:
        self.config, self.make, self.name = config, make, name
        self.ray: Any = require("ray", "ray")
        self.handles: dict[int, Handle] = {}
        self.weights = NOTHING
        self.connected, self.closed = False, threading.Event()

    def _connect(self) -> None:
        """Join the cluster, or start one, unless already connected."""
        if self.ray.is_initialized():
            return
        options = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": "ERROR"}
        join_cluster("actors.address", self.config.address, **options)
        self.connected = True

    def start(self, index: int, generation: int) -> None:
        if index in self.handles:
            with suppress(Exception):  # it may be alive although what it sent is lost
                self.ray.kill(self.handles[index].actor)
            actor = None
        else:
            actor = self._found(index)
        if actor is not None:
            actor.begin_anew.remote()
        else:
            actor = self._made(index, generation)
        self.handles[index] = Handle(actor)

    def _found(self, index: int) -> Any:
        """Return the actor left by a learner that died, if it still waits."""
        if not self.config.linger_s:
            return None
        try:
            return self.ray.get_actor(f"{self.name}-{index}", namespace=NAMESPACE)
        except ValueError:
            return None

    def _made(self, index: int, generation: int) -> Any:
        options: dict[str, Any] = {"num_cpus": self.config.cpus, "max_restarts": 0}
        if self.config.linger_s:
            name = f"{self.name}-{index}"
            options |= {"name": name, "namespace": NAMESPACE, "lifetime": "detached"}
        remote = self.ray.remote(concurrency_groups={CONTROL: 1})(Remote).options(**options)
        return remote.remote(self.make, index, generation, self.config.linger_s)

    def publish(self, version: int, payload: bytes) -> None:
        if version == 0:
            self._connect()
            if self.config.linger_s:
                threading.Thread(target=self._beat, daemon=True).start()
        self.weights = (version, [self.ray.put(payload)])
        for handle in self.handles.values():
            handle.actor.show.options(concurrency_group=CONTROL).remote(self.weights)

    def _beat(self) -> None:
        """Send heartbeats to the actors."""
        while not self.closed.wait(self.config.linger_s / BEATS):
            for handle in list(self.handles.values()):
                handle.actor.hear.remote()

    def ask(self, index: int, request: Request, blocks: int) -> None:
        handle = self.handles[index]
        if not handle.asked:
            handle.since = time.monotonic()
        collect = handle.actor.collect
        handle.asked.extend(collect.remote(request, self.weights) for _ in range(blocks))

    def events(self, timeout_s: float) -> list[tuple[int, Event]]:
        first = {h.asked[0]: i for i, h in self.handles.items() if h.asked}
        if not first:
            time.sleep(timeout_s)
            return []
        if timeout_s:
            self.ray.wait(list(first), num_returns=1, timeout=timeout_s)
        ready, late = self.ray.wait(list(first), num_returns=len(first), timeout=0)
        self._check_silent([first[reference] for reference in late])
        return [(first[reference], self._answer(first[reference])) for reference in ready]

    def _answer(self, index: int) -> Event:
        handle, errors = self.handles[index], self.ray.exceptions
        handle.since = time.monotonic()
        try:
            return self.ray.get(handle.asked.popleft())
        except errors.RayTaskError as error:  # first: it is of its cause's class, too
            cause = error.cause
            text = " ".join(str(cause).split()) or "no message"
            raise LabError(
                f"actor {index} failed with {type(cause).__name__}: {text}. "
                "The last checkpoint is complete."
            ) from error
        except errors.ObjectLostError as error:
            why = f"what it had collected is lost with its machine ({type(error).__name__})"
        except (errors.RayActorError, errors.OutOfMemoryError) as error:
            why = " ".join(str(error).split("\n")[0].split()).rstrip(".")
        handle.asked.clear()
        return Gone(why)

    def _check_silent(self, late: list[int]) -> None:
        """Raise if one of these actors has neither answered nor died for too long."""
        for index in late:
            if time.monotonic() - self.handles[index].since > self.config.wait_s:
                free = self.ray.available_resources().get("CPU", 0)
                raise LabError(
                    f"actor {index} did not respond for {self.config.wait_s:g} s (actors.wait_s): "
                    f"its machine is lost or busy, or the Ray cluster has too few CPUs ({free:g} "
                    f"are free, it needs {self.config.cpus:g}). The last checkpoint is complete: "
                    "the same command resumes from it."
                )

    def close(self) -> None:
        self.closed.set()
        closing = [h.actor.close.remote() for h in self.handles.values()]
        with suppress(Exception):  # the actor may be gone already
            self.ray.wait(closing, num_returns=len(closing), timeout=END_S)
        for handle in self.handles.values():
            with suppress(Exception):
                self.ray.kill(handle.actor)
        self.handles = {}
        if self.connected:
            self.ray.shutdown()
