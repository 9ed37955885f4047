"""A replay on disk: files are only appended, so that a checkpoint is a place in their sequence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dreamlab.core.config import load
from dreamlab.core.errors import CheckpointError, ConfigError
from dreamlab.core.files import checksum_of, write_json, write_summed
from dreamlab.core.readers import MissingFileError, read_json
from dreamlab.core.types import Array, Spec
from dreamlab.data.storage import StepArrays

SPEC = "spec.json"
CHUNK_BYTES = 2**28  # a save never holds more than this in memory
NAME = re.compile(r"(?P<stem>(steps|patch)_(\d+)_(\d+))(_(?P<sum>[0-9a-f]{8}))?\.pt")


class ChunkFiles:
    """Files of consecutive ticks, and patches: rows that were written back after they were saved.

    save 1     steps_0_100_*.pt
    save 2     steps_100_250_*.pt  patch_2_250_*.pt     written at tick 250
    save 3                         patch_3_250_*.pt     no step since, but extras were written back
    save 4     steps_250_300_*.pt                       passed over when save 3 is loaded
    * is the checksum of the file's content; files of older runs have none.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def append(self, store: StepArrays, episode: Array, first: int, last: int) -> None:
        """Write ticks `first` to `last` (excluded)."""
        self.folder.mkdir(parents=True, exist_ok=True)
        size = max(1, CHUNK_BYTES * len(episode) // max(store.nbytes, 1))
        for start in range(first, last, size):
            end = min(start + size, last)
            slots = torch.arange(start, end) % len(episode)
            payload = {"data": store.take(start, end), "episode": torch.from_numpy(episode)[slots]}
            _write(self.folder, f"steps_{start}_{end}", payload)

    def append_patch(self, store: StepArrays, save: int, saved: int, last: int) -> None:
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
            _write(self.folder, f"patch_{save}_{last}", payload)

    def chunks(self) -> list[tuple[int, int, Path]]:
        """Return first tick, last tick (excluded) and path of every file of steps, in order."""
        return self._find("steps")

    def names(self, first: int, last: int) -> list[str]:
        """Return the names of the files that ticks `first` to `last` (excluded) are in."""
        return [p.name for start, end, p in self.chunks() if end > first and start < last >= end]

    def newest_stretch(self) -> tuple[int, int]:
        """Return the longest stretch of ticks without a gap that ends with the newest."""
        *before, (first, last, _) = self.chunks()
        for start, end, _ in reversed(before):
            if end < first:
                break
            first = min(first, start)
        return first, last

    def num_envs(self) -> int:
        """Return how many streams the files hold."""
        return len(_read(self.chunks()[-1][2])["data"]["reward"])

    def write_spec(self, spec: Spec) -> None:
        """Write the description of the steps, unless it exists."""
        if not (self.folder / SPEC).exists():
            write_json(self.folder / SPEC, asdict(spec))

    def read_spec(self) -> Spec:
        """Return what the steps look like."""
        try:
            return load(Spec, read_json(self.folder / SPEC), SPEC)
        except MissingFileError:
            raise ConfigError(
                f"{self.folder} has no description of its steps: it was written by an older "
                f"version. Resume that run briefly to write one"
            ) from None

    def patches(self) -> list[tuple[int, int, Path]]:
        """Return the number of the save, its tick and path of every patch, in order."""
        return self._find("patch")

    def _find(self, kind: str) -> list[tuple[int, int, Path]]:
        found = (NAME.fullmatch(p.name) for p in self.folder.glob(f"{kind}_*.pt"))
        return sorted((int(m[3]), int(m[4]), self.folder / m[0]) for m in found if m)

    def truncate(self, save: int, last: int) -> None:
        """Delete what was written after save number `save`, which was at tick `last`."""
        for _, end, path in self.chunks():
            if end > last:
                path.unlink()
        for number, _, path in self.patches():
            if number > save:
                path.unlink()
        for path in self.folder.glob(".*.pt.*.tmp"):  # a killed process was writing it
            path.unlink()

    def read(self, first: int, last: int) -> Iterator[tuple[int, dict[str, Tensor], Array]]:
        """Yield the ticks `first` to `last` file by file; raise if one is missing or corrupted.

        What ends after `last` was written after the state that requests it.
        """
        reached = first
        for start, end, path in self.chunks():
            if end <= reached or end > last:
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

    def apply_patches(self, store: StepArrays, save: int, last: int) -> None:
        """Redo the write-backs up to save number `save` to steps that are still in the store."""
        self.copy_patches(store, save, (last - store.ticks, last), 0)

    def copy_patches(
        self, store: StepArrays, save: int, ticks: tuple[int, int], shift: int
    ) -> None:
        """Redo the write-backs to these ticks where they are now: `shift` ticks later."""
        first, last = (t * store.num_envs for t in ticks)
        for number, _, path in self.patches():
            if number > save:
                break
            for name, patch in _read(path).items():
                live = (patch["ids"] >= first) & (patch["ids"] < last)
                ids = patch["ids"][live] + shift * store.num_envs
                store.patch(name, store.rows(ids), patch["values"][live])
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
                # a corrupted one is said when the run is resumed: what is in memory is whole
                with suppress(CheckpointError):
                    _thin(path, seen, first * num_envs, tick * num_envs)


def _thin(path: Path, seen: dict[str, Tensor], oldest: int, newest: int) -> None:
    """Rewrite a patch if most of it is void: about lost steps, or rows `seen` in later patches."""
    patches, live = _map(path), {}
    for name, patch in patches.items():
        ids, size = patch["ids"], newest - oldest
        mask = seen.setdefault(name, torch.zeros(size, dtype=torch.bool))
        rows = (ids - oldest).clamp(0, size - 1)  # what is corrupted must not stop the training
        live[name] = (ids >= oldest) & ~mask[rows]
        mask[rows[live[name]]] = True
    left = sum(int(rows.sum()) for rows in live.values())
    if left == 0:
        path.unlink()
    elif 2 * left < sum(len(rows) for rows in live.values()):
        _verify(path)  # a corrupted one must not get a checksum that is right
        parts = {k: {n: v[live[k]] for n, v in patch.items()} for k, patch in patches.items()}
        kept = {k: patch for k, patch in parts.items() if len(patch["ids"])}
        written = _write(path.parent, _named(path)["stem"], kept)
        if written != path:
            path.unlink()


def _write(folder: Path, stem: str, payload: Any) -> Path:
    return write_summed(folder, stem, ".pt", lambda f: torch.save(payload, f))


def _read(path: Path) -> Any:
    """Return the content of a file, verified by its checksum."""
    _verify(path)
    return _map(path)


def _verify(path: Path) -> None:
    """Raise if a file does not match the checksum in its name; older files have none."""
    if (known := _named(path)["sum"]) and checksum_of(path) != known:
        raise CheckpointError(f"{path} is corrupted (checksum mismatch)")


def _named(path: Path) -> re.Match[str]:
    found = NAME.fullmatch(path.name)
    assert found is not None, path
    return found


def _map(path: Path) -> Any:
    """Map a file into memory: only what is used is read from the disk."""
    try:
        return torch.load(path, weights_only=True, mmap=True)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # torch has no error of its own for a file that is cut short
        raise CheckpointError(f"{path} is corrupted: {error}") from error
