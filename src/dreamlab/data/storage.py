"""Where a replay's arrays live: RAM, page-locked RAM, the GPU, or a mapped file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dreamlab.core.errors import ConfigError
from dreamlab.core.types import Array
from dreamlab.data.source import BufferContext
from dreamlab.data.store import as_tensor

GPU_SHARE = 0.4  # of the GPU's free memory; the rest is left to the training


def choose(kind: str, need: int, device: torch.device) -> str:
    """Return where `need` bytes go: "auto" is the GPU of the run if they fit well, else RAM.

    Batches cross from RAM through page-locked stages; to lock all of it would gain nothing.
    """
    if kind != "auto":
        return kind
    if device.type != "cuda":
        return "ram"
    free, _ = torch.cuda.mem_get_info(device)
    return "gpu" if need <= GPU_SHARE * free else "ram"


@dataclass
class Stage:
    """Memory that a batch is gathered in, and when it was last sent to the GPU."""

    arrays: dict[str, Tensor]
    sent: torch.cuda.Event | None = None


class StepArrays:
    """Preallocated arrays `[num_envs, ticks, ...]`; a row is a place in the first two axes.

    An environment's ticks lie side by side, so that a window is one stretch of memory.
    """

    def __init__(self, row: dict[str, Tensor], ticks: int, kind: str, place: BufferContext) -> None:
        self.device = torch.device(place.device)
        kind = choose(kind, ticks * sum(v.nbytes for v in row.values()), self.device)
        self.on_gpu = kind == "gpu" and self.device.type == "cuda"
        self.data = {k: _allocate(k, v, ticks, kind, place) for k, v in row.items()}
        self.flat = {k: v.flatten(0, 1) for k, v in self.data.items()}
        self.views = {} if self.on_gpu else {k: _numpy(v) for k, v in self.data.items()}
        self.num_envs, self.ticks = place.num_envs, ticks
        self.dirty: dict[str, Tensor] = {}
        self.stages: list[Stage] = []

    @property
    def nbytes(self) -> int:
        return sum(v.nbytes for v in self.data.values())

    def write(self, slot: int, row: dict[str, Array | Tensor]) -> None:
        """Put one step of every environment into a slot."""
        if row.keys() != self.data.keys():
            names = sorted(row.keys() ^ self.data.keys())
            raise ConfigError(
                f"replay: every step must have the same arrays; {names} are not in all of them"
            )
        for name, value in row.items():
            if self.on_gpu:
                self.data[name][:, slot] = send(as_tensor(value), self.device)
            elif isinstance(value, Tensor):
                self.views[name][:, slot] = _numpy(_in_ram(value, self.data[name].dtype))
            else:
                self.views[name][:, slot] = value
        for mask in self.dirty.values():
            mask.view(self.num_envs, self.ticks)[:, slot] = False

    def rows(self, ids: Tensor) -> Tensor:
        """Return the rows of the steps with these ids, `tick * num_envs + env`."""
        tick = torch.div(ids, self.num_envs, rounding_mode="floor")
        return (ids - tick * self.num_envs) * self.ticks + tick % self.ticks

    def ids(self, rows: Tensor, last: int) -> Tensor:
        """Return the ids of the steps in these rows, when `last` ticks have been stored."""
        env = torch.div(rows, self.ticks, rounding_mode="floor")
        tick = last - 1 - (last - 1 - rows % self.ticks) % self.ticks
        return tick * self.num_envs + env

    def read(self, index: Tensor) -> dict[str, Tensor]:
        """Return the rows `index` [b, t] on the run's device, in memory the next read reuses."""
        rows = index.reshape(-1)
        stage = self._next_stage(len(rows))
        if self.on_gpu:
            rows = send(rows, self.device)
        for name, flat in self.flat.items():
            torch.index_select(flat, 0, rows, out=stage.arrays[name])
        out = {k: v.view(*index.shape, *v.shape[1:]) for k, v in stage.arrays.items()}
        if stage.sent is not None:
            out = {k: v.to(self.device, non_blocking=True) for k, v in out.items()}
            stage.sent.record()
        return out

    def _next_stage(self, num: int) -> Stage:
        """Return memory for `num` rows that is no longer read.

        A batch for the GPU is copied while the host continues, so two stages take turns; the host
        waits only if it is two batches ahead of the copies.
        """
        crosses = self.device.type == "cuda" and not self.on_gpu
        if not self.stages or len(self.stages[0].arrays["reward"]) != num:
            self.stages = [self._new_stage(num, crosses) for _ in range(2 if crosses else 1)]
        self.stages.append(stage := self.stages.pop(0))
        if stage.sent is not None:
            stage.sent.synchronize()
        return stage

    def _new_stage(self, num: int, crosses: bool) -> Stage:
        arrays: dict[str, Tensor] = {}
        for name, flat in self.flat.items():
            shape = (num, *flat.shape[1:])
            if crosses:
                arrays[name] = torch.empty(shape, dtype=flat.dtype, pin_memory=True)
            else:
                arrays[name] = _huge(shape, flat.dtype).to(flat.device)
        return Stage(arrays, torch.cuda.Event() if crosses else None)

    def patch(self, name: str, rows: Tensor, values: Tensor) -> None:
        """Overwrite different rows of one array, and remember that they are not saved."""
        flat = self.flat[name]
        at = send(rows, self.device) if self.on_gpu else rows
        flat.index_copy_(0, at, values.to(flat.device, flat.dtype))
        if name not in self.dirty:
            self.dirty[name] = torch.zeros(len(flat), dtype=torch.bool)
        self.dirty[name][rows] = True

    def fill(self, first: int, chunk: dict[str, Tensor]) -> None:
        """Put consecutive ticks back, beginning with the slot of tick `first`."""
        for name, value in chunk.items():
            data, slot = self.data[name], first % self.ticks
            num = min(value.shape[1], self.ticks - slot)
            data[:, slot : slot + num] = value[:, :num].to(data.device)
            data[:, : value.shape[1] - num] = value[:, num:].to(data.device)

    def take(self, first: int, last: int, names: Sequence[str] = ()) -> dict[str, Tensor]:
        """Return a copy of ticks `first` to `last` (excluded) in RAM, of these arrays or all."""
        slots = torch.arange(first, last) % self.ticks
        taken = {k: self.data[k] for k in names or self.data}
        return {k: v.index_select(1, slots.to(v.device)).cpu() for k, v in taken.items()}


