"""Seconds of a call on a device that has been at work for a while."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

WARM_S = 2.0
"""An idle GPU lowers its clock, and takes a while to raise it again."""


HOLD = """
import sys, torch
if torch.cuda.is_available():
    torch.zeros(1, device="cuda")
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def beside(count: int) -> Iterator[None]:
    """Let so many idle processes hold a context on the GPU inside the block.

    On an H200 an update is some 6 % faster among others than alone, and nobody knows why.
    """
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with ExitStack() as stack:
        held = [
            stack.enter_context(subprocess.Popen([sys.executable, "-c", HOLD], text=True, **pipes))
            for _ in range(count)
        ]
        for process in held:
            assert process.stdout is not None
            process.stdout.readline()
        yield  # leaving closes their standard input, and they end


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
