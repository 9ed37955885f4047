"""Environments in their own processes; one that dies or does not answer is named."""

from __future__ import annotations

import multiprocessing
import queue
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection
from typing import Any

from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from dreamlab.core.errors import EnvError

GRACE_S = 5.0
"""Extra seconds to wait, so that the worker's own watchdog, which knows more, reports first."""
END_S = 10.0
"""Timeout to close the environments, in seconds."""
LOST = (EOFError, ConnectionError, multiprocessing.TimeoutError)


class Workers(AsyncVectorEnv):
    """Gymnasium's vector, which ends all its processes and says why when one of them fails.

    By itself it raises a bare `EOFError` for a process that died, waits for ever for one that
    hangs, and leaves the others running.
    """

    def __init__(self, makers: Sequence[Callable[[], Any]], context: str, timeout_s: float) -> None:
        self.patience = timeout_s + GRACE_S if timeout_s > 0 else None
        self.ticks = 0
        with self._named("during creation"):
            super().__init__(
                makers,
                shared_memory=True,
                copy=False,
                context=context,
                autoreset_mode=AutoresetMode.NEXT_STEP,
            )

    def reset(self, **kwargs: Any) -> Any:
        with self._named("in reset"):
            self.reset_async(**kwargs)
            return self.reset_wait(self.patience)

    def step_async(self, actions: Any) -> None:
        self.ticks += 1
        with self._named(self._tick()):
            super().step_async(actions)

    def step_wait(self, timeout: float | None = None) -> Any:
        with self._named(self._tick()):
            return super().step_wait(self.patience)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        with self._named(f"in {name}"):
            self.call_async(name, *args, **kwargs)
            # to come back to a state takes as long as the episode did
            return self.call_wait(None if name == "set_state" else self.patience)

    def _tick(self) -> str:
        return f"in step {self.ticks:,} of this process"

    @contextmanager
    def _named(self, where: str) -> Iterator[None]:
        """Turn the loss of a process into an `EnvError`; none of the others is left behind."""
        try:
            yield
        except LOST as error:
            text = f"{self._missing(isinstance(error, multiprocessing.TimeoutError))} {where}"
            self._end()
            raise EnvError(text) from error
        except BaseException:
            self._end()
            raise

    def _missing(self, late: bool) -> str:
        """Return which environments are gone and why, or which are silent."""
        processes: list[Any] = getattr(self, "processes", [])
        if not late:
            connection.wait([p.sentinel for p in processes], END_S)
        dead = [f"env {i}: {_end_of(p)}" for i, p in enumerate(processes) if not p.is_alive()]
        if dead:
            return "; ".join(dead)
        silent = [i for i, pipe in enumerate(self.parent_pipes) if not pipe.poll(0)]
        names = ", ".join(f"env {i}" for i in silent) or "an environment"
        return f"{names}: its process did not respond within {self.patience or 0:g} s"

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        """Raise the first error of an environment, without Gymnasium's own report of it."""
        bad = [i for i, ok in enumerate(successes) if not ok]
        if not bad:
            return
        try:
            index, _, error, trace = self.error_queue.get(timeout=END_S)
        except queue.Empty:
            raise EnvError(f"env {bad[0]}: it failed with an unpicklable error") from None
        if not isinstance(error, EnvError):
            error = EnvError(f"env {index}: {type(error).__name__}: {error}")
        error.add_note(trace)
        raise error

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Let every environment close itself; end those that take long, or all at once."""
        if not terminate:
            for pipe in self.parent_pipes:
                with suppress(OSError):
                    pipe.send(("close", None))
            _join(self.processes, END_S)
        self._end()

    def _end(self) -> None:
        """End every process, whatever it does."""
        processes: list[Any] = getattr(self, "processes", [])
        for process in processes:
            process.terminate()
        _join(processes, 1.0)
        for process in processes:
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in getattr(self, "parent_pipes", []):
            pipe.close()
        self.closed = True


def _join(processes: Sequence[Any], seconds: float) -> None:
    until = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))


def _end_of(process: Any) -> str:
    code: int = process.exitcode
    if code < 0:
        return f"its process was killed by {signal.Signals(-code).name}"
    return f"its process ended with exit code {code}"
