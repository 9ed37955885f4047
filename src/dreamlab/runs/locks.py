"""Locks that never hang: they are tried until a time is up, and end with their process."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import lock_descriptor

if sys.platform != "win32":
    import fcntl

RETRY_S = 0.005


@contextmanager
def held(folder: Path, *, shared: bool = False, timeout_s: float = 1.0) -> Iterator[bool]:
    """Hold a lock on a folder; yield False if another process kept it all the time.

    A file system that cannot lock folders (some network ones) yields True: there is nothing to
    wait for.
    """
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        yield True
        return
    try:
        yield acquire(handle, timeout_s, shared=shared)
    finally:
        os.close(handle)


def acquire(handle: int, timeout_s: float, *, shared: bool = False) -> bool:
    """Lock an open file until it is closed; return False if another process kept it locked."""
    until = time.monotonic() + timeout_s
    while True:
        try:
            if _lock_shared(handle) if shared else lock_descriptor(handle, blocking=False):
                return True
        except OSError:
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(RETRY_S)


def _lock_shared(handle: int) -> bool:
    """Try to lock an open file together with other readers; `filelock` has only exclusive locks.

    On Windows readers take turns instead.
    """
    if sys.platform == "win32":
        return lock_descriptor(handle, blocking=False)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_writing(folder: Path) -> bool:
    """Return whether a process holds the lock that a run directory has while it is trained."""
    try:
        handle = os.open(folder / ".lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        return not acquire(handle, 0, shared=True)
    finally:
        os.close(handle)
