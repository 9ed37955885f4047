"""Experience replay: one stream of steps per environment, sampled as windows of consecutive steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from dreamlab.core import rng as random
from dreamlab.core.config import Part, part
from dreamlab.core.errors import ConfigError
from dreamlab.core.types import Array, Batch, Decision, Step
from dreamlab.data.buffer import Place, as_tensor, batch_of, record
from dreamlab.data.samplers import Sampler, Window
from dreamlab.data.storage import ChunkFiles, Store


@dataclass(frozen=True)
class ReplayConfig:
    """How much is kept, where, and what a batch looks like."""

    capacity: int = 1_000_000
    """Steps kept, over all environments."""
    max_bytes: int | None = None
    """Keep fewer steps if they would take more memory than this."""
    batch: int = 16
    length: int = 64
    windows: Literal["across", "inside", "transitions"] = "across"
    """Where a window may lie: anywhere; inside one episode; or anywhere that starts with a
    transition (for n-step targets, which stop at the end of the episode by themselves)."""
    sampler: Part = part("uniform", home="dreamlab.data")
    storage: Literal["ram", "pinned", "gpu", "disk"] = "ram"
    min_steps: int = 0
    """Steps that must be stored before the first batch is drawn."""


class Replay:
    """Keeps the latest steps of each environment; a step is named by its id, `tick * num_envs + env`.

    tick      0    1    2    3    4         `added` = 5 ticks were stored
    env 0     0    2    4    6    8         ids with two environments
    env 1     1    3    5    7    9
    A window of length 3 may start at ticks 0, 1, 2.
    """

    Config = ReplayConfig

    def __init__(self, config: ReplayConfig, place: Place) -> None:
        self.config, self.place = config, place
        self.num_envs = place.num_envs
        self.ticks = max(config.capacity // place.num_envs, config.length + 1)
        self.rng = np.random.default_rng(place.seed)
        self.store: Store | None = None
        self.sampler: Sampler | None = None
        self.added, self.saved = 0, 0
        self.episode = np.zeros((0, 0), np.int64)
        self.current = np.zeros(place.num_envs, np.int64)
        self.out: dict[str, Tensor] = {}
        self.files = ChunkFiles(place.folder) if place.folder is not None else None
        self.offsets = torch.arange(config.length) * place.num_envs

    def __len__(self) -> int:
        """Return how many steps are stored now."""
        return min(self.added, self.ticks) * self.num_envs

    @property
    def steps_per_sample(self) -> int:
        return self.config.batch * self.config.length

    def nbytes(self) -> int:
        return 0 if self.store is None else self.store.nbytes

    def add(self, step: Step, decision: Decision) -> None:
        """Store one step of every environment, with the action and extras decided from it."""
        row = record(step, decision)
        if self.store is None:
            self._allocate({k: as_tensor(v) for k, v in row.items()})
        assert self.store is not None
        slot = self.added % self.ticks
        self.store.write(slot, row)
        self.current += step.is_first
        self.episode[slot] = self.current
        self.added += 1
        self._announce()

    def finish(self, step: Step) -> None:
        """Do nothing: the step that follows is stored by the next add."""

    def _allocate(self, row: dict[str, Tensor]) -> None:
        per_tick = sum(v.nbytes for v in row.values())
        if self.config.max_bytes is not None:
            self.ticks = min(self.ticks, max(self.config.max_bytes // per_tick, self.config.length + 1))
        self.store = Store(row, self.ticks, self.config.storage, self.place)
        self.episode = np.zeros((self.ticks, self.num_envs), np.int64)
        self.sampler = self.config.sampler.build(self.ticks * self.num_envs)

    def _announce(self) -> None:
        """Tell the sampler which windows this tick has completed."""
        tick = self.added - self.config.length
        assert self.sampler is not None
        if tick < 0 or not self.sampler.learns:
            return
        ids = tick * self.num_envs + np.arange(self.num_envs)
        self.sampler.insert(ids, self._valid(ids))

    def _valid(self, ids: Array) -> Array:
        """Tell which starts obey the `windows` rule."""
        if self.config.windows == "across":
            return np.ones(len(ids), bool)
        reach = 1 if self.config.windows == "transitions" else self.config.length - 1
        tick, env = ids // self.num_envs, ids % self.num_envs
        same = self.episode[tick % self.ticks, env]
        return same == self.episode[(tick + reach) % self.ticks, env]

    def ready(self) -> bool:
        """Tell whether enough is stored to draw a batch."""
        return self.added >= self.config.length + 1 and len(self) >= self.config.min_steps

    def window(self) -> Window:
        """Return the starts that exist now."""
        oldest = max(0, self.added - self.ticks) * self.num_envs
        newest = (self.added - self.config.length + 1) * self.num_envs
        return Window(oldest, newest, None if self.config.windows == "across" else self._valid)

    def sample(self) -> Batch:
        """Draw windows of consecutive steps by the sampler's choice.

        `is_first` is set on the first step of every window because whatever came before it is
        unknown; `is_last` is set before a seam even if the episode was abandoned there.
        """
        assert self.store is not None and self.sampler is not None, "nothing is stored yet"
        ids, weight = self.sampler.draw(self.window(), self.config.batch, self.rng)
        index = torch.from_numpy(ids)[:, None] + self.offsets
        rows = self.read(index)
        rows["is_first"][:, 0] = True
        rows["is_last"][:, :-1] |= rows["is_first"][:, 1:]
        if weight is not None:
            rows["extras/weight"] = torch.from_numpy(weight).to(self.place.device)
        return batch_of(rows, index)

    def read(self, index: Tensor) -> dict[str, Tensor]:
        """Return the steps with these ids [b, t] on the device of the run."""
        assert self.store is not None
        return self.store.read(index % (self.ticks * self.num_envs))

    def update(self, index: Tensor, extras: dict[str, Tensor]) -> None:
        """Write extras back at the steps `index`; `priority` [b] goes to the sampler.

        Steps that were overwritten since they were drawn are left alone.
        """
        assert self.store is not None and self.sampler is not None
        rest = dict(extras)
        if (priority := rest.pop("priority", None)) is not None:
            self.sampler.update(index[:, 0].numpy(), priority.detach().float().cpu().numpy())
        if not rest:
            return
        flat = index.reshape(-1)
        live = flat >= (self.added - self.ticks) * self.num_envs
        rows = flat[live] % (self.ticks * self.num_envs)
        for name, value in rest.items():
            if f"extras/{name}" not in self.store.data:
                raise ConfigError(f"replay: extras {name!r} were never stored by act()")
            self.store.patch(f"extras/{name}", rows, value.detach().flatten(0, 1)[live.to(value.device)])

    def save(self) -> dict[str, Any]:
        """Append the steps that are not on disk yet, and return the state that leads back here."""
        state: dict[str, Any] = {
            "added": self.added,
            "ticks": self.ticks,
            "rng": random.generator_state(self.rng),
            "current": self.current.copy(),
            "sampler": self.sampler.get_state() if self.sampler is not None else {},
        }
        if self.files is not None and self.store is not None:
            first = max(self.saved, self.added - self.ticks)
            self.files.append(self.store, self.episode, first, self.added)
            self.saved = self.added
        return state

    def load(self, state: dict[str, Any]) -> None:
        """Come back to a state: read what it had stored, forget what was stored after it."""
        self.added, self.saved = int(state["added"]), int(state["added"])
        random.set_generator_state(self.rng, state["rng"])
        self.current = np.array(state["current"])
        if self.added == 0 or self.files is None:
            return
        self.files.truncate(self.added)
        for first, chunk, episode in self.files.read(self.added - int(state["ticks"]), self.added):
            if self.store is None:
                self._allocate({k: v[0] for k, v in chunk.items()})
            assert self.store is not None
            slots = torch.arange(first, first + len(episode)) % self.ticks
            self.store.fill(slots, chunk)
            self.episode[slots.numpy()] = episode
        assert self.sampler is not None and self.store is not None
        self.files.apply_patches(self.store, self.added, self.num_envs)
        self.sampler.set_state(state["sampler"])

    def prune(self, states: list[dict[str, Any]]) -> None:
        """Delete files older than every one of these states needs."""
        if self.files is not None and states:
            self.files.prune(min(int(s["added"]) - int(s["ticks"]) for s in states))
