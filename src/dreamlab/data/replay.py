"""Experience replay: one stream of steps per environment, drawn as windows of consecutive steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from dreamlab.core import rng as random
from dreamlab.core import world
from dreamlab.core.config import Part, part
from dreamlab.core.errors import CheckpointError, ConfigError, unknown
from dreamlab.core.limits import Finite, Natural, PositiveInt, Range, Share
from dreamlab.core.types import Array, Batch, Decision, Step
from dreamlab.data.chunks import ChunkFiles
from dreamlab.data.regroup import regroup
from dreamlab.data.returns_to_go import ReturnsToGo, check_failure
from dreamlab.data.samplers import Sampler, Window
from dreamlab.data.source import BufferConfig, BufferContext, crosses
from dreamlab.data.storage import StepArrays, send
from dreamlab.data.store import as_tensor, batch_of, record


@dataclass(frozen=True)
class ReplayConfig(BufferConfig):
    """How much is kept, where, and what a batch looks like."""

    capacity: Annotated[int, Range(2)] = 1_000_000
    """Capacity in steps, over all environments."""
    max_bytes: PositiveInt | None = None
    """Reduce the capacity to fit this much memory."""
    batch: PositiveInt = 16
    length: PositiveInt = 64
    context: Natural = 0
    """Burn-in steps of a window; train_ratio does not count them."""
    windows: Literal["across", "inside", "transitions"] = "across"
    """Where a window may lie: anywhere; inside one episode; or anywhere that starts with a
    transition (for n-step targets, which stop at the end of an episode)."""
    sampler: Part = part("uniform", home="dreamlab.data", kind=Sampler)
    storage: Literal["auto", "ram", "pinned", "gpu", "disk"] = "auto"
    """`auto`: the run's GPU if the buffer takes at most 40 % of its free memory, else RAM."""
    min_steps: Natural = 0
    """Stored steps before the first batch is sampled; a full buffer always suffices."""
    mc_gamma: Share | None = None
    """Discount of `extras["mc_return"]` [b, t], the return to go of each step, -inf while its
    episode is unfinished. None: not computed."""
    mc_failure_reward: Finite | None = None
    """For sparse rewards: the reward of a step without success. An episode of nothing but that has
    the return mc_failure_reward / (1 - mc_gamma) at every step, as if it failed forever. None: the
    sum until its end, as for every other episode."""

    def __post_init__(self) -> None:
        check_failure(self.mc_gamma, self.mc_failure_reward)
        if self.context >= self.length:
            raise ValueError(f"context={self.context} must be below length={self.length}")
        if self.length >= self.capacity:
            raise ValueError(f"length={self.length} must be below capacity={self.capacity}")
        if self.min_steps > self.capacity:
            raise ValueError(f"min_steps={self.min_steps} is more than capacity={self.capacity}")

    @property
    def crosses(self) -> bool:
        return crosses(self.windows, self.length)

    def window(self) -> tuple[int, int, int] | None:
        """Return batch, length and context of what is sampled."""
        return self.batch, self.length, self.context

    def most_steps(self, num_envs: int) -> int:
        """Return the steps kept."""
        return self.capacity

    def first_batch(self, num_envs: int) -> int:
        """Return how many steps must be stored before a batch can be sampled."""
        ticks = self.capacity // num_envs
        if ticks <= self.length:
            raise ValueError(
                f"capacity={self.capacity} stores {ticks} steps of each of {num_envs} "
                f"environments, "
                f"but a window of length={self.length} needs {self.length + 1}"
            )
        if (windows := (ticks - self.length + 1) * num_envs) < self.batch:
            raise ValueError(
                f"capacity={self.capacity} fits {windows} windows of length={self.length}, "
                f"but a batch has {self.batch}"
            )
        return max(self.min_steps, (self.length + 1) * num_envs)


