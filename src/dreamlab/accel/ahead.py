"""Triton kernels built in parallel, before they are launched.

Triton compiles a kernel when it is first launched, one after another: a second or two each, with
the C code that launches it. Here what is about to be launched is recorded and built in threads;
most of the work is done outside Python. A rehearsal starts this early and launches nothing.
"""

from __future__ import annotations

import importlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache, partial
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dreamlab.accel import dispatch

MOST_THREADS = 16
BUILDS = not dispatch.INTERPRETED
"""Whether there is anything to build."""
ALIGNED = 16
"""Bytes: kernels are specialized for pointers that are multiples of this."""

_started: dict[Any, Future[Any]] = {}
_locks: defaultdict[Any, Lock] = defaultdict(Lock)


class Rehearsal:
    """Whether kernels are only built: then nothing else is compiled either."""

    on = False


class Launch(NamedTuple):
    """A launch of a kernel."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def key(self) -> Any:
        """Return what a build depends on, or more than that."""
        return self.kernel, *map(_known, self.args), *self.options.items(), _device(self)


class Recorder:
    """A module of kernels that are not launched but noted."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self.launches: list[Launch] = []

    def __getattr__(self, name: str) -> Any:
        return _Noted(getattr(self._module, name), self.launches)


class _Noted:
    def __init__(self, kernel: Any, launches: list[Launch]) -> None:
        self.kernel, self.launches = kernel, launches

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return partial(self._note, grid)

    def _note(self, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
        self.launches.append(Launch(self.kernel, grid, args, options))


@contextmanager
def rehearsal() -> Iterator[None]:
    """Let kernels be built, and not be launched, inside the block."""
    before, Rehearsal.on = Rehearsal.on, True
    try:
        yield
    finally:
        Rehearsal.on = before


def build(kernels: Any, launch: Callable[[Any], object]) -> bool:
    """Build the kernels that `launch` launches, if they are new; return whether to launch any.

    `launch` gets a module of kernels and must do nothing besides launching them.
    """
    if not BUILDS:
        return not Rehearsal.on
    recorder = Recorder(kernels)
    launch(recorder)
    futures = [_start(found) for found in recorder.launches]
    if Rehearsal.on:
        return False
    for future in futures:
        future.result()
    return True


def finish() -> None:
    """Wait until everything begun is built: no kernel may be loaded while a graph is captured."""
    wait(list(_started.values()))


def _start(launch: Launch) -> Future[Any]:
    """Begin to build a kernel unless it has been begun."""
    key = launch.key
    if key not in _started:
        _ = launch.kernel.cache_key  # of its source: kernels share functions, so one at a time
        _started[key] = _threads().submit(_build, launch, _device(launch), _locks[launch.kernel])
    return _started[key]


@cache
def _threads() -> ThreadPoolExecutor:
    if dispatch.HAS_TRITON:  # its driver is compiled once, and by one thread
        importlib.import_module("triton.runtime").driver.active.get_current_target()
    return ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1), "triton")


def _build(launch: Launch, device: torch.device, lock: Lock) -> None:
    """Compile a kernel, then the C code that launches it, and load both."""
    if device.type == "cuda":
        torch.cuda.set_device(device)  # of this thread
    with lock:
        built = launch.kernel.warmup(*launch.args, grid=launch.grid, **launch.options)
        _ = built.run


def _device(launch: Launch) -> torch.device:
    return next(x.device for x in launch.args if isinstance(x, Tensor))


def _known(x: Any) -> Any:
    return (x.dtype, x.data_ptr() % ALIGNED == 0) if isinstance(x, Tensor) else (type(x), x)
