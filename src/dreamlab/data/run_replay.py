"""The replay of another run as a source: read from its folder, which is never written to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from dreamlab.core import rng as random
from dreamlab.core.errors import CheckpointError, ConfigError
from dreamlab.core.names import check_word
from dreamlab.core.types import Spec
from dreamlab.data.chunks import ChunkFiles
from dreamlab.data.regroup import keep_place
from dreamlab.data.replay import Replay, ReplayConfig
from dreamlab.data.source import BufferContext


@dataclass(frozen=True)
class RunReplayConfig(ReplayConfig):
    """Which run's replay, and what a batch of it looks like."""

    stores: ClassVar[bool] = False
    run: str = field(kw_only=True)
    """The run directory."""
    buffer: str = "replay"
    """The name of its replay buffer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_word(self.buffer, "buffer")

    @property
    def folder(self) -> Path:
        return Path(self.run) / "buffers" / self.buffer

    def files(self) -> ChunkFiles:
        """Return the files of the replay, or say that there are none."""
        files = ChunkFiles(self.folder)
        if not files.chunks():
            raise ConfigError(
                f"{self.run} has no stored steps in its buffer {self.buffer!r}: {self.folder} is "
                f"empty. A run writes them with its checkpoints"
            )
        return files

    def first_batch(self, num_envs: int) -> int:
        """Return 0: what there is is there from the beginning."""
        return 0

    def most_steps(self, num_envs: int) -> int:
        """Return how many of the stored steps are read."""
        files = self.files()
        first, last = files.newest_stretch()
        return min(self.capacity, (last - first) * files.num_envs())


class RunReplay(Replay):
    """Windows of the newest steps that another run stored; extras written back stay in this run.

    Extras that its workflow did not store, or stored otherwise, start as zeros.
    """

    Config = RunReplayConfig

    def __init__(self, config: RunReplayConfig, place: BufferContext) -> None:
        self.origin = config.files()
        first, last = self.origin.newest_stretch()
        num_envs = self.origin.num_envs()
        super().__init__(config, replace(place, num_envs=num_envs))
        _check_spec(self.origin.read_spec(), place.spec, config.run)
        self._read(min(self.ticks, last - first), last)

    @classmethod
    def spec_of(cls, config: RunReplayConfig) -> Spec:
        """Return what the stored steps look like, from what their run wrote down."""
        return config.files().read_spec()

    def _read(self, ticks: int, last: int) -> None:
        """Read the last `ticks` steps of every stream up to tick `last`; tell the sampler."""
        self.added = self.saved = last
        self.ticks = ticks
        self.store, self.sampler, self.drawable, self.touched = None, None, False, False
        self._load_steps(ticks)
        self.recount()
        self.used = self.origin.names(last - ticks, last)
        window = self.window()
        ids = np.arange(window.oldest, window.newest)
        usable = self._valid(ids)
        self.drawable = bool(usable.any())
        assert self.sampler is not None
        if len(ids):
            self.sampler.insert(ids, usable)

    def _load_steps(self, ticks: int) -> None:
        blank = self.place.extras
        for first, chunk, episode in self.origin.read(self.added - ticks, self.added):
            shape = next(iter(chunk.values())).shape[:2]
            kept = {k: v for k, v in chunk.items() if not k.startswith("extras/")}
            for name, like in blank.items():
                found = chunk.get(f"extras/{name}")
                if found is None or (found.dtype, found.shape[2:]) != (like.dtype, like.shape[1:]):
                    found = torch.zeros((*shape, *like.shape[1:]), dtype=like.dtype)
                kept[f"extras/{name}"] = found
            if self.store is None:
                self.allocate({k: v[:, 0] for k, v in kept.items()})
            assert self.store is not None
            self.store.fill(first, kept)
            self.episode[np.arange(first, first + len(episode)) % self.ticks] = episode

    def update(self, index: Tensor, extras: dict[str, Tensor]) -> None:
        """Write extras back, in this run's memory and files only."""
        self.touched = True
        super().update(index, extras)

    def save(self) -> dict[str, Any]:
        """Write down what was written back, and return the state that leads back here."""
        assert self.store is not None
        assert self.sampler is not None
        if self.files is not None:
            self.files.truncate(self.saves, self.added)
            self.saves += 1
            self.files.append_patch(self.store, self.saves, self.added, self.added)
        return {
            "added": self.added, "ticks": self.ticks, "saves": self.saves, "used": self.used,
            "rng": random.generator_state(self.rng), "sampler": self.sampler.get_state(),
        }  # fmt: skip

    def regroup(self, parts: Sequence[dict[str, Any]], rank: int, size: int) -> str:
        """Go on where this process was; each reads all of the other run's steps."""
        return keep_place(self, parts, rank, size)

    def load(self, state: dict[str, Any]) -> None:
        """Come back to a state; refuse if the steps of then are not there any more."""
        ticks, last = int(state["ticks"]), int(state["added"])
        if gone := set(state["used"]) - set(self.origin.names(last - ticks, last)):
            raise CheckpointError(
                f"{self.origin.folder} has changed since the checkpoint: {sorted(gone)[0]} is "
                f"missing, so the run cannot be resumed exactly"
            )
        if self.touched or (ticks, last) != (self.ticks, self.added):
            self._read(ticks, last)
        self.saves = int(state["saves"])
        random.set_generator_state(self.rng, state["rng"])
        assert self.store is not None
        assert self.sampler is not None
        if self.files is not None:
            self.files.apply_patches(self.store, self.saves, self.added)
        self.sampler.set_state(state["sampler"])


def _check_spec(stored: Spec, wanted: Spec, run: str) -> None:
    """Raise if the steps are of another kind than those of this run."""
    theirs, ours = _shapes(stored), _shapes(wanted)
    if odd := sorted(k for k in theirs.keys() | ours.keys() if theirs.get(k) != ours.get(k)):
        raise ConfigError(
            f"the replay buffer of {run} does not fit: its {odd[0]} is "
            f"{theirs.get(odd[0], 'missing')}, "
            f"here it is {ours.get(odd[0], 'missing')}"
        )


def _shapes(spec: Spec) -> dict[str, str]:
    arrays = {**{f"observation {k!r}": v for k, v in spec.obs.items()}, "action": spec.action}
    return {
        k: f"{s.dtype}{list(s.shape)}" + (f" of {s.classes} classes" if s.is_discrete else "")
        for k, s in arrays.items()
    }
