"""The one form that every dataset is read into: columns of frames, episodes, cameras."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dreamlab.core.errors import LabError, unknown
from dreamlab.core.types import Array

ACTION, REWARD, DONE = "action", "next.reward", "next.done"
TRUNCATED, SUCCESS = "next.truncated", "next.success"
COUNTERS = ("timestamp", "frame_index", "episode_index", "index", "task_index")
"""Columns that every frame has in addition to the recorded features."""
TOLERANCE_S = 1e-4
"""Timestamp tolerance, as in LeRobot."""
WHOLE_BYTES = 2**20
EDGE_BYTES = 2**16


class DataError(LabError):
    """A dataset is corrupted, or lacks what is needed."""


@dataclass(frozen=True)
class Feature:
    """One thing that is recorded at every frame; the shape of an image is height, width, channels.

    `low` and `high` bound every entry and `classes` counts choices, where the set tells.
    """

    dtype: str
    shape: tuple[int, ...]
    names: Any = None
    low: float | tuple[float, ...] | None = None
    high: float | tuple[float, ...] | None = None
    classes: int | None = None
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def is_image(self) -> bool:
        return self.dtype in ("video", "image")

    @property
    def is_scalar(self) -> bool:
        return self.shape in ((), (1,))


@dataclass(frozen=True)
class Episode:
    """Frames `first` to `first + length` of the columns; `index` is the set's own number."""

    index: int
    first: int
    length: int
    tasks: tuple[str, ...] = ()

    @property
    def end(self) -> int:
        return self.first + self.length


Broken = dict[int, str]
"""Corrupted episodes: their index and the reason."""


class Camera(Protocol):
    """The images of one camera, one for each frame of the columns."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return height, width and channels."""
        ...

    def read(self, frames: Array) -> Array:
        """Return the images [n, h, w, c] of these frames; raise `DataError` on a corrupted one."""
        ...

    def in_order(self, put: Callable[[Array, Array], None]) -> Broken:
        """Decode every frame once: give `put` frame numbers and images; return what is broken."""
        ...


