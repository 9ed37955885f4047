"""Ctrl-C, SIGTERM, SIGHUP, SIGUSR1: what asks a run to save and end, and how long that may take."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from dreamlab.core.errors import Stopped

PREEMPTED = 85
"""Exit code of a run that was preempted (HTCondor's too): the same command resumes it."""
PREEMPTION = "SIGUSR1"
HANG_UP = "SIGHUP"
"""The terminal was closed."""


def handled() -> list[signal.Signals]:
    """Return the signals that ask to stop, of this system; under nohup SIGHUP is none of them."""
    names = ("SIGINT", "SIGTERM", HANG_UP, PREEMPTION)
    found = [n for n in signal.Signals if n.name in names]
    return [n for n in found if n.name != HANG_UP or signal.getsignal(n) != signal.SIG_IGN]


def leave_lost_terminal(number: int) -> None:
    """Discard output if this signal says that its terminal is closed.

    Writing it would fail, and nothing be saved.
    """
    for output in (1, 2):
        if signal.Signals(number).name == HANG_UP and _is_lost(output):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, output)
            os.close(nowhere)


def _is_lost(output: int) -> bool:
    try:
        os.ttyname(output)
    except OSError as error:
        return error.errno == errno.EIO  # a file or a pipe is no terminal either, but not lost
    return False


class Deadline:
    """Ends the process when the time that a preempted run has is up; its last checkpoint stays."""

    def __init__(self, seconds: float | None, say: Callable[[str], None]) -> None:
        self.seconds, self.say = seconds, say
        self.signal = ""
        """The signal that requested the stop."""
        self.timer: threading.Timer | None = None

    def start(self, number: signal.Signals) -> None:
        """Begin to count, if there is a limit and nobody pressed Ctrl-C."""
        self.signal = number.name
        if self.seconds is not None and number != signal.SIGINT:
            self.timer = threading.Timer(self.seconds, self._end)
            self.timer.daemon = True  # a run that has ended is not waited for
            self.timer.start()

    def close(self) -> None:
        """Stop counting: what there was to save is saved."""
        if self.timer is not None:
            self.timer.cancel()

    def _end(self) -> None:
        with suppress(Exception):  # it must end in any case
            self.say(
                f"checkpoint.deadline_s: {self.seconds:g} s were too short for a checkpoint; "
                "the run resumes from the last one"
            )
        os._exit(PREEMPTED)  # not an exception: the main thread may be in a library for long


def first_signal(received: Sequence[str]) -> str:
    """Return the signal that stopped a run, by those its processes received; empty if none did.

    Preemption comes first: some processes may have got another signal with it, or been stopped by
    the others before their own arrived.
    """
    return PREEMPTION if PREEMPTION in received else next(filter(None, received), "")


@contextmanager
def on_stop(
    asked: Callable[[], bool], ask: Callable[[], None], deadline: Deadline
) -> Iterator[None]:
    """Call `ask` for the first signal inside the block; `asked` says if a stop was asked for.

    A second Ctrl-C stops at once. Clusters repeat SIGTERM before they kill: while a run saves, that
    changes nothing. Signals belong to the main thread; in another one nobody presses Ctrl-C.
    """

    def handle(number: int, frame: Any) -> None:
        leave_lost_terminal(number)
        if not asked():
            deadline.start(signal.Signals(number))
            ask()
        elif number == signal.SIGINT:
            raise Stopped

    try:
        before = {n: signal.signal(n, handle) for n in handled()}
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        deadline.close()
        for number, old in before.items():
            signal.signal(number, old)
