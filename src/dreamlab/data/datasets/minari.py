"""Minari datasets, through Minari's own package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dreamlab.core.errors import require
from dreamlab.core.types import Array
from dreamlab.data.datasets.gathered import Origin, Recorded, gather, is_picture, observation_name
from dreamlab.data.datasets.table import (
    ACTION,
    DONE,
    REWARD,
    SUCCESS,
    TRUNCATED,
    DataError,
    Dataset,
    Feature,
    fingerprint,
)

PREFIX = "minari:"


def read_minari(name: str) -> Dataset:
    """Return a dataset that Minari has on this machine, by its id."""
    minari = require("minari", "minari")
    try:
        found = minari.load_dataset(name)
    except FileNotFoundError:
        known = ", ".join(sorted(minari.list_local_datasets())) or "none"
        raise DataError(
            f"minari:{name}: no such local dataset (fetch it with minari download). Available: "
            f"{known}"
        ) from None
    folder = Path(found.storage.data_path)
    mark = fingerprint(folder, [p for p in folder.rglob("*") if p.is_file()])
    features = {ACTION: _action(found.action_space)}
    origin = Origin(Path(f"{PREFIX}{name}"), "minari", mark, features=features)
    return gather(origin, _episodes(found))


def _action(space: Any) -> Feature:
    """Return what actions look like, with the bounds of their space."""
    if hasattr(space, "n"):
        return Feature("int64", (1,), classes=int(space.n))
    if not hasattr(space, "low"):
        raise DataError(f"minari: actions of {type(space).__name__} are not supported")
    bounded = bool(np.isfinite(space.low).all() and np.isfinite(space.high).all())
    bounds = [tuple(float(x) for x in np.ravel(v)) for v in (space.low, space.high)]
    low, high = bounds if bounded and len(space.shape) == 1 else (None, None)
    return Feature("float32", tuple(space.shape), low=low, high=high)


def _episodes(found: Any) -> Iterator[Recorded]:
    """Yield episodes; there is one more observation than actions."""
    for episode in found.iterate_episodes():
        columns: dict[str, Any] = {}
        finals: dict[str, Any] = {}
        for key, values in _flat(episode.observations, ""):
            name = observation_name(key, is_picture(values.dtype, values.shape[1:]))
            columns[name], finals[name] = values[:-1], values[-1]
        columns[ACTION] = np.asarray(episode.actions)
        columns[REWARD] = np.asarray(episode.rewards, np.float32)
        over = np.asarray(episode.terminations, bool), np.asarray(episode.truncations, bool)
        columns[DONE], columns[TRUNCATED] = over[0] | over[1], over[1] & ~over[0]
        success = (episode.infos or {}).get("success")
        if success is not None:
            columns[SUCCESS] = np.asarray(success, bool)[-len(columns[ACTION]) :]
        yield Recorded(int(episode.id), columns, finals)


def _flat(observations: Any, prefix: str) -> Iterator[tuple[str, Array]]:
    """Yield every array of nested observations by name; a vector alone is the `state`."""
    if isinstance(observations, dict):
        items = list(observations.items())
    elif isinstance(observations, tuple):
        items = list(enumerate(observations))
    else:
        values = np.asarray(observations)
        picture = is_picture(values.dtype, values.shape[1:])
        yield prefix or ("image" if picture else "state"), values
        return
    for key, value in items:
        yield from _flat(value, f"{prefix}_{key}" if prefix else str(key))
