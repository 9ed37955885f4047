"""Stands between an environment and us: whatever it raises, and a call that hangs, has a name."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import gymnasium as gym

from dreamlab.core.errors import EnvError, LabError, Stopped

LOOK_S = 0.2
"""Polling interval of the watchdog, in seconds."""
STUCK_S = 10.0
"""Grace period after the deadline for a call to be interrupted, in seconds."""

SILENCE = "no answer within"


class Overdue(BaseException):
    """A call of an environment takes longer than it may."""


class Watchdog:
    """Interrupts the main thread in a call that takes too long.

    A thread looks at the clock and sends a signal, whose handler raises inside the call. Code that
    does not come back to Python (an endless loop in C) cannot be interrupted; that is said.
    """

    def __init__(self) -> None:
        self.main = threading.main_thread().ident or 0
        self.deadline, self.busy = math.inf, 0
        signal.signal(signal.SIGVTALRM, self._bark)
        threading.Thread(target=self._watch, daemon=True, name="watchdog").start()

    def _bark(self, number: int, frame: Any) -> None:
        if time.monotonic() >= self.deadline:
            self.deadline = math.inf
            raise Overdue

    def _watch(self) -> None:
        told = math.inf
        while True:
            time.sleep(LOOK_S)
            deadline = self.deadline
            if time.monotonic() < deadline:
                continue
            signal.pthread_kill(self.main, signal.SIGVTALRM)
            if time.monotonic() > deadline + STUCK_S and told != deadline:
                told = deadline
                sys.stderr.write(
                    f"env {self.busy} hangs in native code and cannot be interrupted: kill the "
                    f"process, or use env.vector=async, which terminates it\n"
                )


@lru_cache(maxsize=1)
def _watchdog(pid: int) -> Watchdog:
    return Watchdog()


def _own_watchdog() -> Watchdog | None:
    """Return the watchdog of this process; None in a thread, where no signal arrives."""
    if not hasattr(signal, "pthread_kill") or sys.platform == "win32":
        return None
    in_main = threading.current_thread() is threading.main_thread()
    return _watchdog(os.getpid()) if in_main else None


def is_ctrl_c(error: BaseException) -> bool:
    """Return whether the user wants to stop, and not the environment."""
    if isinstance(error, Stopped):
        return True
    unhandled = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return isinstance(error, KeyboardInterrupt) and unhandled


def told(error: BaseException) -> str:
    """Return an exception in one line, with the place it arose at."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    where = f" ({frame.tb_frame.f_code.co_filename}:{frame.tb_lineno})" if frame else ""
    return f"{type(error).__name__}: {error}{where}"


@contextmanager
def watched(seconds: float) -> Iterator[None]:
    """Raise `Overdue` in the block if it takes longer than this; 0: it may take as it likes."""
    dog = _own_watchdog() if seconds > 0 else None
    if dog is not None:
        dog.deadline = time.monotonic() + seconds
    try:
        yield
    finally:
        if dog is not None:
            dog.deadline = math.inf


@contextmanager
def making(name: str, index: int) -> Iterator[None]:
    """Turn whatever the making of an environment raises into an `EnvError`."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, LabError) or is_ctrl_c(error):
            raise
        raise EnvError(f"env {index}: making {name!r} failed: {told(error)}") from error


class Guarded(gym.Wrapper[Any, Any, Any, Any]):
    """Turns whatever an environment raises, `SystemExit` included, into an `EnvError`.

    It names the environment, the call and the seed of the episode. A call that takes longer than
    `timeout_s` (0: as long as it likes) is interrupted and named as well.
    """

    def __init__(self, env: gym.Env[Any, Any], index: int, timeout_s: float) -> None:
        super().__init__(env)
        self.index, self.timeout_s = index, timeout_s
        self.seed: int | None = None
        self.steps = 0
        self.watchdog = _own_watchdog() if timeout_s > 0 else None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.steps, self.seed = 0, seed
        return self._ask("reset", 2, self.env.reset, seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self._ask("step", 5, self.env.step, action)

    def render(self) -> Any:
        return self._ask("render", 0, self.env.render)

    def _ask(self, method: str, size: int, call: Any, *args: Any, **kwargs: Any) -> Any:
        """Return what a call answers: a tuple of `size` things, or anything if that is 0."""
        dog = self.watchdog
        try:
            if dog is None or threading.get_ident() != dog.main:
                return _sized(call(*args, **kwargs), size)
            try:
                dog.busy, dog.deadline = self.index, time.monotonic() + self.timeout_s
                return _sized(call(*args, **kwargs), size)
            finally:
                dog.deadline = math.inf
        except BaseException as error:
            no_pictures = method == "render" and isinstance(error, NotImplementedError)
            if no_pictures or is_ctrl_c(error):
                raise
            raise EnvError(f"env {self.index}: {self._place(method)}{self._why(error)}") from error

    def _place(self, method: str) -> str:
        if method == "render":
            return "render"
        where = "reset" if method == "reset" else f"step {self.steps}, episode"
        return f"{where} with seed {self.seed}"

    def _why(self, error: BaseException) -> str:
        if isinstance(error, Overdue):
            return f": {SILENCE} {self.timeout_s:g} s (env.step_timeout_s)"
        return f": {told(error)}"


def _sized(result: Any, size: int) -> Any:
    if size and not (isinstance(result, tuple) and len(result) == size):
        raise TypeError(f"it returned {type(result).__name__} instead of a tuple of {size}")
    return result
