"""Evaluation in a separate process, with a snapshot of the weights."""

from __future__ import annotations

import atexit
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dreamlab.core.errors import LabError
from dreamlab.core.workflow import Workflow
from dreamlab.engine.actors.local import (
    LOST,
    context_of,
    end,
    how_it_ended,
    leave_signals_to_parent,
)
from dreamlab.engine.actors.transport import Gone
from dreamlab.engine.actors.weights import adopt, unpack
from dreamlab.engine.evaluator import EvalResult, Evaluator, UnfinishedError
from dreamlab.engine.video import write_video

MakeEvaluation = Callable[[], tuple[Evaluator, Workflow[Any]]]
"""Makes an evaluator and a workflow to evaluate; must be picklable."""
END_S = 2.0
Outcome = EvalResult | LabError | Gone


@dataclass(frozen=True)
class Task:
    """An evaluation to run, and the path of its video, if requested."""

    payload: bytes
    film: Path | None = None


class BackgroundEvaluator:
    """Evaluates one policy at a time during training; the process starts with the first task."""

    def __init__(self, make: MakeEvaluation) -> None:
        self.make = make
        self.process: Any = None
        self.connection: Connection | None = None
        self.results: queue.Queue[Outcome] = queue.Queue()
        self.task: Task | None = None

    @property
    def busy(self) -> bool:
        return self.task is not None

    def submit(self, task: Task) -> None:
        """Start an evaluation; no other may be running."""
        assert not self.busy, "one evaluation at a time"
        if self.process is None:
            self._start()
        self.task = task
        self._send(task)

    def _start(self) -> None:
        context = context_of(self.make)
        self.connection, theirs = context.Pipe()
        # not a daemon: an environment may start its own processes
        self.process = context.Process(
            target=measure_all, args=(theirs, self.make), name="evaluation"
        )
        self.process.start()
        atexit.register(self.close)
        theirs.close()
        self.results = queue.Queue()  # discard late results of an earlier process
        arguments = (self.process, self.connection, self.results)
        threading.Thread(target=self._listen, args=arguments, daemon=True).start()

    def _send(self, task: Task) -> None:
        """Send weights from a thread: the pipe buffer is small, and the process may be busy."""
        connection = self.connection
        assert connection is not None

        def send() -> None:
            with suppress(OSError):  # the other thread reports that it is gone
                connection.send(task)

        threading.Thread(target=send, daemon=True).start()

    def _listen(self, process: Any, connection: Connection, results: queue.Queue[Outcome]) -> None:
        try:
            while True:
                results.put(connection.recv())
        except (*LOST, TypeError):  # a TypeError: closed while being read
            process.join(END_S)
            results.put(Gone(how_it_ended(process)))

    def take(self, timeout_s: float = 0.0) -> Outcome | None:
        """Return the result, or why it failed; None if it is not done yet.

        A process that died is restarted with the next task.
        """
        if not self.busy:
            return None
        try:
            result = self.results.get(timeout=timeout_s) if timeout_s else self.results.get_nowait()
        except queue.Empty:
            return None
        self.task = None
        if not isinstance(result, EvalResult):
            self.close()
        return result

    def close(self) -> None:
        """Drop the running evaluation and end the process."""
        if self.process is None:
            return
        atexit.unregister(self.close)
        self.task = None
        connection, process, self.process = self.connection, self.process, None
        assert connection is not None
        stop = threading.Thread(target=lambda: _tell_end(connection), daemon=True)
        stop.start()
        end(process, END_S)
        connection.close()


def _tell_end(connection: Connection) -> None:
    with suppress(OSError, TypeError):
        connection.send(None)


# -- in the process of the evaluation -------------------------------------------------------------


def measure_all(connection: Connection, make: MakeEvaluation) -> None:
    """Answer tasks with results until there are no more, or the parent is gone."""
    leave_signals_to_parent()
    with suppress(UnfinishedError, *LOST):
        try:
            evaluator, workflow = make()
            while (task := connection.recv()) is not None:
                connection.send(_measure(task, evaluator, workflow, connection.poll))
        except LabError as error:
            connection.send(error)


def _measure(
    task: Task, evaluator: Evaluator, workflow: Workflow[Any], stop: Callable[[], bool]
) -> EvalResult:
    began, snapshot = time.monotonic(), unpack(task.payload)
    adopt(workflow, snapshot)
    result = evaluator.run(workflow, snapshot.statistics, task.film is not None, stop)
    if task.film is not None and result.frames:
        result.video = write_video(task.film, result.frames)
    result.frames = []
    result.summary["seconds"] = time.monotonic() - began
    return result
