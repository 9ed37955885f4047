"""A replay's share of what other processes had stored: they were more, or fewer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from dreamlab.core.types import Array
from dreamlab.data.chunks import ChunkFiles
from dreamlab.data.samplers import Window

if TYPE_CHECKING:
    from dreamlab.data.replay import Replay

State = dict[str, Any]


def regroup(replay: Replay, parts: Sequence[State], rank: int, size: int) -> str:
    """Fill a replay with one of `size` equal shares of the ticks of all `parts`, one after another.

    Nothing is deleted: the share gets numbers that no file of this process has yet, so that until
    the next checkpoint the last one is complete. Return what could not be kept.
    """
    counts = [_count(p) for p in parts]
    begin, end = (sum(counts) * r // size for r in (rank, rank + 1))
    _clear(replay, parts[rank] if rank < len(parts) else None)
    replay.rng = np.random.default_rng([replay.place.seed, sum(counts), size])
    at, fits = 0, max(begin, end - replay.ticks)  # what there is no room for is not read
    for number, (part, count) in enumerate(zip(parts, counts, strict=True)):
        low, high = max(fits - at, 0), min(end - at, count)
        if low < high:
            oldest = int(part["added"]) - count
            _append(replay, _files(replay, number, rank), part, (oldest + low, oldest + high))
        at += count
    replay.recount()
    lost = [f"{_dropped(replay, begin, end):,} of the oldest steps, for which there is no room"]
    lost = lost if _dropped(replay, begin, end) else []
    if replay.sampler is not None:
        former = [(p["sampler"], _window(replay, p)) for p in parts if _count(p)]
        lost += replay.sampler.take_over(replay.window(), former)
    return " and ".join(lost)


def keep_place(buffer: Any, parts: Sequence[State], rank: int, size: int) -> str:
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


def _count(part: State) -> int:
    """Return how many ticks a process had stored."""
    return min(int(part["added"]) - int(part.get("first", 0)), int(part["ticks"]))


def _dropped(replay: Replay, begin: int, end: int) -> int:
    return max(0, end - begin - replay.ticks) * replay.num_envs


def _clear(replay: Replay, own: State | None) -> None:
    """Empty a replay, also of an attempt that failed; it goes on with the numbers of its files."""
    replay.store, replay.sampler, replay.drawable = None, None, False
    replay.current = np.zeros_like(replay.current)
    replay.first = replay.added = replay.saved = int(own["added"]) if own else 0
    replay.saves = int(own["saves"]) if own else 0


def _window(replay: Replay, part: State) -> Window:
    """Return the starts that existed for a process, as far as its state knows."""
    ticks = int(part["added"]) - _count(part), int(part["added"]) - replay.config.length + 1
    oldest, newest = (t * replay.num_envs for t in ticks)
    return Window(oldest, newest, None, replay.num_envs, replay.config.length)


def _files(replay: Replay, number: int, rank: int) -> ChunkFiles:
    """Return the files of process `number`; this one is `rank`."""
    assert replay.place.folder is not None
    root = replay.place.folder.parent if rank else replay.place.folder
    return ChunkFiles(root / f"rank{number}" if number else root)


def _append(replay: Replay, files: ChunkFiles, part: State, span: tuple[int, int]) -> None:
    """Add ticks of another process, with all that was written back, as episodes of their own.

    They go from file to file: in memory they may be too many.
    """
    (first, last), begin = span, replay.added
    shift = np.zeros_like(replay.current)
    for at, data, episode in files.read(first, int(part["added"])):
        if at >= last:
            break
        chunk = {k: v[:, : last - at] for k, v in data.items()}
        if at == first:
            chunk["is_first"] = chunk["is_first"].clone()
            chunk["is_first"][:, 0] = True  # what came before it here is of other environments
            shift = replay.current + 1 - episode[0]
        _fill(replay, chunk, episode[: last - at] + shift)
    assert replay.store is not None
    kept = max(first, first + replay.added - replay.ticks - begin)
    files.copy_patches(replay.store, int(part["saves"]), (kept, last), begin - first)


def _fill(replay: Replay, chunk: dict[str, Tensor], episode: Array) -> None:
    """Add consecutive ticks [n, t, ...], with the episode of each step [t, n]."""
    if replay.store is None:
        replay.allocate({k: v[:, 0] for k, v in chunk.items()})
    assert replay.store is not None
    count, most = len(episode), replay.ticks
    over = max(0, count - most)
    start = replay.added + over
    replay.store.fill(start, {k: v[:, over:] for k, v in chunk.items()})
    replay.episode[np.arange(start, replay.added + count) % most] = episode[over:]
    replay.current = episode[-1].copy()
    for _ in range(count):
        replay.added += 1
        replay.announce()


__all__ = ["keep_place", "regroup"]
