"""Writes a dataset that was read, or episodes as they come, in LeRobot's v3.0."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dreamlab.core.types import Array
from dreamlab.data.datasets.gathered import Recorded, is_picture
from dreamlab.data.datasets.lerobot_write import LeRobotWriter, Recording
from dreamlab.data.datasets.statistics import chosen_frames
from dreamlab.data.datasets.table import COUNTERS, SUCCESS, Camera, DataError, Dataset, Feature
from dreamlab.data.datasets.video import Film, VideoCamera

BLOCK = 64
"""Number of images in memory at once."""


def to_lerobot(data: Dataset, folder: Path, codec: str) -> Path:
    """Write a dataset as LeRobot v3.0; what was observed after the last action is not kept.

    Videos with a file for each episode are copied, all other images encoded.
    """
    features = {
        k: _written(f, data.cameras.get(k)) for k, f in data.features.items() if k not in COUNTERS
    }
    recording = Recording(data.fps, features, codec=codec)
    with LeRobotWriter(folder, recording) as writer:
        for episode in data.episodes:
            rows = np.arange(episode.first, episode.end)
            columns = {k: data.columns[k][rows] for k, f in features.items() if not f.is_image}
            films = {
                k: _film(camera, rows) if features[k].dtype == "video" else _pictures(camera, rows)
                for k, camera in data.cameras.items()
            }
            writer.add(columns, films, data.task(episode.first))
    return folder


def _written(feature: Feature, camera: Camera | None) -> Feature:
    """Return a feature as it is written: a camera as a video where its sides allow that."""
    if camera is None:
        return feature
    height, width, channels = camera.shape
    even = height % 2 == 0 and width % 2 == 0
    kind = feature.dtype if even and channels == 3 else "image"
    return replace(feature, dtype=kind, shape=camera.shape)


def _film(camera: Camera, rows: Array) -> Film | Iterator[Array]:
    """Return an episode's own video file, which can be copied as it is; else its images."""
    path = camera.file_of(rows) if isinstance(camera, VideoCamera) else None
    if path is None:
        return _pictures(camera, rows)
    return Film(path, camera.read(rows[chosen_frames(len(rows))]))


def _pictures(camera: Camera, rows: Array) -> Iterator[Array]:
    for start in range(0, len(rows), BLOCK):
        yield from camera.read(rows[start : start + BLOCK])


def write_episodes(
    folder: Path, episodes: Iterable[Recorded], recording: Recording, task: str
) -> Iterator[Recorded]:
    """Write episodes as they come, and pass each on; the set is whole when all have passed."""
    writer: LeRobotWriter | None = None
    try:
        for episode in episodes:
            if writer is None:
                features = features_of(episode.columns, recording.features)
                writer = LeRobotWriter(folder, replace(recording, features=features))
            _add(writer, episode, task)
            yield episode
        if writer is None:
            raise DataError(f"{folder}: no episodes were recorded")
        writer.close()
    except BaseException:
        if writer is not None:
            writer.abort()
        raise


def _add(writer: LeRobotWriter, episode: Recorded, task: str) -> None:
    columns = dict(episode.columns)
    if SUCCESS in writer.features:
        columns.setdefault(SUCCESS, np.zeros(episode.length, bool))
    images = {k: v for k, v in columns.items() if k in writer.features and _is_image(writer, k)}
    writer.add({k: v for k, v in columns.items() if k not in images}, images, task)


def _is_image(writer: LeRobotWriter, name: str) -> bool:
    return writer.features[name].is_image


def features_of(columns: Mapping[str, Any], known: Mapping[str, Feature]) -> dict[str, Feature]:
    """Return what an episode's columns look like, with what is known of them beyond that."""
    out: dict[str, Feature] = {}
    for name, values in columns.items():
        shape = tuple(values.shape[1:])
        if is_picture(values.dtype, shape):
            film = shape[0] % 2 == 0 and shape[1] % 2 == 0 and shape[2] == 3
            out[name] = Feature("video" if film else "image", shape)
        else:
            kind = {"f": "float32", "i": "int64", "u": "int64", "b": "bool"}[values.dtype.kind]
            out[name] = known.get(name) or Feature(kind, shape or (1,))
    return out