def send(value: Tensor, device: torch.device) -> Tensor:
    """Return a small tensor on `device`; through page-locked memory, so that nothing waits."""
    if device.type == "cuda" and value.device.type == "cpu":
        value = value.pin_memory()
    return value.to(device, non_blocking=True)


def _allocate(name: str, value: Tensor, ticks: int, kind: str, place: BufferContext) -> Tensor:
    shape = (value.shape[0], ticks, *value.shape[1:])
    if kind == "gpu":
        return torch.zeros(shape, dtype=value.dtype, device=place.device)
    if kind == "pinned":
        return torch.zeros(shape, dtype=value.dtype, pin_memory=torch.cuda.is_available())
    if kind == "ram":
        return _huge(shape, value.dtype)
    if place.folder is None:
        raise ConfigError("replay: storage=disk needs a run directory")
    place.folder.mkdir(parents=True, exist_ok=True)
    path, size = place.folder / f"map_{name.replace('/', '-')}.bin", ticks * value.nbytes
    raw = np.memmap(path, np.uint8, "w+", shape=(max(size, 1),))
    return torch.from_numpy(raw)[:size].view(value.dtype).view(shape)


def _huge(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return zeros in huge pages, which numpy requests and torch does not: gathering is cheaper."""
    raw = np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)
    return torch.from_numpy(raw).view(dtype).view(shape)


def _in_ram(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `value.to("cpu", dtype)`, sooner where that is what it is already."""
    return value if value.is_cpu and value.dtype is dtype else value.to("cpu", dtype)


def _numpy(value: Tensor) -> Array:
    """Return a numpy view; bfloat16 does not exist there and is seen as integers of that size."""
    return (value.view(torch.int16) if value.dtype == torch.bfloat16 else value).numpy()
