"""Options of a dataset as a source of batches."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

from dreamlab.core.affine import ACTION, Scaling
from dreamlab.core.config import Part, part
from dreamlab.core.errors import unknown
from dreamlab.core.limits import Finite, Natural, PositiveInt, Share, Side
from dreamlab.core.types import Spec
from dreamlab.data.datasets import statistics
from dreamlab.data.datasets.opening import open_dataset
from dreamlab.data.datasets.steps import TASK, observations, spec_of
from dreamlab.data.datasets.table import DataError, Dataset
from dreamlab.data.returns_to_go import check_failure
from dreamlab.data.samplers import Sampler
from dreamlab.data.source import BufferConfig, crosses

Mode = Literal["mean_std", "min_max", "quantiles", "bounds", "none"]


@dataclass(frozen=True)
class DatasetConfig(BufferConfig):
    """Which dataset, what of it, and what a batch looks like."""

    stores: ClassVar[bool] = False
    maps_images: ClassVar[bool] = True
    path: str = field(kw_only=True)
    """A LeRobot folder, an HDF5 file (D4RL or robomimic), a run directory, or `minari:ID`."""
    batch: PositiveInt = 16
    length: PositiveInt | None = None
    """Steps in a window. Without it, `before` + 1 + `after`."""
    before: Natural = 0
    """Steps before the sampled one."""
    after: Natural = 0
    """Steps after the sampled one."""
    context: Natural = 0
    """Burn-in steps of a window; train_ratio does not count them."""
    windows: Literal["across", "inside", "transitions"] = "inside"
    """Where a window may lie, as for the replay buffer."""
    pad: Literal["none", "edge"] = "none"
    """`edge`: a window may extend beyond its episode by repeating the first or last step;
    `extras["pad"]` [b, t] marks the padding."""
    pad_after: Natural | None = None
    """With `pad: edge`, the most steps of a window after its episode's last action: frames so near
    the end that a window needs more are not sampled. None: every frame is."""
    sampler: Part = part("shuffled", home="dreamlab.data", kind=Sampler)
    storage: Literal["auto", "ram", "pinned", "gpu", "disk"] = "auto"
    """Dtype of everything but images."""
    keys: dict[str, str] = field(default_factory=dict[str, str])
    """Observation names mapped to features of the dataset. Default: all features named
    `observation.*`, under the last part of their name."""
    normalize: dict[str, Mode] = field(default_factory=dict[str, Mode])
    """Normalization by name of observation, or `action`; others are left unchanged."""
    statistics: Literal["computed", "stored"] = "computed"
    """Use exact statistics of the frames in use, or those stored in the dataset."""
    size: tuple[Side, Side] | None = None
    """Height and width that images are resized to."""
    task: bool = False
    """Add the task index as the observation `task`."""
    ends: Literal["done", "success", "never"] = "done"
    """What counts as termination (no bootstrapping): `next.done` without `next.truncated`;
    `next.success`; or nothing."""
    mc_gamma: Share | None = None
    """Add `extras["mc_return"]` [b, t], the Monte Carlo return to go with this discount."""
    mc_failure_reward: Finite | None = None
    """For sparse rewards, as for the replay buffer: an episode of nothing but this reward has the
    return mc_failure_reward / (1 - mc_gamma)."""
    episodes: PositiveInt | None = None
    """Use only the first N episodes."""
    skip_damaged: bool = False
    """Skip and report corrupted episodes instead of raising an error."""
    prefetch: bool = True
    """Prefetch the images of the next batch during the update."""
    cache_bytes: Natural = 20 * 2**30
    """Maximum size of the disk cache of decoded images, shared by all datasets."""

    def __post_init__(self) -> None:
        if self.length is not None and (self.before or self.after):
            raise ValueError("set either length, or before and after")
        if self.pad == "edge" and self.windows != "inside":
            raise ValueError(f"pad=edge: windows stay inside an episode, not {self.windows}")
        if self.pad_after is not None and self.pad == "none":
            raise ValueError(f"pad_after={self.pad_after}: windows are only padded with pad=edge")
        check_failure(self.mc_gamma, self.mc_failure_reward)
        if self.context >= self.steps:
            raise ValueError(f"context={self.context} must be below the {self.steps} steps")

    @property
    def pads(self) -> bool:
        return self.pad == "edge"

    @property
    def crosses(self) -> bool:
        return crosses(self.windows, self.steps)

    @property
    def steps(self) -> int:
        """Return the steps in a window."""
        return self.length or self.before + 1 + self.after

    def requested(self) -> dict[str, str]:
        """Return the observations that are named in the options, and where."""
        task = {TASK: "task"} if self.task else {}
        normalized = {
            k: f"normalize.{k}" for k, m in self.normalize.items() if k != ACTION and m != "none"
        }
        return normalized | {k: f"keys.{k}" for k in self.keys} | task

    def window(self) -> tuple[int, int, int] | None:
        """Return batch, length and context of what is sampled."""
        return self.batch, self.steps, self.context

    def most_steps(self, num_envs: int) -> int:
        """Return how many steps the set has."""
        data = self.open()
        return data.num_frames + len(data.episodes)

    def open(self) -> Dataset:
        """Return the dataset with the episodes that are used; a corrupted one is an error."""
        found = _opened(self.path, _stamp(Path(self.path)))
        data = replace(found, episodes=list(found.episodes))
        data.notes = data.check_whole(data.broken, self.skip_damaged)
        if self.episodes is not None:
            if self.episodes > len(data.episodes):
                raise DataError(f"{data.place}: it has {len(data.episodes)} episodes, not "
                                f"{self.episodes}")  # fmt: skip
            data.episodes = data.episodes[: self.episodes]
        return data

    def names(self, data: Dataset) -> dict[str, str]:
        """Return the feature of each observation, by its name here."""
        return observations(data, self.keys)

    def spec(self, data: Dataset) -> Spec:
        """Return what the set's own steps look like, before they are normalized."""
        spec = spec_of(data, self.names(data), self.task)
        if self.size is None:
            return spec
        size = self.size
        obs = {
            k: replace(s, shape=(*size, s.shape[2])) if s.is_image else s
            for k, s in spec.obs.items()
        }
        return replace(spec, obs=obs)

    def scaling(self, data: Dataset) -> Scaling:
        """Return the normalization that is requested; raise naming what it lacks."""
        wanted = {k: m for k, m in self.normalize.items() if m != "none"}
        features = {**self.names(data), ACTION: ACTION}
        for name in self.normalize:
            if name not in features:
                raise DataError(unknown("observation", name, features, "normalize"))
        for name in wanted:
            if data.feature(features[name]).is_image:
                raise DataError(f"normalize.{name}: images are kept as bytes: remove it")
        if ACTION in wanted and data.feature(ACTION).dtype.startswith("int"):
            raise DataError("normalize.action: discrete actions are not normalized: remove it")
        used = list(dict.fromkeys(features[k] for k, m in wanted.items() if m != "bounds"))
        known = data.stored if self.statistics == "stored" else statistics.cached(data, used)
        return {
            k: statistics.affine(k, m, known.get(features[k], {}), data.feature(features[k]))
            for k, m in wanted.items()
        }


@lru_cache(maxsize=2)
def _opened(path: str, stamp: tuple[tuple[str, int, int], ...]) -> Dataset:
    """Return a set that was opened before, as long as its files are the same."""
    return open_dataset(path)


def _stamp(path: Path) -> tuple[tuple[str, int, int], ...]:
    files = [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path]
    found = [(str(p), p.stat()) for p in sorted(files) if p.exists()]
    return tuple((name, s.st_size, s.st_mtime_ns) for name, s in found)
