"""Actors as processes of this machine."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import queue
import signal
import threading
import time
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

MakeWorker = Callable[[int, int], Worker]
"""Makes an actor from its number and generation; it must be picklable."""
END_S = 5.0
"""How long actors may take to close their environments."""
LOST = (EOFError, ConnectionError, OSError)


@dataclass
class Child:
    """A process, and the learner's end of the pipe to it."""

    process: Any
    connection: Connection


class LocalActors:
    """Spawns actors; requests and blocks go through pipes, weights through shared memory.

    A thread for each reads its blocks, so that an actor need not wait while the learner computes.
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
            # whatever happens: Python waits at its end for children that are no daemons
            atexit.register(self.close)
        context = context_of(self.make)
        ours, theirs = context.Pipe()
        board = (self.board.memory.name, self.board.capacity)
        arguments = (theirs, board, self.make, index, generation)
        # not a daemon: its environments may be in their own processes
        process = context.Process(target=serve, args=arguments, name=f"actor-{index}")
        process.start()
        theirs.close()
        child = self.children[index] = Child(process, ours)
        threading.Thread(target=self._listen, args=(index, child), daemon=True).start()

    def _listen(self, index: int, child: Child) -> None:
        """Take in what an actor sends until it is gone."""
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

    def ask(self, index: int, request: Request) -> None:
        with suppress(OSError):  # that it is gone is told by its thread
            self.children[index].connection.send(request)

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
    """Return how processes are started: by forking one that has imported what they need, no more.

    To fork this one would copy its OpenGL and CUDA contexts, which then fail.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([getattr(make, "func", make).__module__])
    return context


def end(process: Any, seconds: float) -> None:
    """Wait for a process that was told to end; kill it if it does not."""
    process.join(seconds)
    if process.is_alive():
        process.kill()
        process.join()


def how_it_ended(process: Any) -> str:
    """Return why a process is no more."""
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
    """Work through the learner's requests until it says stop, or is gone."""
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
    """Make the actor, and answer requests by blocks; its own error is the last answer."""
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

    while (request := connection.recv()) is not None and not board.stopped:
        block = worker.collect(request, newer, lambda: board.stopped)
        if block is None:
            return
        connection.send_bytes(pickle.dumps(block, protocol=5))


def leave_signals_to_parent() -> None:
    """Let only the parent heed Ctrl-C and SIGTERM; end at once if it dies."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None, "this is a child"

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
