"""Statistics of a dataset's features, and the normalization that they give."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dreamlab.core.affine import ACTION, Affine
from dreamlab.core.files import cache_folder, write_json
from dreamlab.core.readers import FileError, read_json
from dreamlab.core.types import Array
from dreamlab.data.datasets.table import Camera, DataError, Dataset, Feature

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
NAMES = ("min", "max", "mean", "std", "count", *QUANTILES)
IMAGE_PIXELS = 150
"""Images are downsampled to about this size for statistics, as LeRobot does."""
EPS = 1e-8
MODES = {
    "mean_std": ("mean", "std"), "min_max": ("min", "max"), "quantiles": ("q01", "q99"),
    "bounds": (),
}  # fmt: skip

Stats = dict[str, dict[str, Array]]
"""Statistics by feature and name."""


def array_statistics(values: Array) -> dict[str, Array]:
    """Return the statistics of each entry over the first axis, in float64."""
    x = np.asarray(values, np.float64)
    x = x[:, None] if x.ndim == 1 else x
    out = {
        "min": x.min(0), "max": x.max(0), "mean": x.mean(0), "std": x.std(0),
        "count": np.array([len(x)]),
    }  # fmt: skip
    return out | {k: np.quantile(x, q, axis=0) for k, q in QUANTILES.items()}


def chosen_frames(num: int) -> Array:
    """Return which of `num` images are counted, as LeRobot chooses them."""
    most = max(100, min(int(num**0.75), 10_000))
    return np.round(np.linspace(0, num - 1, min(num, most))).astype(np.int64)


def image_statistics(camera: Camera, rows: Array) -> dict[str, Array]:
    """Return statistics [c, 1, 1] of each channel in [0, 1], over a sample of the images."""
    chosen = rows[chosen_frames(len(rows))]
    thin = max(1, max(camera.shape[:2]) // IMAGE_PIXELS)
    pixels = camera.read(chosen)[:, ::thin, ::thin].reshape(-1, camera.shape[2]) / 255.0
    out = {k: v.reshape(-1, 1, 1) for k, v in array_statistics(pixels).items() if k != "count"}
    return {**out, "count": np.array([len(chosen)])}


def aggregate(each: Sequence[Stats]) -> Stats:
    """Return statistics over all episodes from those of each, as LeRobot does.

    Mean and deviation are exact; a quantile is only an envelope: the lowest below the median, else
    the highest.
    """
    names = dict.fromkeys(name for stats in each for name in stats)
    return {name: _aggregate([s[name] for s in each if name in s]) for name in names}


def _aggregate(each: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    count = np.array([float(s["count"].reshape(-1)[0]) for s in each])
    mean, std = (np.stack([s[k] for s in each]) for k in ("mean", "std"))
    weight = (count / count.sum()).reshape(-1, *([1] * (mean.ndim - 1)))
    middle = (weight * mean).sum(0)
    var = (weight * (std**2 + (mean - middle) ** 2)).sum(0)
    out = {
        "min": np.stack([s["min"] for s in each]).min(0),
        "max": np.stack([s["max"] for s in each]).max(0),
        "mean": middle, "std": np.sqrt(var), "count": np.array([int(count.sum())]),
    }  # fmt: skip
    for name, q in QUANTILES.items():
        if all(name in s for s in each):
            values = np.stack([s[name] for s in each])
            out[name] = values.min(0) if q <= 0.5 else values.max(0)
    return out


def frame_rows(data: Dataset) -> Array:
    """Return the rows of the episodes that are used."""
    return np.concatenate([np.arange(e.first, e.end) for e in data.episodes])


def compute(data: Dataset, names: Sequence[str] | None = None) -> Stats:
    """Return exact statistics of features over all frames that are used; of images, a sample."""
    rows = frame_rows(data)
    wanted = names if names is not None else [*data.columns, *data.cameras]
    out: Stats = {}
    for name in wanted:
        if name in data.cameras:
            out[name] = image_statistics(data.cameras[name], rows)
        elif data.columns[name].dtype != object:
            out[name] = array_statistics(data.columns[name][rows])
    return out


def cached(data: Dataset, names: Sequence[str] | None = None) -> Stats:
    """Return statistics that were computed before for this set, else compute and keep them."""
    wanted = list(names) if names is not None else [*data.columns, *data.cameras]
    used = zlib.crc32(repr([e.index for e in data.episodes]).encode())
    path = cache_folder() / "statistics" / f"{data.fingerprint}_{used:08x}.json"
    found = _read(path)
    missing = [n for n in wanted if n not in found]
    missing = [n for n in missing if n in data.cameras or data.columns[n].dtype != object]
    if missing:
        found |= compute(data, missing)
        write_json(path, plain(found))
    return {n: found[n] for n in wanted if n in found}


def _read(path: Path) -> Stats:
    try:
        return arrays(read_json(path))
    except FileError:
        return {}


def plain(stats: Stats) -> dict[str, Any]:
    """Return statistics as JSON holds them."""
    return {k: {n: v.tolist() for n, v in s.items()} for k, s in stats.items()}


def arrays(node: Mapping[str, Any]) -> Stats:
    """Return statistics that JSON held."""
    return {k: {n: np.asarray(v) for n, v in s.items()} for k, s in node.items()}


def affine(name: str, mode: str, stats: Mapping[str, Array], feature: Feature) -> Affine:
    """Return the normalization of a feature; raise naming the statistic that is missing.

    mean_std     mean 0, deviation 1
    min_max      the smallest -1, the largest 1
    quantiles    q01 -1, q99 1; actions beyond are clipped (`DatasetSource`)
    bounds       the bounds that the set gives the feature: low -1, high 1
    """
    if mode == "bounds":
        low, high = _bounds(name, feature)
    else:
        for wanted in MODES[mode]:
            if wanted not in stats:
                known = ", ".join(stats) or "none"
                raise DataError(
                    f"normalize.{name}: {mode} needs the statistic {wanted!r} of {name!r}, which "
                    f"the dataset does not have. It has: {known}"
                )
        low, high = (np.asarray(stats[k], np.float64).reshape(feature.shape) for k in MODES[mode])
    if mode == "mean_std":
        return Affine(low, high + EPS)
    width = np.where(high - low == 0, EPS, high - low)
    bounded = mode != "quantiles" or name == ACTION
    return Affine(low + width / 2, width / 2, bounded=bounded)


def _bounds(name: str, feature: Feature) -> tuple[Array, Array]:
    if feature.low is None or feature.high is None:
        raise DataError(
            f"normalize.{name}: bounds: the dataset has no low and high of {name!r}: use min_max"
        )
    low, high = (np.asarray(x, np.float64) for x in (feature.low, feature.high))
    return np.broadcast_to(low, feature.shape), np.broadcast_to(high, feature.shape)
