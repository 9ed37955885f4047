"""Puts episodes, given one by one as arrays, together as a dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dreamlab.core.types import Array
from dreamlab.data.datasets.table import (
    Broken,
    DataError,
    Dataset,
    Episode,
    Feature,
    counter_features,
    counters,
)

FPS = 30.0
"""Default frame rate for formats without one."""


@dataclass(frozen=True)
class Recorded:
    """One episode: columns [t, ...] by feature, images among them, and what was seen at its end.

    `finals` is what was observed after the last action, where the format tells.
    """

    index: int
    columns: Mapping[str, Any]
    finals: Mapping[str, Any] = field(default_factory=dict[str, Any])
    task: str = ""

    @property
    def length(self) -> int:
        return len(self.columns["action"])

    def fault(self) -> str | None:
        """Return what is wrong with it, if anything is."""
        odd = [k for k, v in self.columns.items() if len(v) != self.length]
        if odd:
            return f"{odd[0]!r} has {len(self.columns[odd[0]])} frames, 'action' {self.length}"
        return None if self.length else "it has no frames"


class ArrayCamera:
    """Images that are arrays already, in memory or in a file that is read when they are required.

    `parts` holds each episode's images [t, h, w, c].
    """

    def __init__(self, shape: tuple[int, int, int], parts: list[Any]) -> None:
        self.shape, self.parts = shape, parts
        self.starts = np.cumsum([0, *(len(p) for p in parts)])

    def read(self, frames: Array) -> Array:
        """Copy the images of these frames."""
        out = np.zeros((len(frames), *self.shape), np.uint8)
        which = np.searchsorted(self.starts, frames, side="right") - 1
        for part in np.unique(which):
            at = np.flatnonzero(which == part)
            rows, back = np.unique(frames[at] - self.starts[part], return_inverse=True)
            out[at] = self.parts[part][rows][back]
        return out

    def in_order(self, put: Callable[[Array, Array], None]) -> Broken:
        """Give the images of one episode after the other."""
        for start, part in zip(self.starts, self.parts, strict=False):
            put(np.arange(start, start + len(part)), np.asarray(part[:]))
        return {}


def is_picture(dtype: Any, shape: tuple[int, ...]) -> bool:
    """Return whether one frame's array is an image: bytes of height, width, channels."""
    return np.dtype(dtype) == np.uint8 and len(shape) == 3 and shape[2] in (1, 3, 4)


def observation_name(key: str, picture: bool) -> str:
    """Return how an observation is called in a dataset."""
    if picture:
        return "observation.image" if key == "image" else f"observation.images.{key}"
    return f"observation.{key}"


@dataclass(frozen=True)
class Origin:
    """Where a set comes from."""

    place: Path
    kind: str
    fingerprint: str
    fps: float = FPS
    features: Mapping[str, Feature] = field(default_factory=dict[str, Feature])
    """Names and other metadata of features."""


def gather(origin: Origin, episodes: Iterable[Recorded], broken: Broken | None = None) -> Dataset:
    """Return the dataset of these episodes; corrupted ones are listed in `broken`."""
    broken = dict(broken or {})
    good: list[Recorded] = []
    for episode in episodes:
        if (fault := episode.fault()) is None:
            good.append(episode)
        else:
            broken[episode.index] = fault
    if not good:
        raise DataError(f"{origin.place}: no intact episode: {next(iter(broken.values()), '')}")
    tasks = list(dict.fromkeys(e.task for e in good))
    numbers = [tasks.index(e.task) for e in good]
    lengths = [e.length for e in good]
    columns = counters(lengths, origin.fps, numbers)
    columns["episode_index"] = np.repeat([e.index for e in good], lengths)
    starts = np.cumsum([0, *lengths])
    used = [
        Episode(e.index, int(s), e.length, (e.task,) if e.task else ())
        for e, s in zip(good, starts, strict=False)
    ]
    data = Dataset(
        origin.place, origin.kind, origin.fps, {}, used, columns, tasks=tasks if any(tasks) else [],
        broken=broken, fingerprint=origin.fingerprint,
    )  # fmt: skip
    for name in _names(origin, good):
        _add(data, origin, name, good)
    data.features |= counter_features()
    return data


def _names(origin: Origin, good: list[Recorded]) -> list[str]:
    names = list(good[0].columns)
    for episode in good[1:]:
        if odd := sorted(set(names) ^ set(episode.columns)):
            raise DataError(
                f"{origin.place}: {odd[0]!r} is not in every episode: episodes {good[0].index} and "
                f"{episode.index} differ"
            )
    return names


def _add(data: Dataset, origin: Origin, name: str, good: list[Recorded]) -> None:
    """Add one feature of all episodes."""
    parts = [e.columns[name] for e in good]
    shape = tuple(int(n) for n in parts[0].shape[1:])
    for episode, part in zip(good, parts, strict=True):
        if tuple(part.shape[1:]) != shape:
            raise DataError(
                f"{origin.place}: {name!r} is {list(part.shape[1:])} in episode {episode.index} "
                f"and {list(shape)} in episode {good[0].index}"
            )
    finals = {e.index: np.asarray(e.finals[name]) for e in good if name in e.finals}
    if finals:
        data.finals[name] = finals
    if is_picture(parts[0].dtype, shape):
        data.features[name] = Feature("video" if shape[2] == 3 else "image", shape)
        data.cameras[name] = ArrayCamera((shape[0], shape[1], shape[2]), parts)
        return
    column = np.concatenate([np.asarray(p) for p in parts])
    if column.dtype.kind == "f":
        column = column.astype(np.float32)
    elif column.dtype.kind in "iu":
        column = column.astype(np.int64)
    data.columns[name] = column
    known = origin.features.get(name)
    data.features[name] = known or Feature(str(column.dtype), shape or (1,))
