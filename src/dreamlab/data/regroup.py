"""A replay's share of what other processes had stored: they were more, or fewer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from dreamlab.core.types import Array

if TYPE_CHECKING:
    from dreamlab.data.replay import Replay

Piece = tuple[dict[str, Tensor], Array]
"""Consecutive ticks [n, t, ...], and the episode of each step [t, n]."""


def regroup(replay: Replay, parts: Sequence[dict[str, Any]], rank: int, size: int) -> str:
    """Fill a replay with one of `size` equal shares of the ticks of all `parts`, one after another.

    Nothing is deleted: the share gets numbers that no file of this process has yet, so that until
    the next checkpoint the last one is complete. Return what could not be kept.
    """
    counts = [_count(p) for p in parts]
    begin, end = (sum(counts) * r // size for r in (rank, rank + 1))
    own = parts[rank] if rank < len(parts) else None
    replay.first = replay.added = replay.saved = int(own["added"]) if own else 0
    replay.saves = int(own["saves"]) if own else 0
    replay.rng = np.random.default_rng([replay.place.seed, sum(counts), size])
    at = 0
    for number, (part, count) in enumerate(zip(parts, counts, strict=True)):
        low, high = max(begin - at, 0), min(end - at, count)
        if low < high:
            _append(replay, _read(replay, number, rank, part, (low, high)))
        at += count
    replay.recount()
    lost = [f"{_dropped(replay, begin, end):,} of the oldest steps, for which there is no room"]
    lost = lost if _dropped(replay, begin, end) else []
    if replay.sampler is not None and replay.sampler.prioritises:
        lost.append("priorities")
    return " and ".join(lost)


def keep_place(buffer: Any, parts: Sequence[dict[str, Any]], rank: int, size: int) -> str:
    """Go on where this process was in data that each of them reads whole; say what is lost.

    A process that is new begins as in a new run; what a former one knew is dropped.
    """
    if rank < len(parts):
        buffer.load(parts[rank])
    if size == len(parts):
        return ""
    prioritised = getattr(getattr(buffer, "sampler", None), "prioritises", False)
    written = getattr(getattr(buffer, "place", None), "extras", {})
    what = ["position", *(["priorities"] if prioritised else []), *(["extras"] if written else [])]
    num, kind = abs(size - len(parts)), "new" if size > len(parts) else "former"
    return f"{', '.join(what)} of {num} {kind} process{'es' if num > 1 else ''}"


def _count(part: dict[str, Any]) -> int:
    """Return how many ticks a process had stored."""
    return min(int(part["added"]) - int(part.get("first", 0)), int(part["ticks"]))


def _dropped(replay: Replay, begin: int, end: int) -> int:
    return max(0, end - begin - replay.ticks) * replay.num_envs


def _read(
    replay: Replay, number: int, rank: int, part: dict[str, Any], span: tuple[int, int]
) -> Piece:
    """Return ticks of what process `number` had stored, with all that was written back to them."""
    assert replay.place.folder is not None
    root = replay.place.folder.parent if rank else replay.place.folder
    folder = root / f"rank{number}" if number else root
    place = replace(replay.place, folder=folder)
    theirs = type(replay)(replace(replay.config, storage="ram"), place)
    theirs.load(part)
    assert theirs.store is not None
    oldest = theirs.added - _count(part)
    first, last = oldest + span[0], oldest + span[1]
    slots = np.arange(first, last) % theirs.ticks
    return theirs.store.take(first, last), theirs.episode[slots]


def _append(replay: Replay, piece: Piece) -> None:
    """Add ticks to a replay, as episodes of their own."""
    data, episode = piece
    data["is_first"][:, 0] = True  # what came before it here is of other environments
    if replay.store is None:
        replay.allocate({k: v[:, 0] for k, v in data.items()})
    assert replay.store is not None
    count, most = len(episode), replay.ticks
    keep = slice(max(0, count - most), None)
    start = replay.added + max(0, count - most)
    replay.store.fill(start, {k: v[:, keep].contiguous() for k, v in data.items()})
    ids = episode - episode[:1] + replay.current + 1
    replay.episode[np.arange(start, replay.added + count) % most] = ids[keep]
    replay.current = ids[-1].copy()
    for _ in range(count):
        replay.added += 1
        replay.announce()


__all__ = ["keep_place", "regroup"]
