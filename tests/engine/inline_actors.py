"""Actors within the process of a test: the same workers, one after the other."""

from __future__ import annotations

from collections import deque

from dreamlab.engine.actors.collector import RemoteCollector
from dreamlab.engine.actors.local import LocalActors, MakeWorker
from dreamlab.engine.actors.transport import Event, Gone
from dreamlab.engine.actors.weights import unpack
from dreamlab.engine.actors.worker import Request, Worker
from dreamlab.engine.orchestrator import Orchestrator


class Inline:
    """Does what it is asked for when somebody waits for it; an actor can be made to die."""

    def __init__(self, make: MakeWorker) -> None:
        self.make = make
        self.workers: dict[int, Worker] = {}
        self.started: list[tuple[int, int]] = []
        self.requests: dict[int, deque[Request]] = {}
        self.payload, self.published, self.closed = b"", 0, False
        self.doomed: list[int] = []

    def start(self, index: int, generation: int) -> None:
        self.workers[index] = self.make(index, generation)
        self.requests[index] = deque()
        self.started.append((index, generation))

    def publish(self, version: int, payload: bytes) -> None:
        self.payload, self.published = payload, version

    def ask(self, index: int, request: Request, blocks: int) -> None:
        self.requests[index].extend([request] * blocks)

    def events(self, timeout_s: float) -> list[tuple[int, Event]]:
        out: list[tuple[int, Event]] = []
        for index, worker in self.workers.items():
            if index in self.doomed:
                self.doomed.remove(index)
                out.append((index, Gone("it was told to")))
            elif self.requests[index]:
                block = worker.collect(
                    self.requests[index].popleft(), lambda w=worker: self._newer(w), lambda: False
                )
                assert block is not None
                out.append((index, block))
        return out

    def _newer(self, worker: Worker):
        return None if worker.version == self.published else unpack(self.payload)

    def close(self) -> None:
        self.closed = True
        for worker in self.workers.values():
            worker.close()


def put_inline(loop: Orchestrator) -> tuple[RemoteCollector, Inline]:
    """Let the actors of a loop run within this process."""
    collector = loop.parts.collector
    assert isinstance(collector, RemoteCollector)
    assert isinstance(collector.transport, LocalActors)
    collector.transport = transport = Inline(collector.transport.make)
    return collector, transport
