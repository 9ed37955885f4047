"""Seconds of a call on a device that has been at work for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

WARM_S = 2.0
"""An idle GPU lowers its clock, and takes a while to raise it again."""


def warmed(call: Callable[[int], Any], wait: Callable[[], Any], seconds: float) -> None:
    """Call for so many seconds, a few calls ahead of the device at most."""
    until, i = time.perf_counter() + seconds, 0
    while time.perf_counter() < until:
        for _ in range(10):
            call(i)
            i += 1
        wait()


def rounds_of(
    call: Callable[[int], Any], wait: Callable[[], Any], rounds: int, calls: int
) -> list[float]:
    """Return the seconds of a call in each round, waiting for the device after each round."""
    times: list[float] = []
    for _ in range(rounds):
        began = time.perf_counter()
        for i in range(calls):
            call(i)
        wait()
        times.append((time.perf_counter() - began) / calls)
    return times


def median(times: list[float]) -> float:
    """Return the middle one."""
    return sorted(times)[len(times) // 2]