@dataclass
class Dataset:
    """A dataset: everything but images is in memory, as columns [num_frames, ...].

    `finals` holds what was observed after the last action of an episode, by feature and then by
    the episode's index, for the formats that record it. `stored` are the statistics that the set
    brings along.
    """

    place: Path
    kind: str
    fps: float
    features: dict[str, Feature]
    episodes: list[Episode]
    columns: dict[str, Array]
    cameras: dict[str, Camera] = field(default_factory=dict[str, Camera])
    tasks: list[str] = field(default_factory=list[str])
    finals: dict[str, dict[int, Array]] = field(default_factory=dict[str, dict[int, Array]])
    stored: dict[str, dict[str, Array]] = field(default_factory=dict[str, dict[str, Array]])
    broken: Broken = field(default_factory=Broken)
    fingerprint: str = ""
    notes: list[str] = field(default_factory=list[str])
    """Warnings for the user."""

    @property
    def num_frames(self) -> int:
        return sum(e.length for e in self.episodes)

    @property
    def num_rows(self) -> int:
        """Return how many rows the columns have: those of corrupted episodes are among them."""
        return len(self.columns["episode_index"])

    def feature(self, name: str) -> Feature:
        """Return a feature, or say what there is instead."""
        if name not in self.features:
            raise DataError(unknown("feature", name, self.features, str(self.place)))
        return self.features[name]

    def camera(self, name: str) -> Camera:
        """Return a camera, or say which there are."""
        if name not in self.cameras:
            raise DataError(unknown("camera", name, self.cameras, str(self.place)))
        return self.cameras[name]

    def episode(self, index: int) -> Episode:
        """Return the episode with this number."""
        for episode in self.episodes:
            if episode.index == index:
                return episode
        known = f"{len(self.episodes)} episodes, of number {self.episodes[0].index} to "
        raise DataError(
            f"{self.place}: there is no episode {index}; it has {known}{self.episodes[-1].index}"
        )

    def task(self, row: int) -> str:
        """Return the task of a frame; empty where there are none."""
        number = int(self.columns["task_index"][row]) if "task_index" in self.columns else -1
        return self.tasks[number] if 0 <= number < len(self.tasks) else ""

    def at_deltas(self, row: int, seconds: Sequence[float]) -> tuple[Array, Array]:
        """Return the rows at these times from a row, and which of them are padding.

        What lies outside the episode is its first or last row. Raise if a time is none of a frame.
        """
        frames = np.asarray(seconds, np.float64) * self.fps
        steps = np.round(frames).astype(np.int64)
        if (np.abs(frames - steps) > TOLERANCE_S * self.fps).any():
            raise DataError(
                f"{self.place}: {list(seconds)} are not all multiples of a frame, 1/{self.fps:g} s"
            )
        found = [e for e in self.episodes if e.first <= row < e.end]
        if not found:
            raise DataError(f"{self.place}: row {row} belongs to no episode in use")
        wanted = row + steps
        kept = np.clip(wanted, found[0].first, found[0].end - 1)
        return kept, kept != wanted

    def without(self, broken: Broken) -> list[str]:
        """Leave out episodes; return a sentence for each of them."""
        self.episodes = [e for e in self.episodes if e.index not in broken]
        if not self.episodes:
            raise DataError(f"{self.place}: no intact episode: {next(iter(broken.values()))}")
        return [f"{self.place}: episode {i} is skipped: {why}" for i, why in broken.items()]

    def check_pictures(self, skip: bool) -> list[str]:
        """Decode everything to skip episodes with corrupted images, if configured.

        Else nothing is decoded here: reading a corrupted image raises.
        """
        if not skip:
            return []
        used, broken = {e.index for e in self.episodes}, dict[int, str]()
        for camera in self.cameras.values():
            broken |= camera.in_order(lambda rows, pictures: None)
        return self.check_whole({i: why for i, why in broken.items() if i in used}, skip)

    def check_whole(self, broken: Broken, skip: bool) -> list[str]:
        """Raise if episodes are broken, or skip and report them if configured."""
        if broken and not skip:
            index, why = next(iter(broken.items()))
            more = f" ({len(broken) - 1} more episodes are corrupted)" if len(broken) > 1 else ""
            raise DataError(
                f"{self.place}: episode {index} is corrupted: {why}{more}. skip_damaged: true "
                f"skips such episodes"
            )
        return self.without(broken) if broken else []


def counters(lengths: Sequence[int], fps: float, tasks: Sequence[int]) -> dict[str, Array]:
    """Return the counting columns of episodes with these lengths and tasks."""
    count = np.asarray(lengths, np.int64)
    inside = np.concatenate([np.arange(n, dtype=np.int64) for n in count] or [np.zeros(0, int)])
    return {
        "timestamp": (inside / fps).astype(np.float32),
        "frame_index": inside,
        "episode_index": np.repeat(np.arange(len(count), dtype=np.int64), count),
        "index": np.arange(count.sum(), dtype=np.int64),
        "task_index": np.repeat(np.asarray(tasks, np.int64), count),
    }


def counter_features() -> dict[str, Feature]:
    """Return what the counting columns look like."""
    kinds = {"timestamp": "float32"}
    return {k: Feature(kinds.get(k, "int64"), (1,)) for k in COUNTERS}


def fingerprint(root: Path, files: Iterable[Path]) -> str:
    """Return what changes when a set's files do: names, sizes and content, of large ones the ends.

    The place and the dates of the files do not count, so that a copy is the same set.
    """
    digest = hashlib.sha256()
    for path in sorted(files):
        size = path.stat().st_size
        name = path.relative_to(root) if path != root else path.name
        digest.update(f"{name}\0{size}\0".encode())
        with path.open("rb") as file:
            if size <= WHOLE_BYTES:
                digest.update(file.read())
                continue
            digest.update(file.read(EDGE_BYTES))
            file.seek(size - EDGE_BYTES)
            digest.update(file.read())
    return digest.hexdigest()[:32]
