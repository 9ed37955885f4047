"""Actors as processes on this machine."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from dreamlab.core.errors import EnvError, LabError
from dreamlab.engine.actors.board import Board
from dreamlab.engine.actors.transport import Event, Gone
from dreamlab.engine.actors.weights import Snapshot, unpack
from dreamlab.engine.actors.worker import Failure, Request, Worker
from dreamlab.engine.signals import PREEMPTION, handled

MakeWorker = Callable[[int, int], Worker]
"""Makes an actor from its index and generation; must be picklable."""
END_S = 5.0
"""Time limit for actors to close their environments."""
LOST = (EOFError, ConnectionError, OSError)


@dataclass
class Child:
    """A process, and the learner's end of its pipe."""

    process: Any
    connection: Connection


class LocalActors:
    """Spawns actors; requests and blocks use pipes, weights use shared memory.

    One thread per actor reads its blocks, so that actors need not wait while the learner computes.
    """

    def __init__(self, make: MakeWorker) -> None:
        self.make = make
        self.board: Board | None = None
        self.children: dict[int, Child] = {}
        self.inbox: queue.Queue[tuple[int, Event]] = queue.Queue()
        self.closing = False

    def start(self, index: int, generation: int) -> None:
        assert self.board is not None, "weights are published first"
        if not self.children:
            # in any case: at exit Python waits for non-daemonic children
            atexit.register(self.close)
        context = context_of(self.make)
        ours, theirs = context.Pipe()
        board = (self.board.memory.name, self.board.capacity)
        arguments = (theirs, board, self.make, index, generation)
        # not a daemon: its environments may run in their own processes
        process = context.Process(target=serve, args=arguments, name=f"actor-{index}")
        process.start()
        theirs.close()
        child = self.children[index] = Child(process, ours)
        threading.Thread(target=self._listen, args=(index, child), daemon=True).start()

    def _listen(self, index: int, child: Child) -> None:
        """Receive an actor's messages until it is gone."""
        try:
            while True:
                self.inbox.put((index, pickle.loads(child.connection.recv_bytes())))
        except LOST:
            child.process.join(END_S)
        if not self.closing:
            self.inbox.put((index, Gone(how_it_ended(child.process))))

    def publish(self, version: int, payload: bytes) -> None:
        if self.board is None:
            self.board = Board.create(payload)
        self.board.write(version, payload)

    def ask(self, index: int, request: Request, blocks: int) -> None:
        with suppress(OSError):  # its thread reports that it is gone
            self.children[index].connection.send((request, blocks))

    def events(self, timeout_s: float) -> list[tuple[int, Event]]:
        out: list[tuple[int, Event]] = []
        try:
            out.append(self.inbox.get(timeout=timeout_s))
            while True:
                out.append(self.inbox.get_nowait())
        except queue.Empty:
            return out

    def close(self) -> None:
        self.closing = True
        if self.board is not None:
            self.board.stop()
        for child in self.children.values():
            with suppress(OSError):
                child.connection.send(None)
        until = time.monotonic() + END_S
        for child in self.children.values():
            end(child.process, max(0.0, until - time.monotonic()))
        self.children = {}
        atexit.unregister(self.close)
        if self.board is not None:
            self.board.close(remove=True)
            self.board = None


def context_of(make: Callable[..., Any]) -> Any:
    """Return the start method: fork a server process that imported only what is needed.

    Forking this process would copy its OpenGL and CUDA contexts, which then fail.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([getattr(make, "func", make).__module__])
    return context


def end(process: Any, seconds: float) -> None:
    """Wait for a process to end; kill it after a timeout."""
    process.join(seconds)
    if process.is_alive():
        process.kill()
        process.join()


def how_it_ended(process: Any) -> str:
    """Return why a process ended."""
    code: int | None = process.exitcode
    if code is None:
        return "it closed its pipe"
    if code < 0:
        return f"it was killed by {signal.Signals(-code).name}"
    return f"it ended with exit code {code}"


# -- in the process of the actor ------------------------------------------------------------------


def serve(
    connection: Connection, board: tuple[str, int], make: MakeWorker, index: int, generation: int
) -> None:
    """Serve the learner's requests until it says stop, or is gone."""
    leave_signals_to_parent()
    shown = Board.attach(*board)
    try:
        answer_all(connection, shown, make, index, generation)
    except LOST:
        pass  # the learner is gone
    finally:
        shown.close()


def answer_all(
    connection: Connection, board: Board, make: MakeWorker, index: int, generation: int
) -> None:
    """Create the actor, and answer requests with blocks; its own error is the last answer."""
    try:
        worker = make(index, generation)
        try:
            _answer(connection, board, worker)
        finally:
            worker.close()
    except LabError as error:
        kind = "EnvError" if isinstance(error, EnvError) else "LabError"
        connection.send_bytes(pickle.dumps(Failure(str(error), kind)))


def _answer(connection: Connection, board: Board, worker: Worker) -> None:
    def newer() -> Snapshot | None:
        payload = board.read(worker.version)
        return None if payload is None else unpack(payload)

    asked: deque[Request] = deque()
    while True:
        # all of them: a pipe full of small requests would block the learner
        while not asked or connection.poll():
            message = connection.recv()
            if message is None or board.stopped:
                return
            request, blocks = message
            asked.extend([request] * blocks)
        block = worker.collect(asked.popleft(), newer, lambda: board.stopped)
        if block is None:
            return
        connection.send_bytes(pickle.dumps(block, protocol=5))


def leave_signals_to_parent(linger_s: float = 0.0) -> None:
    """Ignore Ctrl-C, SIGTERM and SIGHUP, which the parent handles; end soon after it if it dies."""
    for number in handled():
        if number.name != PREEMPTION:
            signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None, "this is a child"

    def watch() -> None:
        parent.join()
        time.sleep(linger_s)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
