"""LeRobotDataset v2.0, v2.1 and v3.0, read without the lerobot package."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dreamlab.core.readers import read_json, read_jsonl
from dreamlab.core.types import Array
from dreamlab.data.datasets import parquet
from dreamlab.data.datasets.statistics import aggregate
from dreamlab.data.datasets.table import (
    COUNTERS,
    Broken,
    Camera,
    DataError,
    Dataset,
    Episode,
    Feature,
    fingerprint,
)
from dreamlab.data.datasets.video import Clips, VideoCamera

VERSIONS = ("v2.0", "v2.1", "v3.0")
INFO = Path("meta", "info.json")
KNOWN = ("dtype", "shape", "names", "low", "high", "classes")


def is_lerobot(place: Path) -> bool:
    """Return whether a folder holds a LeRobot dataset."""
    return (place / INFO).is_file()


@dataclass
class Listing:
    """What the meta files of a set say, whichever version wrote them."""

    root: Path
    info: dict[str, Any]
    features: dict[str, Feature]
    episodes: list[dict[str, Any]]
    tasks: list[str]
    stored: dict[str, dict[str, Array]] = field(default_factory=dict[str, dict[str, Array]])

    @property
    def version(self) -> str:
        return str(self.info["codebase_version"])

    @property
    def fps(self) -> float:
        return float(self.info["fps"])

    def data_file(self, row: Mapping[str, Any]) -> Path:
        """Return the parquet file of an episode."""
        return self.root / self._fill(str(self.info["data_path"]), row, "data")

    def video_file(self, row: Mapping[str, Any], key: str) -> Path:
        """Return the video file of an episode."""
        return self.root / self._fill(str(self.info["video_path"]), row, f"videos/{key}", key)

    def _fill(self, template: str, row: Mapping[str, Any], kind: str, key: str = "") -> str:
        index = int(row["episode_index"])
        chunk = index // int(self.info.get("chunks_size", 1000))
        return template.format(
            episode_index=index,
            episode_chunk=chunk,
            video_key=key,
            chunk_index=int(row.get(f"{kind}/chunk_index", chunk)),
            file_index=int(row.get(f"{kind}/file_index", 0)),
        )


def read_lerobot(root: Path) -> Dataset:
    """Return a dataset of any version; unusable episodes are listed in `broken`."""
    listing = read_listing(root)
    table, good, broken = _read_rows(listing)
    columns = {k: _column(listing, table, k) for k in _plain(listing)}
    episodes, first = [], 0
    for row in good:
        length = int(row["length"])
        named = tuple(map(str, row.get("tasks") or ()))
        episodes.append(Episode(int(row["episode_index"]), first, length, named))
        first += length
    data = Dataset(
        root, f"lerobot {listing.version}", listing.fps, listing.features, episodes, columns,
        tasks=listing.tasks, stored=listing.stored, broken=broken,
        fingerprint=fingerprint(root, _files(root)),
    )  # fmt: skip
    for key, feature in listing.features.items():
        if feature.is_image:
            data.cameras[key] = _camera(listing, data, table, good, key)
    return data


def _files(root: Path) -> list[Path]:
    """Return the files that make up a set, whatever else lies in its folder."""
    parts = (root / "meta", root / "data", root / "videos", root / "images")
    return [p for part in parts for p in part.rglob("*") if p.is_file()]


def _plain(listing: Listing) -> list[str]:
    named = [k for k, f in listing.features.items() if not f.is_image]
    return [*named, *(k for k in COUNTERS if k not in listing.features)]


def _column(listing: Listing, table: Any, name: str) -> Array:
    if name in COUNTERS:
        kind = "float32" if name == "timestamp" else "int64"
        return parquet.column(table, name, Feature(kind, ()), listing.root)
    return parquet.column(table, name, listing.features[name], listing.root)


# -- meta -----------------------------------------------------------------------------------------


def read_listing(root: Path) -> Listing:
    """Return what the meta files say."""
    info = read_json(root / INFO)
    for key in ("codebase_version", "fps", "features", "data_path"):
        if key not in info:
            raise DataError(f"{root / INFO}: {key} is missing")
    if (version := info["codebase_version"]) not in VERSIONS:
        raise DataError(
            f"{root / INFO}: codebase_version {version!r} is not one of {', '.join(VERSIONS)}"
        )
    features = {str(k): feature_of(v, f"{root / INFO}: {k}") for k, v in info["features"].items()}
    listing = Listing(root, info, features, [], [])
    if version == "v3.0":
        listing.tasks = parquet.read_tasks(root / "meta" / "tasks.parquet")
        listing.episodes = _episodes_v3(root)
        listing.stored = _global_stats(root)
    else:
        _read_v2(listing)
    if not listing.episodes:
        raise DataError(f"{root}: it has no episodes")
    return listing


def feature_of(node: Any, where: str) -> Feature:
    """Return a feature from its description in info.json."""
    if not isinstance(node, dict) or "dtype" not in node or "shape" not in node:
        raise DataError(f"{where}: expected dtype and shape")
    more = {k: node[k] for k in KNOWN if k in node and k not in ("dtype", "shape")}
    for key in ("low", "high"):
        if isinstance(more.get(key), list):
            more[key] = tuple(more[key])
    shape = tuple(int(n) for n in node["shape"])
    names, dtype = node.get("names"), str(node["dtype"])
    if dtype in ("video", "image") and len(shape) == 3 and _channels_first(shape, names):
        shape = (shape[1], shape[2], shape[0])
    info = {**(node.get("video_info") or {}), **(node.get("info") or {})}
    return Feature(dtype, shape, info=info, **more)


def _channels_first(shape: tuple[int, ...], names: Any) -> bool:
    """Return whether an image's shape is channels-first, by its axis names if it has them."""
    if isinstance(names, list) and len(names) == 3:
        return str(names[0]).startswith("channel")
    return shape[0] in (1, 3) and shape[2] not in (1, 3)


