"""Where a replay's arrays live (RAM, pinned, GPU, a mapped file) and how they are kept on disk."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dreamlab.core.errors import CheckpointError, ConfigError
from dreamlab.core.files import write_atomic
from dreamlab.core.types import Array
from dreamlab.data.buffer import Place, as_tensor


class Store:
    """Preallocated arrays `[ticks, num_envs, ...]`, read by rows of the flattened first two axes."""

    def __init__(self, row: dict[str, Tensor], ticks: int, kind: str, place: Place) -> None:
        self.kind, self.device = kind, torch.device(place.device)
        self.data = {k: _allocate(k, v, ticks, kind, place) for k, v in row.items()}
        self.flat = {k: v.flatten(0, 1) for k, v in self.data.items()}
        on_gpu = kind == "gpu"
        self.views = {} if on_gpu else {k: _numpy(v) for k, v in self.data.items()}
        self.rows = ticks * next(iter(row.values())).shape[0]
        self.dirty: dict[str, Tensor] = {}
        self.out: dict[str, Tensor] = {}

    @property
    def nbytes(self) -> int:
        return sum(v.nbytes for v in self.data.values())

    def write(self, slot: int, row: dict[str, Array | Tensor]) -> None:
        """Put one step of every environment into a slot."""
        for name, value in row.items():
            if self.views and not isinstance(value, Tensor):
                self.views[name][slot] = value
            else:
                self.data[name][slot] = as_tensor(value)
        for mask in self.dirty.values():
            mask.view(-1, self.data["reward"].shape[1])[slot] = False

    def read(self, index: Tensor) -> dict[str, Tensor]:
        """Return the rows `index` [b, t] on the run's device, in memory that the next read reuses."""
        rows = index.reshape(-1)
        if self.kind == "gpu":
            rows = rows.to(self.device, non_blocking=True)
        shape = tuple(index.shape)
        out: dict[str, Tensor] = {}
        for name, flat in self.flat.items():
            into = self._into(name, flat, len(rows))
            torch.index_select(flat, 0, rows, out=into)
            batch = into.view(*shape, *flat.shape[1:])
            out[name] = batch.to(self.device, non_blocking=True) if self.kind != "gpu" else batch
        return out

    def _into(self, name: str, flat: Tensor, num: int) -> Tensor:
        into = self.out.get(name)
        if into is None or len(into) != num:
            pinned = self.kind == "pinned"
            into = torch.empty((num, *flat.shape[1:]), dtype=flat.dtype, device=flat.device, pin_memory=pinned)
            self.out[name] = into
        return into

    def patch(self, name: str, rows: Tensor, values: Tensor) -> None:
        """Overwrite single rows of one array, and remember that they changed since they were saved."""
        flat = self.flat[name]
        flat[rows.to(flat.device)] = values.to(flat.device, flat.dtype)
        if name not in self.dirty:
            self.dirty[name] = torch.zeros(self.rows, dtype=torch.bool)
        self.dirty[name][rows] = True

    def fill(self, slots: Tensor, chunk: dict[str, Tensor]) -> None:
        """Put consecutive ticks back into their slots."""
        for name, value in chunk.items():
            self.data[name][slots.to(self.data[name].device)] = value.to(self.data[name].device)


def _allocate(name: str, value: Tensor, ticks: int, kind: str, place: Place) -> Tensor:
    shape = (ticks, *value.shape)
    if kind == "gpu":
        return torch.zeros(shape, dtype=value.dtype, device=place.device)
    if kind == "pinned":
        return torch.zeros(shape, dtype=value.dtype, pin_memory=torch.cuda.is_available())
    if kind == "ram":
        return torch.zeros(shape, dtype=value.dtype)
    if place.folder is None:
        raise ConfigError("replay: storage=disk needs a run folder")
    place.folder.mkdir(parents=True, exist_ok=True)
    path = place.folder / f"map_{name.replace('/', '-')}.bin"
    size = int(np.prod(shape)) * value.element_size()
    raw = np.memmap(path, np.uint8, "w+", shape=(max(size, 1),))
    return torch.from_numpy(raw).view(value.dtype).view(shape)


