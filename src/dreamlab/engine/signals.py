"""Ctrl-C and SIGTERM: the first asks, a second one stops at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dreamlab.core.errors import Stopped


@contextmanager
def on_stop(asked: Callable[[], bool], ask: Callable[[], None]) -> Iterator[None]:
    """Call `ask` for the first Ctrl-C or SIGTERM inside the block; `asked` says if that was it.

    Signals belong to the main thread; in another one nobody presses Ctrl-C.
    """

    def handle(number: int, frame: Any) -> None:
        if asked():
            raise Stopped
        ask()

    try:
        before = {n: signal.signal(n, handle) for n in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
