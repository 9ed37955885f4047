"""A dataset as a source of batches: windows of its steps, as if a replay had stored them."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dreamlab.core import rng as random
from dreamlab.core.affine import ACTION, Scaling, scaled_spec
from dreamlab.core.errors import CheckpointError, ConfigError, unknown
from dreamlab.core.files import write_json
from dreamlab.core.types import Array, ArraySpec, Batch, Spec
from dreamlab.data.chunks import ChunkFiles
from dreamlab.data.dataset_config import DatasetConfig
from dreamlab.data.datasets.frames import keep_frames
from dreamlab.data.datasets.statistics import plain
from dreamlab.data.datasets.steps import make_steps, returns_to_go
from dreamlab.data.datasets.table import REWARD, Camera, DataError
from dreamlab.data.returns_to_go import is_reward
from dreamlab.data.samplers import Sampler, Window
from dreamlab.data.source import BufferContext
from dreamlab.data.storage import StepArrays, send
from dreamlab.data.store import batch_of

Pictures = dict[str, Array]


@dataclass(frozen=True)
class Drawn:
    """Windows that were sampled before they are requested, and the state that drew them."""

    rows: int
    ids: Array
    weight: Array | None
    before: dict[str, Any]
    pictures: Future[Pictures]


class DatasetSource:
    """Windows of a dataset's steps; extras that a workflow writes back stay in this run.

    A step's id is its place among all steps of the set (`Steps`). The order in which windows are
    sampled, and where in it the run is, come back with a checkpoint; what is sampled ahead does not
    count.
    """

    Config = DatasetConfig

    def __init__(self, config: DatasetConfig, place: BufferContext) -> None:
        self.config, self.place = config, replace(place, num_envs=1)
        self.data = data = config.open()
        self.notes = list(data.notes)
        self.names = config.names(data)
        self.scaling = config.scaling(data)
        spec = self._fit(config.spec(data), place.spec)
        self.cameras = self._cameras([k for k, s in spec.obs.items() if s.is_image])
        vectors = {k: f for k, f in self.names.items() if k in spec.obs}
        self.steps = make_steps(data, vectors, config.task and "task" in spec.obs, config.ends)
        self.store = self._fill(spec)
        self.rng = np.random.default_rng(place.seed)
        self.sampler: Sampler = config.sampler.build(len(self.steps))
        self.files = ChunkFiles(place.folder) if place.folder is not None else None
        self.saves, self.touched = 0, False
        self.ahead: Drawn | None = None
        self.thread: ThreadPoolExecutor | None = None
        self._introduce()

    @classmethod
    def spec_of(cls, config: DatasetConfig) -> Spec:
        """Return what batches look like, from the dataset alone."""
        data = config.open()
        return scaled_spec(config.spec(data), config.scaling(data))

    @classmethod
    def scaling_of(cls, config: DatasetConfig) -> Scaling:
        """Return the normalization of the data, to apply it to an environment."""
        return config.scaling(config.open())

    def _fit(self, own: Spec, wanted: Spec) -> Spec:
        """Return the observations that the run has; raise if the data does not fit them."""
        scaled, where = scaled_spec(own, self.scaling), str(self.data.place)
        for name, spec in wanted.obs.items():
            if name not in scaled.obs:
                text = unknown("observation", name, scaled.obs, where)
                raise ConfigError(f"{text}\n  rename one with keys: {{NAME: FEATURE}}")
            _check_alike(f"observation {name!r}", scaled.obs[name], spec, where)
        _check_alike("action", scaled.action, wanted.action, where)
        self._check_actions(wanted.action)
        self._check_requested(wanted)
        return replace(scaled, obs={k: scaled.obs[k] for k in wanted.obs})

    def _check_requested(self, wanted: Spec) -> None:
        """Raise if options name observations that the run does not have."""
        missing = {k: at for k, at in self.config.requested().items() if k not in wanted.obs}
        if missing:
            name, where = next(iter(missing.items()))
            raise ConfigError(
                f"{unknown('observation', name, wanted.obs, where)}\n  the run has only these: "
                f"remove {', '.join(missing.values())} from the options of the dataset"
            )

    def _check_actions(self, spec: ArraySpec) -> None:
        """Raise if the set's actions are in other units than those that the run takes."""
        if spec.low is None or spec.high is None or ACTION in self.scaling or spec.is_discrete:
            return
        values = self.data.columns[ACTION]
        low, high = float(values.min()), float(values.max())
        slack = 1e-3 * (spec.high - spec.low)
        if low < spec.low - slack or high > spec.high + slack:
            raise ConfigError(
                f"{self.data.place}: its actions range from {low:.4g} to {high:.4g}, those of the "
                f"run from {spec.low:.4g} to {spec.high:.4g}: set normalize: {{action: min_max}} "
                "(or bounds) with env.scale_actions=false"
            )

    def _cameras(self, names: list[str]) -> dict[str, Camera]:
        out: dict[str, Camera] = {}
        for name in names:
            kept = keep_frames(
                self.data, self.names[name], self.config.size, self.config.cache_bytes
            )
            used = {e.index for e in self.data.episodes}
            broken = {i: why for i, why in kept.broken.items() if i in used}
            self.notes += kept.notes + self.data.check_whole(broken, self.config.skip_damaged)
            out[name] = kept.camera
        return out

    def _fill(self, spec: Spec) -> StepArrays:
        """Return the steps' arrays, normalized, with room for what the workflow writes back."""
        arrays = dict(self.steps.arrays)
        for name, affine in self.scaling.items():
            key = ACTION if name == ACTION else f"obs/{name}"
            if key in arrays:
                arrays[key] = affine.apply(arrays[key])
        config = self.config
        if config.normalize.get(ACTION) == "quantiles":
            arrays[ACTION] = np.clip(arrays[ACTION], -1, 1)
        if config.mc_gamma is not None:
            arrays["extras/mc_return"] = returns_to_go(
                self.steps, config.mc_gamma, config.mc_failure_reward
            )
        tensors = {k: torch.from_numpy(np.ascontiguousarray(v))[None] for k, v in arrays.items()}
        num = len(self.steps)
        for name, like in self.place.extras.items():
            tensors[f"extras/{name}"] = torch.zeros((1, num, *like.shape[1:]), dtype=like.dtype)
        row = {k: v[:, 0] for k, v in tensors.items()}
        store = StepArrays(row, num, self.config.storage, self.place)
        store.fill(0, tensors)
        return store

    def _introduce(self) -> None:
        """Register the windows with the sampler; report warnings."""
        window = self._window()
        ids = np.arange(window.oldest, window.newest)
        usable = self._valid(ids)
        if not usable.any():
            longest = max(e.length for e in self.data.episodes) + 1
            other = "pad: edge, windows: across" if self.config.pad == "none" else "more pad_after"
            raise DataError(
                f"{self.data.place}: no window of {self.config.steps} steps fits: the longest "
                f"episode has {longest}. Use {other}, or a shorter window"
            )
        self.sampler.insert(ids, usable)
        if REWARD not in self.data.columns:
            self.notes.append(f"{self.data.place}: it has no {REWARD}: every reward is 0")
        failure, reward = self.config.mc_failure_reward, self.steps.arrays["reward"]
        if failure is not None and not is_reward(reward, failure).any():
            self.notes.append(f"{self.data.place}: no reward is mc_failure_reward={failure:g}")
        if self.config.windows == "inside":
            short = len(self.data.episodes) - len(np.unique(self.steps.episode[ids[usable]]))
            if short:
                self.notes.append(
                    f"{self.data.place}: {short} of {len(self.data.episodes)} episodes are "
                    f"shorter than a window of {self.config.steps} steps and never sampled"
                )

    def __len__(self) -> int:
        """Return how many steps there are."""
        return len(self.steps)

    @property
    def rows(self) -> int:
        return self.config.batch

    @property
    def steps_per_sample(self) -> int:
        return self.config.batch * (self.config.steps - self.config.context)

    def nbytes(self) -> int:
        return self.store.nbytes

    def ready(self) -> bool:
        """Return True: a batch can always be sampled."""
        return True

    def _window(self) -> Window:
        reach = 1 if self.config.pad == "edge" else self.config.steps
        newest = max(0, len(self.steps) - reach + 1)
        return Window(0, newest, self._valid, 1, self.config.steps)

    def _valid(self, ids: Array) -> Array:
        """Return which starts may be sampled; with padding, which steps have an action."""
        if self.config.pad == "edge":
            left = self.steps.last[ids] - 1 - ids  # actions after the sampled one
            most = self.config.pad_after
            after = self.config.steps - 1 - self.config.before
            return left >= (0 if most is None else max(0, after - most))
        if self.config.windows == "across":
            return np.ones(len(ids), bool)
        reach = self.config.steps - 1
        reach = min(1, reach) if self.config.windows == "transitions" else reach
        return ids + reach <= self.steps.last[ids]

    # -- batches ----------------------------------------------------------------------------------

    def sample(self, rows: int | None = None) -> Batch:
        """Sample windows by the sampler's choice, and start with the images of the next ones."""
        num = rows or self.config.batch
        drawn, self.ahead = self.ahead, None
        if drawn is not None and drawn.rows != num:
            self._go_back(drawn.before)
            drawn = None
        if drawn is None:
            ids, weight = self.sampler.draw(self._window(), num, self.rng)
            pictures = None
        else:
            ids, weight, pictures = drawn.ids, drawn.weight, drawn.pictures.result()
        batch = self._batch(ids, weight, pictures)
        if self.config.prefetch and self.cameras and not self.sampler.prioritises:
            self.ahead = self._draw_ahead(num)
        return batch

    def _draw_ahead(self, num: int) -> Drawn:
        before = self._draw_state()
        ids, weight = self.sampler.draw(self._window(), num, self.rng)
        if self.thread is None:
            self.thread = ThreadPoolExecutor(1, "pictures")
        index = self._index(ids, self._offsets())[0]
        return Drawn(num, ids, weight, before, self.thread.submit(self._pictures, index))

    def _offsets(self) -> Array:
        first = self.config.before if self.config.pad == "edge" else 0
        return np.arange(self.config.steps) - first

    def _index(self, ids: Array, offsets: Array) -> tuple[Array, Array]:
        """Return the steps [b, t] of windows; with padding clipped, and where they would be."""
        wanted = ids[:, None] + offsets
        if self.config.pad == "none":
            return wanted, wanted
        first, last = self.steps.first[ids][:, None], self.steps.last[ids][:, None]
        return np.clip(wanted, first, last), wanted

    def _pictures(self, index: Array) -> Pictures:
        """Return the images of steps [b, t]; of an episode's end, its own if it was recorded."""
        flat, out = index.reshape(-1), {}
        for name, camera in self.cameras.items():
            pictures = camera.read(self.steps.row[flat])
            for i in np.flatnonzero(flat == self.steps.last[flat]):
                finals = self.data.finals.get(self.names[name], {})
                episode = self.data.episodes[self.steps.episode[flat[i]]].index
                if episode in finals:
                    pictures[i] = finals[episode]
            out[name] = pictures.reshape(*index.shape, *pictures.shape[1:])
        return out

    def _batch(
        self, ids: Array, weight: Array | None, pictures: Pictures | None,
        offsets: Array | None = None,
    ) -> Batch:  # fmt: skip
        index, wanted = self._index(ids, self._offsets() if offsets is None else offsets)
        steps = torch.from_numpy(index)
        rows = self.store.read(self.store.rows(steps))
        found = self._pictures(index) if pictures is None else pictures
        device = self.store.device
        rows |= {f"obs/{k}": send(torch.from_numpy(v), device) for k, v in found.items()}
        rows["is_first"][:, 0] = True
        if self.config.pad == "edge":
            self._mark_padding(rows, index, wanted)
        else:
            rows["is_last"][:, :-1] |= rows["is_first"][:, 1:]
        if weight is not None:
            scaled = torch.from_numpy((weight / weight.max()).astype(np.float32))
            rows["extras/weight"] = send(scaled, device)
        return batch_of(rows, steps)

    def _mark_padding(self, rows: dict[str, Tensor], index: Array, wanted: Array) -> None:
        """Mark the padding; rewards of repeated steps are 0."""
        last = self.steps.last[index[:, :1]]
        pad = (wanted != index) | (index == last)
        rows["extras/pad"] = send(torch.from_numpy(pad), self.store.device)
        beyond = send(torch.from_numpy(wanted > last), self.store.device)
        rows["reward"] = rows["reward"].masked_fill(beyond, 0.0)

    def peek(self, seed: int, length: int) -> Batch | None:
        """Sample windows of any length to look at; the next `sample` is what it would have been."""
        have = min(length, len(self.steps))
        rng = np.random.default_rng(seed)
        ids = rng.integers(0, len(self.steps) - have + 1, self.config.batch)
        if self.config.pad == "edge":
            ids = np.where(ids == self.steps.last[ids], ids - 1, ids)
        return self._batch(ids, None, None, np.arange(have))

    def update(self, index: Tensor, extras: dict[str, Tensor]) -> None:
        """Write extras [b, t, ...] back at the last t steps of the windows `index`.

        `priority` [b] goes to the sampler. Of a step that is there twice, the last value stays.
        """
        ids, rest = index.cpu().numpy(), dict(extras)
        if (priority := rest.pop("priority", None)) is not None:
            self.sampler.update(self._starts(ids), priority.detach().float().cpu().numpy())
        if not rest:
            return
        self.touched = True
        length = next(iter(rest.values())).shape[1]
        flat = ids[:, ids.shape[1] - length :].reshape(-1)
        _, from_end = np.unique(flat[::-1], return_index=True)
        keep = np.sort(len(flat) - 1 - from_end)
        rows = self.store.rows(torch.from_numpy(flat[keep]))
        for name, value in rest.items():
            if (key := f"extras/{name}") not in self.store.data:
                known = [k[7:] for k in self.store.data if k.startswith("extras/")]
                raise ConfigError(unknown("extra stored by act()", name, known, "dataset"))
            values = value.detach().flatten(0, 1)
            at = send(torch.from_numpy(keep), values.device)
            self.store.patch(key, rows, values.index_select(0, at))

    def _starts(self, ids: Array) -> Array:
        """Return what the sampler knows windows by: their first step, or the one in the middle."""
        return ids[:, self.config.before] if self.config.pad == "edge" else ids[:, 0]

    # -- state ------------------------------------------------------------------------------------

    def _draw_state(self) -> dict[str, Any]:
        return {"rng": random.generator_state(self.rng), "sampler": self.sampler.get_state()}

    def _go_back(self, state: dict[str, Any]) -> None:
        random.set_generator_state(self.rng, state["rng"])
        self.sampler.set_state(state["sampler"])

    def save(self) -> dict[str, Any]:
        """Save what was written back, and return the state to resume from."""
        if self.files is not None:
            self.files.truncate(self.saves, len(self.steps))
            self.saves += 1
            self.files.append_patch(self.store, self.saves, len(self.steps), len(self.steps))
            self._write_statistics()
        drawn = self.ahead.before if self.ahead is not None else self._draw_state()
        kept = {"fingerprint": self.data.fingerprint, "steps": len(self.steps)}
        return {"saves": self.saves, **kept, **drawn}

    def _write_statistics(self) -> None:
        """Write the normalization statistics into the run directory, once."""
        assert self.place.folder is not None
        path = self.place.folder / "statistics.json"
        if self.scaling and not path.exists():
            used = {k: a.get_state() for k, a in self.scaling.items()}
            about = {"data": str(self.data.place), "fingerprint": self.data.fingerprint}
            write_json(path, {**about, "normalize": self.config.normalize, "used": plain(used)})

    def load(self, state: dict[str, Any]) -> None:
        """Restore a state; raise if the dataset has changed."""
        if (state["fingerprint"], state["steps"]) != (self.data.fingerprint, len(self.steps)):
            raise CheckpointError(
                f"{self.data.place} has changed since the checkpoint, so the run cannot be "
                f"resumed exactly: restore the original dataset"
            )
        self.ahead = None
        self._go_back(state)
        self.saves = int(state["saves"])
        for name in self.place.extras if self.touched else ():
            self.store.data[f"extras/{name}"].zero_()
        if self.files is not None:
            self.files.apply_patches(self.store, self.saves, len(self.steps))

    def prune(self, states: list[dict[str, Any]]) -> None:
        """Delete files that none of these states needs."""
        if self.files is not None and states:
            self.files.prune(min(int(s["saves"]) for s in states), 0, 1)


def _check_alike(what: str, found: ArraySpec, wanted: ArraySpec, where: str) -> None:
    """Raise if an array of the data is not what the run takes."""
    form, needed = (
        f"{s.dtype}{list(s.shape)}" + (f" of {s.classes} classes" if s.is_discrete else "")
        for s in (found, wanted)
    )
    fits = found.is_discrete and wanted.is_discrete and found.shape == wanted.shape
    fewer = fits and np.all(np.asarray(found.classes) <= np.asarray(wanted.classes))
    if form != needed and not fewer:
        raise ConfigError(f"{where} does not fit: its {what} is {form}, here it is {needed}")