def _episodes_v3(root: Path) -> list[dict[str, Any]]:
    paths = sorted((root / "meta" / "episodes").glob("*/*.parquet"))
    if not paths:
        raise DataError(f"{root / 'meta' / 'episodes'}: no parquet file of episodes")
    rows: list[dict[str, Any]] = []
    for path in paths:
        table = parquet.read_table(path, without="stats/")
        for name in ("episode_index", "length", "data/chunk_index", "data/file_index"):
            _need(table.column_names, name, path)
        rows += table.to_pylist()
    return sorted(rows, key=lambda r: r["episode_index"])


def _need(names: Iterable[str], name: str, path: Path) -> None:
    if name not in names:
        raise DataError(f"{path}: the column {name!r} is missing")


def _global_stats(root: Path) -> dict[str, dict[str, Array]]:
    path = root / "meta" / "stats.json"
    found = read_json(path) if path.is_file() else {}
    return {k: arrays_of(v) for k, v in found.items()}


def arrays_of(stats: Mapping[str, Any]) -> dict[str, Array]:
    """Return one feature's statistics as arrays."""
    return {name: np.asarray(value, np.float64) for name, value in stats.items()}


def _read_v2(listing: Listing) -> None:
    meta = listing.root / "meta"
    listing.episodes = sorted(
        _jsonl(meta / "episodes.jsonl", "episode_index", "length"), key=lambda r: r["episode_index"]
    )
    named = {r["task_index"]: r["task"] for r in _jsonl(meta / "tasks.jsonl", "task_index", "task")}
    listing.tasks = parquet.tasks_by_number(named)
    if listing.version == "v2.0":
        listing.stored = _global_stats(listing.root)
    elif (meta / "episodes_stats.jsonl").is_file():
        listing.stored = aggregate(list(episode_statistics(listing.root).values()))


def _jsonl(path: Path, *keys: str) -> list[dict[str, Any]]:
    if not path.is_file():
        raise DataError(f"{path} does not exist")
    lines = read_jsonl(path, lambda record: all(k in record for k in keys))
    if lines.damaged:
        raise DataError(lines.told(path)[0].replace("skipped", "in it"))
    return lines.records


def episode_statistics(root: Path) -> dict[int, dict[str, dict[str, Array]]]:
    """Return each episode's own statistics, by feature and name."""
    out: dict[int, dict[str, dict[str, Array]]] = {}
    meta = root / "meta"
    if (meta / "episodes_stats.jsonl").is_file():
        for row in _jsonl(meta / "episodes_stats.jsonl", "episode_index", "stats"):
            stats = {k: arrays_of(v) for k, v in row["stats"].items()}
            out[int(row["episode_index"])] = stats
        return out
    for path in sorted((meta / "episodes").glob("*/*.parquet")):
        for row in parquet.read_table(path).to_pylist():
            stats = out.setdefault(int(row["episode_index"]), {})
            for key, value in row.items():
                if key.startswith("stats/"):
                    name, _, stat = key.removeprefix("stats/").rpartition("/")
                    stats.setdefault(name, {})[stat] = np.asarray(value, np.float64)
    return out


# -- frames ---------------------------------------------------------------------------------------