def _numpy(value: Tensor) -> Array:
    """Return a numpy view; bfloat16 has none there, so it is only ever written as a tensor."""
    return value.view(torch.int16).numpy() if value.dtype == torch.bfloat16 else value.numpy()


class ChunkFiles:
    """A replay on disk: files of consecutive ticks that are only appended, and patches of single rows.

    steps_000_100.pt  steps_100_250.pt  patch_250.pt    the checkpoint at tick 250 needs these three;
    steps_250_300.pt                                    written after it, ignored when it is loaded.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def append(self, store: Store, episode: Array, first: int, last: int) -> None:
        """Write ticks `first` to `last` (excluded), and rows written back since the last time."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write_patches(store, last, len(episode))
        if last > first:
            slots = torch.arange(first, last) % len(episode)
            data = {k: v[slots.to(v.device)].cpu() for k, v in store.data.items()}
            payload = {"data": data, "episode": torch.from_numpy(episode[slots.numpy()])}
            write_atomic(self.folder / f"steps_{first}_{last}.pt", lambda f: torch.save(payload, f))

    def _write_patches(self, store: Store, last: int, ticks: int) -> None:
        """Name patched rows by their ids: the row itself will belong to another step one day."""
        payload: dict[str, Any] = {}
        envs = store.rows // ticks
        for name, mask in store.dirty.items():
            rows = mask.nonzero()[:, 0]
            if len(rows):
                flat = store.flat[name]
                tick = last - 1 - (last - 1 - rows // envs) % ticks
                values = flat[rows.to(flat.device)].cpu()
                payload[name] = {"ids": tick * envs + rows % envs, "values": values}
            mask.zero_()
        if payload:
            write_atomic(self.folder / f"patch_{last}.pt", lambda f: torch.save(payload, f))

    def chunks(self) -> list[tuple[int, int, Path]]:
        """Return first tick, last tick (excluded) and path of every file of steps, in order."""
        found = (re.fullmatch(r"steps_(\d+)_(\d+)\.pt", p.name) for p in self.folder.glob("steps_*.pt"))
        return sorted((int(m[1]), int(m[2]), self.folder / m[0]) for m in found if m)

    def patches(self) -> list[tuple[int, Path]]:
        """Return the tick and path of every patch, in order."""
        found = (re.fullmatch(r"patch_(\d+)\.pt", p.name) for p in self.folder.glob("patch_*.pt"))
        return sorted((int(m[1]), self.folder / m[0]) for m in found if m)

    def truncate(self, last: int) -> None:
        """Delete what was written after tick `last`."""
        for _, end, path in self.chunks():
            if end > last:
                path.unlink()
        for tick, path in self.patches():
            if tick > last:
                path.unlink()

    def read(self, first: int, last: int) -> Iterator[tuple[int, dict[str, Tensor], Array]]:
        """Yield the files that hold ticks `first` to `last`; raise if one is missing."""
        reached = max(first, 0)
        for start, end, path in self.chunks():
            if end <= reached:
                continue
            if start > reached:
                break
            payload = torch.load(path, weights_only=True)
            skip = max(first, 0) - start if start < first else 0
            yield start + skip, {k: v[skip:] for k, v in payload["data"].items()}, payload["episode"].numpy()[skip:]
            reached = end
        if reached < last:
            raise CheckpointError(f"{self.folder}: the steps from tick {reached} to {last} are missing")

    def apply_patches(self, store: Store, last: int, num_envs: int) -> None:
        """Redo the write-backs that had happened before tick `last` was saved."""
        oldest = last * num_envs - store.rows
        for _, path in self.patches():
            for name, patch in torch.load(path, weights_only=True).items():
                live = patch["ids"] >= oldest
                store.patch(name, patch["ids"][live] % store.rows, patch["values"][live])
        store.dirty.clear()

    def prune(self, first: int) -> None:
        """Delete files that hold only ticks before `first`."""
        for _, end, path in self.chunks():
            if end <= first:
                path.unlink()
        for tick, path in self.patches():
            if tick <= first:
                path.unlink()