class Replay:
    """Keeps the latest steps of each environment; a step's id is `tick * num_envs + env`.

    tick      0    1    2    3    4         `added` = 5 ticks were stored
    env 0     0    2    4    6    8         ids with two environments
    env 1     1    3    5    7    9
    A window of length 3 may start at ticks 0, 1, 2.
    """

    Config = ReplayConfig
    needs_next = False

    def __init__(self, config: ReplayConfig, place: BufferContext) -> None:
        self.config, self.place = config, place
        self.num_envs = place.num_envs
        self.ticks = max(config.capacity // place.num_envs, config.length + 1)
        self.rng = np.random.default_rng(place.seed)
        self.store: StepArrays | None = None
        self.sampler: Sampler | None = None
        self.added, self.saved, self.saves = 0, 0, 0
        self.first = 0
        """The first tick that was ever stored here: others than 0 if steps came from elsewhere."""
        self.drawable = False
        self.episode = np.zeros((0, 0), np.int64)
        self.current = np.zeros(place.num_envs, np.int64)
        self.returns: ReturnsToGo | None = None
        self.files = ChunkFiles(place.folder) if place.folder is not None else None
        self.offsets = torch.arange(config.length) * place.num_envs

    def __len__(self) -> int:
        """Return how many steps are stored now."""
        return min(self.added - self.first, self.ticks) * self.num_envs

    @property
    def rows(self) -> int:
        return self.config.batch

    @property
    def steps_per_sample(self) -> int:
        return self.config.batch * (self.config.length - self.config.context)

    def nbytes(self) -> int:
        return 0 if self.store is None else self.store.nbytes + self.episode.nbytes

    def add(self, step: Step, decision: Decision) -> None:
        """Store one step of every environment, with the action and extras decided from it."""
        row = record(step, decision)
        if self.store is None:
            self.allocate({k: as_tensor(v) for k, v in row.items()})
        assert self.store is not None
        slot = self.added % self.ticks
        self.store.write(slot, row)
        self.current += step.is_first
        self.episode[slot] = self.current
        if self.returns is not None:
            self.returns.add(self.added, step.reward, step.is_first, step.is_last)
        self.added += 1
        self.announce()

    def finish(self, step: Step) -> None:
        """Do nothing: the step that follows is stored by the next add."""

    def allocate(self, row: dict[str, Tensor]) -> None:
        """Make room for steps that look like `row`."""
        config, per_tick = self.config, sum(v.nbytes for v in row.values()) + self.current.nbytes
        if config.max_bytes is not None:
            self.ticks = min(self.ticks, config.max_bytes // per_tick)
            if self.ticks <= config.length:
                need = per_tick * (config.length + 1)
                raise ConfigError(
                    f"replay: max_bytes={config.max_bytes}, but one window takes {need}"
                )
        self.store = StepArrays(row, self.ticks, config.storage, self.place)
        self.episode = np.zeros((self.ticks, self.num_envs), np.int64)
        self.sampler = config.sampler.build(self.ticks * self.num_envs)
        if config.mc_gamma is not None:
            self.returns = ReturnsToGo(
                config.mc_gamma, self.num_envs, self.ticks, config.mc_failure_reward
            )

    def announce(self) -> None:
        """Tell the sampler which windows this tick has completed, and which it has destroyed."""
        tick, lost = self.added - self.config.length, self.added - 1 - self.ticks
        assert self.sampler is not None
        if tick < self.first or (self.drawable and not self.sampler.learns):
            return
        ids = tick * self.num_envs + np.arange(self.num_envs)
        usable = self._valid(ids)
        self.drawable = self.drawable or bool(usable.any())
        if lost >= self.first and self.config.length > 1:
            ids = np.concatenate([lost * self.num_envs + np.arange(self.num_envs), ids])
            usable = np.concatenate([np.zeros(self.num_envs, bool), usable])
        self.sampler.insert(ids, usable)

    def _valid(self, ids: Array) -> Array:
        """Return which starts satisfy the `windows` rule."""
        if self.config.windows == "across":
            return np.ones(len(ids), bool)
        last = self.config.length - 1
        reach = min(1, last) if self.config.windows == "transitions" else last
        tick, env = ids // self.num_envs, ids % self.num_envs
        same = self.episode[tick % self.ticks, env]
        return same == self.episode[(tick + reach) % self.ticks, env]

    def ready(self) -> bool:
        """Return whether enough is stored to sample a batch."""
        enough = min(self.config.min_steps, self.ticks * self.num_envs)
        stored = self.added - self.first
        return self.drawable and stored > self.config.length and len(self) >= enough

    def _oldest(self) -> int:
        """Return the oldest tick that is stored."""
        return max(self.first, self.added - self.ticks)

    def window(self) -> Window:
        """Return the starts that exist now."""
        oldest = self._oldest() * self.num_envs
        newest = (self.added - self.config.length + 1) * self.num_envs
        valid = None if self.config.windows == "across" else self._valid
        return Window(oldest, newest, valid, self.num_envs, self.config.length)

    def sample(self, rows: int | None = None) -> Batch:
        """Sample windows of consecutive steps by the sampler's choice.

        `is_first` is set on the first step of every window because whatever came before it is
        unknown; `is_last` is set before an episode boundary even if the episode was abandoned
        there. `extras["weight"]` [b] is there if the sampler prioritises; the largest is 1.
        """
        assert self.sampler is not None, "nothing is stored yet"
        ids, weight = self.sampler.draw(self.window(), rows or self.config.batch, self.rng)
        return self._batch(ids, weight, self.offsets)

    def peek(self, seed: int, length: int) -> Batch | None:
        """Draw windows of any length to look at; the next `sample` is what it would have been."""
        have = min(self.added - self.first, self.ticks)
        oldest = (self.added - have) * self.num_envs
        newest = (self.added - min(length, have) + 1) * self.num_envs
        ids = np.random.default_rng(seed).integers(oldest, newest, self.config.batch)
        return self._batch(ids, None, torch.arange(min(length, have)) * self.num_envs)

    def _batch(self, ids: Array, weight: Array | None, offsets: Tensor) -> Batch:
        assert self.store is not None
        index = torch.from_numpy(ids)[:, None] + offsets
        rows = self.read(index)
        rows["is_first"][:, 0] = True
        rows["is_last"][:, :-1] |= rows["is_first"][:, 1:]
        if weight is not None:
            most = float(world.largest(torch.tensor(weight.max())))
            scaled = torch.from_numpy((weight / most).astype(np.float32))
            rows["extras/weight"] = send(scaled, self.store.device)
        if self.returns is not None:
            known = torch.from_numpy(self.returns.at(index.numpy()))
            rows["extras/mc_return"] = send(known, self.store.device)
        return batch_of(rows, index)

    def read(self, index: Tensor) -> dict[str, Tensor]:
        """Return the steps with these ids [b, t] on the device of the run."""
        assert self.store is not None
        return self.store.read(self.store.rows(index))

    def update(self, index: Tensor, extras: dict[str, Tensor]) -> None:
        """Write extras [b, t, ...] back at the last t steps of the windows `index`.

        `priority` [b] goes to the sampler. Steps that were overwritten since they were sampled are
        left alone. Of a step that is in the batch twice, the last value stays.
        """
        assert self.store is not None
        assert self.sampler is not None
        ids, rest = index.cpu().numpy(), dict(extras)
        if (priority := rest.pop("priority", None)) is not None:
            self.sampler.update(ids[:, 0], priority.detach().float().cpu().numpy())
        if not rest:
            return
        length = next(iter(rest.values())).shape[1]
        ids = ids[:, ids.shape[1] - length :]  # burn-in steps have nothing to write back
        keep = self._latest(ids.reshape(-1))
        rows = self.store.rows(torch.from_numpy(ids.reshape(-1)[keep]))
        for name, value in rest.items():
            if (key := f"extras/{name}") not in self.store.data:
                known = [k[7:] for k in self.store.data if k.startswith("extras/")]
                raise ConfigError(unknown("extra stored by act()", name, known, "replay"))
            assert value.shape[:2] == ids.shape, (name, tuple(value.shape), tuple(index.shape))
            flat = value.detach().flatten(0, 1)
            if len(keep) < len(flat):
                flat = flat.index_select(0, send(torch.from_numpy(keep), flat.device))
            self.store.patch(key, rows, flat)

    def _latest(self, ids: Array) -> Array:
        """Return the places of ids that are still stored, each only where it occurs last."""
        _, from_end = np.unique(ids[::-1], return_index=True)
        places = np.sort(len(ids) - 1 - from_end)
        return places[ids[places] >= (self.added - self.ticks) * self.num_envs]

    def save(self) -> dict[str, Any]:
        """Append what is not on disk yet, and return the state that leads back here."""
        if self.files is not None and self.store is not None:
            # a run that died before its first checkpoint leaves orphaned files
            self.files.truncate(self.saves, self.saved)
            self.saves += 1
            self.files.append_patch(self.store, self.saves, self.saved, self.added)
            first = max(self.saved, self.added - self.ticks)
            self.files.append(self.store, self.episode, first, self.added)
            self.files.write_spec(self.place.spec)
            self.saved = self.added
        return {
            **({"first": self.first} if self.first else {}),
            "added": self.added,
            "ticks": self.ticks,
            "saves": self.saves,
            "rng": random.generator_state(self.rng),
            "current": self.current.copy(),
            "sampler": self.sampler.get_state() if self.sampler is not None else {},
            **({} if self.returns is None else self.returns.get_state(self._oldest())),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Come back to a state: read what it had stored, pass over what was stored after it.

        No file is deleted before the next save: until then an older state can be loaded instead.
        """
        self.added, self.saves = int(state["added"]), int(state["saves"])
        self.saved, self.first = self.added, int(state.get("first", 0))
        random.set_generator_state(self.rng, state["rng"])
        self.current = np.array(state["current"])
        self.store, self.sampler, self.drawable = None, None, False
        if self.added > 0:
            self._load_steps(int(state["ticks"]))
            assert self.sampler is not None
            self.sampler.set_state(state["sampler"])
            if self.returns is not None:
                self.returns.set_state(state)
            self.recount()
            window = self.window()
            self.drawable = bool(self._valid(np.arange(window.oldest, window.newest)).any())

    def _load_steps(self, ticks: int) -> None:
        if self.files is None:
            raise CheckpointError("replay: it has no folder to save its steps in")
        for first, chunk, episode in self.files.read(
            max(self.first, self.added - ticks), self.added
        ):
            if self.store is None:
                self.allocate({k: v[:, 0] for k, v in chunk.items()})
            assert self.store is not None
            if self.ticks != ticks:
                then, now = ticks * self.num_envs, self.ticks * self.num_envs
                raise CheckpointError(f"replay: saved with a capacity of {then} steps, now {now}")
            self.store.fill(first, chunk)
            self.episode[np.arange(first, first + len(episode)) % self.ticks] = episode
        assert self.store is not None
        self.files.apply_patches(self.store, self.saves, self.added)

    def recount(self) -> None:
        """Find the returns to go of steps that were read instead of added."""
        if self.returns is None or self.store is None:
            return
        first = self._oldest()
        names = ("reward", "is_first", "is_last")
        steps = self.store.take(first, self.added, names)
        self.returns.begun[:] = first  # of an episode whose beginning is lost, the rest is known
        for i in range(self.added - first):
            self.returns.add(first + i, *(steps[k][:, i].numpy() for k in names))

    def regroup(self, parts: Sequence[dict[str, Any]], rank: int, size: int) -> str:
        """Take one of `size` equal shares of what other processes had stored; say what is lost."""
        return regroup(self, parts, rank, size)

    def prune(self, states: list[dict[str, Any]]) -> None:
        """Delete files that none of these states needs."""
        if self.files is not None and states:
            first = min(int(s["added"]) - int(s["ticks"]) for s in states)
            save = min(int(s["saves"]) for s in states)
            self.files.prune(save, max(0, first), self.num_envs)