def _read_rows(listing: Listing) -> tuple[Any, list[dict[str, Any]], Broken]:
    """Return the frames of all episodes that are whole, those episodes, and what is broken."""
    tables: dict[Path, Any] = {}
    good: list[dict[str, Any]] = []
    parts: list[Any] = []
    broken: Broken = {}
    for row in listing.episodes:
        try:
            path = listing.data_file(row)
            if path not in tables:
                tables[path] = _read_file(path)
            parts.append(_frames_of(tables[path], row, path))
            good.append(row)
        except DataError as error:
            broken[int(row["episode_index"])] = str(error)
    if not good:
        raise DataError(f"{listing.root}: no intact episode: {next(iter(broken.values()))}")
    return parquet.join_tables(parts), good, broken


@dataclass(frozen=True)
class _File:
    """A file of frames, where each episode is in it, and what is wrong with it."""

    table: Any
    episode: Array
    frame: Array
    fault: str = ""


def _read_file(path: Path) -> _File:
    try:
        table, fault = parquet.read_whole_groups(path)
        episode = parquet.integers(table, "episode_index", path)
        return _File(table, episode, parquet.integers(table, "frame_index", path), fault)
    except DataError as error:
        return _File(None, np.zeros(0), np.zeros(0), str(error))


def _frames_of(file: _File, row: Mapping[str, Any], path: Path) -> Any:
    """Return an episode's rows in the order of its frames."""
    if file.table is None:
        raise DataError(file.fault)
    rows = np.flatnonzero(file.episode == int(row["episode_index"]))
    if len(rows) != int(row["length"]):
        text = f"{path}: it has {len(rows)} of the episode's {row['length']} frames"
        raise DataError(f"{text} ({file.fault})" if file.fault else text)
    if not np.array_equal(np.sort(file.frame[rows]), np.arange(len(rows))):
        raise DataError(f"{path}: frames of the episode are missing or duplicated")
    rows = rows[np.argsort(file.frame[rows])]
    if np.array_equal(rows, np.arange(rows[0], rows[0] + len(rows))):
        return file.table.slice(rows[0], len(rows))
    return file.table.take(rows)


def _camera(
    listing: Listing, data: Dataset, table: Any, good: list[dict[str, Any]], key: str
) -> Camera:
    feature, episode = listing.features[key], data.columns["episode_index"]
    if len(feature.shape) != 3:
        raise DataError(f"{listing.root}: the camera {key!r} has the shape {list(feature.shape)}")
    height, width, channels = feature.shape
    if feature.dtype == "image":
        if key not in table.column_names:
            raise DataError(f"{listing.root}: the camera {key!r} is missing from its data")
        cells = table.column(key).combine_chunks()
        camera = parquet.EmbeddedCamera(key, (height, width, channels), cells, episode)
        camera.root = listing.root
        return camera
    if feature.info.get("video.is_depth_map") or feature.info.get("is_depth_map"):
        return DepthCamera(key, (height, width, channels))
    if not listing.info.get("video_path"):
        raise DataError(f"{listing.root / INFO}: video_path is missing, but {key!r} is a video")
    clips = _clips(listing, data, good, key)
    return VideoCamera(key, (height, width, 3), clips)


@dataclass(frozen=True)
class DepthCamera:
    """A depth video: it can be left aside, not read."""

    key: str
    shape: tuple[int, int, int]

    def read(self, frames: Array) -> Array:
        """Refuse."""
        raise DataError(
            f"{self.key!r} is a depth map, which is not supported: select the other observations "
            f"with keys"
        )

    def in_order(self, put: Callable[[Array, Array], None]) -> Broken:
        """Refuse."""
        self.read(np.zeros(0))
        return {}


def _clips(listing: Listing, data: Dataset, good: list[dict[str, Any]], key: str) -> Clips:
    """Return file and time of every row; episodes of v3.0 follow each other in a file."""
    if listing.version == "v3.0":
        for name in ("chunk_index", "file_index", "from_timestamp"):
            _need(good[0], f"videos/{key}/{name}", listing.root / "meta" / "episodes")
    files = [listing.video_file(row, key) for row in good]
    numbers = {path: i for i, path in enumerate(dict.fromkeys(files))}
    lengths = [e.length for e in data.episodes]
    starts = [float(row.get(f"videos/{key}/from_timestamp", 0.0)) for row in good]
    file = np.repeat([numbers[p] for p in files], lengths)
    time = np.repeat(starts, lengths) + data.columns["timestamp"].astype(np.float64)
    return Clips(list(numbers), file, time, data.columns["episode_index"], listing.fps)


__all__ = ["episode_statistics", "is_lerobot", "read_lerobot"]
