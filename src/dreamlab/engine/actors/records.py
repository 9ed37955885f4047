"""Logging in a separate process: the learner sends records, another process writes them."""

from __future__ import annotations

import atexit
import pickle
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from dreamlab.core.errors import LabError
from dreamlab.engine.actors.local import (
    LOST,
    context_of,
    end,
    how_it_ended,
    leave_signals_to_parent,
)
from dreamlab.engine.actors.worker import Failure
from dreamlab.engine.logger import Record, Sink, Tracker
from dreamlab.engine.media import Media

MakeSinks = Callable[[], Sequence[Sink]]
"""Makes the sinks in their process; must be picklable."""
END_S = 10.0
LOOK_S = 0.25
LEFT_S = 1.0
"""Time for the records of a learner that was killed to be written."""
SAVED = "The last checkpoint is complete: the same command resumes from it."


class LogProcess:
    """A process with sinks, which starts with the first message to one of them.

    learner   write write media write get_state ...
                 └─ queue ─ thread ─ pipe ──▶ the same calls, in the same order

    The learner waits only for the state of sinks (before a checkpoint is written) and at the end.
    """

    def __init__(self, make: MakeSinks, names: Sequence[str]) -> None:
        """Stand in for the sinks that `make` returns, whose classes have these names."""
        self.make = make
        self.sinks = [RemoteTracker(self, i, name) for i, name in enumerate(names)]
        self.left = len(names)
        self.process: Any = None
        self.connection: Connection | None = None
        self.outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.failed = False

    def _start(self) -> None:
        context = context_of(self.make)
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, self.make), name="logging")
        self.process.start()
        atexit.register(self.end)
        theirs.close()
        arguments = (self.connection, self.outbox)
        threading.Thread(target=_send_all, args=arguments, daemon=True).start()

    def tell(self, index: int, method: str, *args: Any) -> None:
        """Call a method of a sink, without waiting; raise if an earlier call has failed."""
        if self.process is None:
            self._start()
        assert self.connection is not None
        if self.connection.poll():  # nothing was asked
            self._answer()
        self.outbox.put(pickle.dumps((index, method, args)))

    def ask(self, index: int, method: str) -> Any:
        """Call a method of a sink after all earlier ones, and return what it returns."""
        self.tell(index, method)
        assert self.connection is not None
        while not self.connection.poll(LOOK_S):
            pass  # a signal may interrupt; a process that ended closes the pipe
        return self._answer()

    def _answer(self) -> Any:
        """Return an answer; raise if the process has failed or ended."""
        assert self.connection is not None
        try:
            answer = self.connection.recv()
        except LOST:
            self.process.join(END_S)
            answer = Failure(f"its process is gone: {how_it_ended(self.process)}", "LabError")
        if isinstance(answer, Failure):
            self.failed = True
            raise LabError(f"logging failed: {answer.text.rstrip('.')}. {SAVED}")
        return answer

    def close(self, index: int) -> None:
        """Close a sink, and with the last one the process; raise if records were not written."""
        self.left -= 1
        try:
            if self.process is not None and not self.failed:
                self.ask(index, "close")
        finally:
            if self.left <= 0:
                self.end()

    def end(self) -> None:
        """End the process."""
        if self.process is None:
            return
        atexit.unregister(self.end)
        process, self.process = self.process, None
        self.outbox.put(None)
        end(process, 0.0 if self.failed else END_S)
        if self.connection is not None:
            self.connection.close()


class RemoteSink:
    """A sink in another process."""

    def __init__(self, remote: LogProcess, index: int, state_key: str) -> None:
        self.remote, self.index, self.state_key = remote, index, state_key

    def write(self, record: Record) -> None:
        self.remote.tell(self.index, "write", record)

    def get_state(self) -> dict[str, Any]:
        return self.remote.ask(self.index, "get_state")

    def set_state(self, state: dict[str, Any]) -> None:
        self.remote.tell(self.index, "set_state", state)

    def restart(self) -> None:
        self.remote.tell(self.index, "restart")

    def close(self) -> None:
        self.remote.close(self.index)


class RemoteTracker(RemoteSink):
    """A tracker in another process; where the sink is none, films and results are ignored."""

    def media(self, media: Media) -> None:
        self.remote.tell(self.index, "media", media)

    def ended(self, final: Record) -> None:
        self.remote.tell(self.index, "ended", final)


def _send_all(connection: Connection, outbox: queue.SimpleQueue[bytes | None]) -> None:
    """Send messages from a thread: a pipe is small, and the process may be busy."""
    with suppress(OSError):  # the learner notices when it asks
        while (message := outbox.get()) is not None:
            connection.send_bytes(message)
        connection.send_bytes(pickle.dumps(None))


# -- in the process of the sinks ------------------------------------------------------------------


TRACKERS = ("media", "ended")
ANSWERED = ("get_state", "close")


def serve(connection: Connection, make: MakeSinks) -> None:
    """Make the sinks, and call them as the learner says, until it says stop or is gone."""
    leave_signals_to_parent(LEFT_S)
    with suppress(*LOST):
        try:
            _serve(connection, make())
        except LabError as error:
            connection.send(Failure(str(error), "LabError"))
        except _SinkError as error:
            connection.send(Failure(str(error), type(error.__cause__).__name__))


class _SinkError(Exception):
    """A sink raised something: the learner has to know."""


def _serve(connection: Connection, sinks: Sequence[Sink]) -> None:
    while (message := connection.recv()) is not None:
        index, method, args = message
        sink = sinks[index]
        if method in TRACKERS and not isinstance(sink, Tracker):
            continue
        try:
            answer = getattr(sink, method)(*args)
        except LabError:
            raise
        except Exception as error:
            raise _SinkError(f"{type(error).__name__}: {error}") from error
        if method in ANSWERED:
            connection.send(answer)
