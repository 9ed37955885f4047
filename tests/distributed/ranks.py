"""Runs a function in several processes that are one world, and returns what each came to."""

from __future__ import annotations

import os
import pickle
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from dreamlab.core import world

PATIENCE_S = 240.0


def run_ranks(fn: Callable[[int], Any], folder: Path, size: int = 2) -> list[Any]:
    """Return fn(rank) of each of `size` forked processes, by rank; raise if one fails or hangs."""
    folder.mkdir(parents=True, exist_ok=True)
    number = len(list(folder.glob("store*")))
    store, out = folder / f"store{number}", [folder / f"out{number}_{r}" for r in range(size)]
    store.touch()
    children = [_fork(fn, store, rank, size, out[rank]) for rank in range(size)]
    until = time.monotonic() + PATIENCE_S
    try:
        for pid in list(children):
            while os.waitpid(pid, os.WNOHANG)[0] == 0:
                assert time.monotonic() < until, "the processes do not come to an end"
                time.sleep(0.005)
            children.remove(pid)
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    found = [pickle.loads(p.read_bytes()) if p.exists() else ("died", "") for p in out]
    wrong = [f"rank {r}: {text}" for r, (kind, text) in enumerate(found) if kind != "done"]
    assert not wrong, "\n".join(wrong)
    return [value for _, value in found]


def _fork(fn: Callable[[int], Any], store: Path, rank: int, size: int, out: Path) -> int:
    if pid := os.fork():
        return pid
    try:
        place = world.World(rank, size, rank, size)
        with world.joined(place, timeout_s=PATIENCE_S, store=dist.FileStore(str(store), size)):
            result = ("done", fn(rank))
    except BaseException:
        result = ("failed", traceback.format_exc())
    out.write_bytes(pickle.dumps(result))
    os._exit(0)
