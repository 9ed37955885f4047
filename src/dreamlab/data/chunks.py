"""A replay on disk: files are only appended, so that a checkpoint is a place in their sequence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dreamlab.core.errors import CheckpointError
from dreamlab.core.files import write_atomic
from dreamlab.core.types import Array
from dreamlab.data.storage import Store

CHUNK_BYTES = 2**28  # a save never holds more than this in memory


class ChunkFiles:
    """Files of consecutive ticks, and patches: rows that were written back after they were saved.

    save 1     steps_0_100.pt
    save 2     steps_100_250.pt  patch_2_250.pt     written at tick 250
    save 3                       patch_3_250.pt     no step since, but extras were written back
    save 4     steps_250_300.pt                     forgotten when the state of save 3 is loaded
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def append(self, store: Store, episode: Array, first: int, last: int) -> None:
        """Write ticks `first` to `last` (excluded)."""
        self.folder.mkdir(parents=True, exist_ok=True)
        size = max(1, CHUNK_BYTES * len(episode) // max(store.nbytes, 1))
        for start in range(first, last, size):
            end = min(start + size, last)
            slots = torch.arange(start, end) % len(episode)
            payload = {"data": store.take(start, end), "episode": torch.from_numpy(episode)[slots]}
            _write(self.folder / f"steps_{start}_{end}.pt", payload)

    def append_patch(self, store: Store, save: int, saved: int, last: int) -> None:
        """Write the rows that were written back since the last save and were on disk by then.

        They are named by their ids: the row itself will belong to another step one day.
        """
        payload: dict[str, Any] = {}
        for name, mask in store.dirty.items():
            rows, flat = mask.nonzero()[:, 0], store.flat[name]
            ids = store.ids(rows, last)
            rows, ids = rows[ids < saved * store.num_envs], ids[ids < saved * store.num_envs]
            if len(rows):
                values = flat.index_select(0, rows.to(flat.device)).cpu()
                payload[name] = {"ids": ids, "values": values}
            mask.zero_()
        if payload:
            _write(self.folder / f"patch_{save}_{last}.pt", payload)

    def chunks(self) -> list[tuple[int, int, Path]]:
        """Return first tick, last tick (excluded) and path of every file of steps, in order."""
        return self._find("steps")

    def patches(self) -> list[tuple[int, int, Path]]:
        """Return the number of the save, its tick and path of every patch, in order."""
        return self._find("patch")

    def _find(self, kind: str) -> list[tuple[int, int, Path]]:
        names = (p.name for p in self.folder.glob(f"{kind}_*.pt"))
        found = (re.fullmatch(rf"{kind}_(\d+)_(\d+)\.pt", name) for name in names)
        return sorted((int(m[1]), int(m[2]), self.folder / m[0]) for m in found if m)

    def truncate(self, save: int, last: int) -> None:
        """Delete what was written after save number `save`, which was at tick `last`."""
        for _, end, path in self.chunks():
            if end > last:
                path.unlink()
        for number, _, path in self.patches():
            if number > save:
                path.unlink()

    def read(self, first: int, last: int) -> Iterator[tuple[int, dict[str, Tensor], Array]]:
        """Yield the ticks `first` to `last` file by file; raise if one is missing."""
        reached = first
        for start, end, path in self.chunks():
            if end <= reached:
                continue
            if start > reached:
                break
            payload, skip = _read(path), reached - start
            data = {k: v[:, skip:] for k, v in payload["data"].items()}
            yield reached, data, payload["episode"].numpy()[skip:]
            reached = end
        if reached < last:
            text = f"the steps from tick {reached} to {last} are missing"
            raise CheckpointError(f"{self.folder}: {text}")

    def apply_patches(self, store: Store, last: int) -> None:
        """Redo the write-backs to steps that are still in the store."""
        oldest = (last - store.ticks) * store.num_envs
        for _, _, path in self.patches():
            for name, patch in _read(path).items():
                live = patch["ids"] >= oldest
                store.patch(name, store.rows(patch["ids"][live]), patch["values"][live])
        store.dirty.clear()

    def prune(self, save: int, first: int, num_envs: int) -> None:
        """Delete what is not needed by save number `save` and later ones, from tick `first`."""
        for _, end, path in self.chunks():
            if end <= first:
                path.unlink()
        seen: dict[str, Tensor] = {}
        for number, tick, path in reversed(self.patches()):
            if tick <= first:
                path.unlink()
            elif number <= save:
                _thin(path, seen, first * num_envs, tick * num_envs)


def _thin(path: Path, seen: dict[str, Tensor], oldest: int, newest: int) -> None:
    """Rewrite a patch if most of it is void: about lost steps, or rows `seen` in later patches."""
    patches, live = _read(path), {}
    for name, patch in patches.items():
        ids = patch["ids"]
        mask = seen.setdefault(name, torch.zeros(newest - oldest, dtype=torch.bool))
        live[name] = (ids >= oldest) & ~mask[(ids - oldest).clamp(min=0)]
        mask[ids[live[name]] - oldest] = True
    left = sum(int(rows.sum()) for rows in live.values())
    if left == 0:
        path.unlink()
    elif 2 * left < sum(len(rows) for rows in live.values()):
        parts = {k: {n: v[live[k]] for n, v in patch.items()} for k, patch in patches.items()}
        _write(path, {k: patch for k, patch in parts.items() if len(patch["ids"])})


def _write(path: Path, payload: Any) -> None:
    write_atomic(path, lambda f: torch.save(payload, f))


def _read(path: Path) -> Any:
    """Map a file into memory: only what is used is read from the disk."""
    return torch.load(path, weights_only=True, mmap=True)
