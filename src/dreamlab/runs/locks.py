"""Locks that never hang: they are tried until a time is up, and end with their process."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    until = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(RETRY_S)
        except OSError:
            return True


def is_writing(folder: Path) -> bool:
    """Tell whether a process holds the lock that a run directory has while it is trained."""
    try:
        handle = os.open(folder / ".lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        return not acquire(handle, 0, shared=True)
    finally:
        os.close(handle)
