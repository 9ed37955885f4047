"""The replay of one of our runs as a dataset: whole episodes, and those that were cut short."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from dreamlab.core.types import Array, ArraySpec, Spec
from dreamlab.data.chunks import ChunkFiles
from dreamlab.data.datasets.gathered import Origin, Recorded, gather, observation_name
from dreamlab.data.datasets.table import (
    ACTION,
    DONE,
    REWARD,
    TRUNCATED,
    DataError,
    Dataset,
    Feature,
    fingerprint,
)


def replay_folder(place: Path) -> Path | None:
    """Return the folder of stored steps: the place itself, or the only one of a run."""
    if ChunkFiles(place).chunks():
        return place
    buffers = place / "buffers"
    found = [f for f in sorted(buffers.iterdir()) if f.is_dir()] if buffers.is_dir() else []
    stored = [f for f in found if ChunkFiles(f).chunks()]
    if len(stored) > 1:
        names = ", ".join(f.name for f in stored)
        raise DataError(f"{place} has several replay buffers: choose one in {buffers}/: {names}")
    return stored[0] if stored else None


def read_run(folder: Path) -> Dataset:
    """Return the newest stored steps of a run as episodes.

    Observations and actions are as the algorithm saw them: actions in [-1, 1] where the
    environment was told so.
    """
    files = ChunkFiles(folder)
    spec, (first, last) = files.read_spec(), files.newest_stretch()
    parts = [data for _, data, _ in files.read(first, last)]
    keys = [k for k in parts[0] if not k.startswith("extras/")]
    steps = {k: np.concatenate([p[k].numpy() for p in parts], axis=1) for k in keys}
    mark = fingerprint(folder, [p for p in folder.iterdir() if p.suffix == ".pt"])
    origin = Origin(folder, "run replay", mark, features=_features(spec))
    return gather(origin, _episodes(steps, spec))


def _features(spec: Spec) -> dict[str, Feature]:
    out = {
        observation_name(k, s.is_image): _feature(s) for k, s in spec.obs.items() if not s.is_image
    }
    return {**out, ACTION: _feature(spec.action)}


def _feature(spec: ArraySpec) -> Feature:
    classes = spec.classes if isinstance(spec.classes, int) else None
    bounds: dict[str, Any] = {} if spec.is_discrete else {"low": spec.low, "high": spec.high}
    return Feature(spec.dtype, spec.shape or (1,), classes=classes, **bounds)


def _episodes(steps: dict[str, Array], spec: Spec) -> Iterator[Recorded]:
    """Yield what lies between two episode boundaries of each environment's stream."""
    index = 0
    for env in range(len(steps["reward"])):
        stream = {k: v[env] for k, v in steps.items()}
        seams = np.flatnonzero(stream["is_first"])
        edges = np.unique(np.concatenate([[0], seams, [len(stream["reward"])]]))
        for start, end in pairwise(edges):
            if end - start > 1:  # a step alone has no action that anything followed
                part = {k: v[start:end] for k, v in stream.items()}
                yield _recorded(index, part, spec)
                index += 1


def _recorded(index: int, part: dict[str, Array], spec: Spec) -> Recorded:
    """Return steps as frames: a reward goes back to the action that earned it."""
    columns: dict[str, Any] = {}
    finals: dict[str, Any] = {}
    for key, about in spec.obs.items():
        name = observation_name(key, about.is_image)
        columns[name], finals[name] = part[f"obs/{key}"][:-1], part[f"obs/{key}"][-1]
    columns[ACTION] = part["action"][:-1]
    columns[REWARD] = part["reward"][1:]
    terminal = part["is_terminal"][1:]
    over = terminal.copy()
    over[-1] = True
    columns[DONE], columns[TRUNCATED] = over, over & ~terminal
    return Recorded(index, columns, finals)
