"""Writes a LeRobotDataset v3.0, atomically."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from dreamlab.core.errors import LabError, require
from dreamlab.core.files import write_json
from dreamlab.core.types import Array
from dreamlab.data.datasets.parquet import INDEX, PNG_MODES, encode_png, write_cells
from dreamlab.data.datasets.statistics import (
    IMAGE_PIXELS,
    Stats,
    aggregate,
    array_statistics,
    chosen_frames,
    plain,
)
from dreamlab.data.datasets.table import COUNTERS, DataError, Feature, counter_features, counters
from dreamlab.data.datasets.video import CODECS, Film, VideoCopier, VideoWriter

DATA_MB, VIDEO_MB, CHUNKS_SIZE = 100, 200, 1000
FILE = "chunk-{chunk_index:03d}/file-{file_index:03d}"
DATA_PATH, VIDEO_PATH = f"data/{FILE}.parquet", f"videos/{{video_key}}/{FILE}.mp4"
IMAGE_NAMES = ["height", "width", "channels"]
Pictures = Iterable[Array]


@dataclass(frozen=True)
class Recording:
    """What a set to be written holds, and how fast its frames follow each other."""

    fps: float
    features: dict[str, Feature]
    robot_type: str = "unknown"
    codec: str = "libsvtav1"
    video_mb: float = VIDEO_MB
    data_mb: float = DATA_MB


@dataclass
class _Place:
    """A place in a row of files, `chunks_size` of which make a folder."""

    number: int = 0
    used: float = 0.0

    @property
    def indices(self) -> tuple[int, int]:
        return self.number // CHUNKS_SIZE, self.number % CHUNKS_SIZE

    def path(self, template: str, key: str = "") -> str:
        chunk, file = self.indices
        return template.format(chunk_index=chunk, file_index=file, video_key=key)


@dataclass
class _Reel:
    """The video files of one camera."""

    place: _Place = field(default_factory=_Place)
    writer: VideoWriter | VideoCopier | None = None
    codec: str | None = None
    """Statistics of copied files; None for encoded ones."""

    def end_file(self) -> None:
        """Start another file with what comes next."""
        if self.writer is not None:
            self.writer.close()
            self.writer, self.place = None, _Place(self.place.number + 1)


class LeRobotWriter:
    """Takes episodes one by one; the folder appears when it is closed without an error."""

    def __init__(self, folder: Path, recording: Recording) -> None:
        if folder.exists() and any(folder.iterdir()):
            raise LabError(f"{folder} is not empty: choose a new folder for the dataset")
        require("pyarrow.parquet", "data")
        if recording.codec not in CODECS:
            raise DataError(f"codec {recording.codec!r} is not one of {', '.join(CODECS)}")
        self.folder, self.recording = folder, recording
        self.root = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
        self.features = {k: _checked(k, f) for k, f in recording.features.items()}
        self.features |= counter_features()
        self.tasks: list[str] = []
        self.rows: list[dict[str, Any]] = []
        self.stats: list[Stats] = []
        self.kept: dict[str, list[Array]] = {k: [] for k in self._numeric()}
        self.frames = 0
        self.data, self.data_writer = _Place(), None
        self.reels = {k: _Reel() for k, f in self.features.items() if f.dtype == "video"}

    def __enter__(self) -> LeRobotWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if kind is None:
            self.close()
        else:
            self.abort()

    def abort(self) -> None:
        """Remove the unfinished dataset."""
        self._end_files()
        shutil.rmtree(self.root, ignore_errors=True)

    def _numeric(self) -> list[str]:
        return [k for k, f in self.features.items() if not f.is_image and f.dtype != "string"]

    def add(
        self, columns: Mapping[str, Any], pictures: Mapping[str, Pictures | Film], task: str = ""
    ) -> None:
        """Append an episode: columns [t, ...] by feature, and an image of each camera a frame.

        A video is copied as it is.
        """
        length = len(next(iter(columns.values())))
        values = self._values(columns, length, task)
        row: dict[str, Any] = {
            "episode_index": len(self.rows), "tasks": [task], "length": length,
            "dataset_from_index": self.frames, "dataset_to_index": self.frames + length,
        }  # fmt: skip
        stats = {k: array_statistics(values[k]) for k in self._numeric()}
        for key in (k for k, f in self.features.items() if f.is_image):
            if key not in pictures:
                raise DataError(f"the images of {key!r} are missing from episode {len(self.rows)}")
            given = pictures[key]
            if isinstance(given, Film):
                row |= self._copy(key, given, length)
                stats[key] = _pixel_statistics(list(given.sampled))
                continue
            frames = _Seen(given, length, self.features[key].shape, key)
            if key in self.reels:
                row |= self._film(key, frames, length)
            else:
                values[key] = [{"bytes": encode_png(p), "path": None} for p in frames]
            stats[key] = frames.statistics()
        self._write_rows(values, length)
        chunk, file = self.data.indices
        row |= {"data/chunk_index": chunk, "data/file_index": file}
        self.rows.append(row)
        self.stats.append(stats)
        for name in self.kept:
            self.kept[name].append(np.asarray(values[name]))
        self.frames += length

    def _values(self, columns: Mapping[str, Any], length: int, task: str) -> dict[str, Any]:
        """Return every column of an episode, counters included, in its type and shape."""
        if length == 0:
            raise DataError(f"episode {len(self.rows)} has no frames")
        if task not in self.tasks:
            self.tasks.append(task)
        count = counters([length], self.recording.fps, [self.tasks.index(task)])
        count["episode_index"] += len(self.rows)
        count["index"] += self.frames
        out: dict[str, Any] = {}
        for name, feature in self.features.items():
            if feature.is_image or name in COUNTERS:
                continue
            if name not in columns:
                raise DataError(f"the feature {name!r} is missing from episode {len(self.rows)}")
            if feature.dtype == "string":
                out[name] = list(columns[name])
                continue
            array = np.asarray(columns[name])
            if array.size != length * int(np.prod(feature.shape)):
                raise DataError(
                    f"episode {len(self.rows)}: {name!r} is {list(array.shape)}, expected "
                    f"{[length, *feature.shape]}"
                )
            out[name] = array.reshape(length, *feature.shape).astype(feature.dtype)
        return out | {k: count[k] for k in COUNTERS}

    # -- files ------------------------------------------------------------------------------------

    def _film(self, key: str, frames: Pictures, length: int) -> dict[str, Any]:
        """Encode an episode behind the ones before it; return where in which file it is."""
        reel = self._reel(key)
        if isinstance(reel.writer, VideoCopier):
            reel.end_file()
        if reel.writer is None:
            height, width, _ = self.features[key].shape
            path, r = self.root / reel.place.path(VIDEO_PATH, key), self.recording
            reel.writer = VideoWriter(path, r.fps, (height, width), r.codec)
        writer, first = reel.writer, reel.writer.num_frames
        assert isinstance(writer, VideoWriter)
        for picture in frames:
            writer.add(picture)
        return self._where(key, first, length)

    def _copy(self, key: str, film: Film, length: int) -> dict[str, Any]:
        """Put a whole file behind the ones before it; return where in which file it is."""
        reel = self._reel(key)
        if not isinstance(reel.writer, VideoCopier) or not reel.writer.fits(film.path):
            reel.end_file()
        if reel.writer is None:
            path = self.root / reel.place.path(VIDEO_PATH, key)
            reel.writer = VideoCopier(path, self.recording.fps, film.path)
        writer, first = reel.writer, reel.writer.num_frames
        assert isinstance(writer, VideoCopier)
        reel.codec = writer.codec
        writer.add(film.path)
        return self._where(key, first, length)

    def _reel(self, key: str) -> _Reel:
        """Return a camera's files, with a new one started where the last is large enough."""
        reel = self.reels[key]
        if reel.writer is not None and reel.writer.num_bytes > self.recording.video_mb * 2**20:
            reel.end_file()
        return reel

    def _where(self, key: str, first: int, length: int) -> dict[str, Any]:
        (chunk, file), fps = self.reels[key].place.indices, self.recording.fps
        where = {
            "chunk_index": chunk, "file_index": file,
            "from_timestamp": first / fps, "to_timestamp": (first + length) / fps,
        }  # fmt: skip
        return {f"videos/{key}/{k}": v for k, v in where.items()}

    def _write_rows(self, values: Mapping[str, Any], length: int) -> None:
        """Append an episode's rows as their own group."""
        pq = require("pyarrow.parquet", "data")
        table = write_cells(values, self.features)
        if self.data_writer is not None and self.data.used > self.recording.data_mb * 2**20:
            self.data_writer.close()
            self.data_writer, self.data = None, _Place(self.data.number + 1)
        if self.data_writer is None:
            path = self.root / self.data.path(DATA_PATH)
            path.parent.mkdir(parents=True, exist_ok=True)
            self.data_writer = pq.ParquetWriter(path, table.schema, compression="snappy")
        self.data_writer.write_table(table, row_group_size=length)
        self.data.used += table.nbytes

    def _end_files(self) -> None:
        if self.data_writer is not None:
            self.data_writer.close()
        for reel in self.reels.values():
            if reel.writer is not None:
                reel.writer.close()

    def close(self) -> Path:
        """Write what describes the set, and give the folder its name."""
        self._end_files()
        if not self.rows:
            raise DataError(f"{self.folder}: no episodes were recorded")
        self._write_episodes()
        self._write_tasks()
        exact = {k: array_statistics(np.concatenate(v)) for k, v in self.kept.items()}
        write_json(self.root / "meta" / "stats.json", plain({**aggregate(self.stats), **exact}))
        write_json(self.root / "meta" / "info.json", self._info())
        if self.folder.exists():
            self.folder.rmdir()
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self.root.rename(self.folder)
        return self.folder

    def _info(self) -> dict[str, Any]:
        r = self.recording
        fps = int(r.fps) if float(r.fps).is_integer() else r.fps
        return {
            "codebase_version": "v3.0", "robot_type": r.robot_type,
            "total_episodes": len(self.rows), "total_frames": self.frames,
            "total_tasks": len(self.tasks), "chunks_size": CHUNKS_SIZE,
            "data_files_size_in_mb": DATA_MB, "video_files_size_in_mb": VIDEO_MB, "fps": fps,
            "splits": {"train": f"0:{len(self.rows)}"}, "data_path": DATA_PATH,
            "video_path": VIDEO_PATH if self.reels else None,
            "features": {k: self._described(k, f, fps) for k, f in self.features.items()},
        }  # fmt: skip

    def _described(self, name: str, feature: Feature, fps: float) -> dict[str, Any]:
        out: dict[str, Any] = {"dtype": feature.dtype, "shape": list(feature.shape)}
        out["names"] = IMAGE_NAMES if feature.is_image else feature.names
        for key in ("low", "high", "classes"):
            if (value := getattr(feature, key)) is not None:
                out[key] = list(value) if isinstance(value, tuple) else value
        if feature.dtype == "video":
            height, width, channels = feature.shape
            codec = self.reels[name].codec or CODECS[self.recording.codec][0]
            out["info"] = {
                "video.height": height, "video.width": width,
                "video.codec": codec, "video.pix_fmt": "yuv420p",
                "video.is_depth_map": False, "video.fps": fps, "video.channels": channels,
                "has_audio": False,
            }  # fmt: skip
        return out

    def _write_episodes(self) -> None:
        pa, pq = require("pyarrow", "data"), require("pyarrow.parquet", "data")
        rows: list[dict[str, Any]] = []
        for row, stats in zip(self.rows, self.stats, strict=True):
            flat = {
                f"stats/{name}/{stat}": value.tolist()
                for name, each in stats.items() for stat, value in each.items()
            }  # fmt: skip
            where = {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}
            rows.append({**row, **flat, **where})
        path = self.root / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), path)

    def _write_tasks(self) -> None:
        """Write the tasks as pandas does: the text is the table's index."""
        pa, pq = require("pyarrow", "data"), require("pyarrow.parquet", "data")
        numbers = pa.array(np.arange(len(self.tasks)), pa.int64())
        table = pa.table({"task_index": numbers, INDEX: pa.array(self.tasks, pa.string())})
        pandas = {
            "index_columns": [INDEX], "column_indexes": [],
            "columns": [_pandas("task_index", "task_index", "int64"),
                        _pandas(None, INDEX, "unicode", "object")],
            "creator": {"library": "pyarrow", "version": pa.__version__}, "pandas_version": "2.0.0",
        }  # fmt: skip
        described = table.replace_schema_metadata({"pandas": json.dumps(pandas)})
        pq.write_table(described, self.root / "meta" / "tasks.parquet")


def _pandas(name: str | None, column: str, kind: str, numpy: str | None = None) -> dict[str, Any]:
    numpy = numpy or kind
    return {
        "name": name, "field_name": column, "pandas_type": kind, "numpy_type": numpy,
        "metadata": None,
    }  # fmt: skip


class _Seen:
    """Images that pass once: checked, counted, and some of them kept for statistics."""

    def __init__(self, pictures: Pictures, length: int, shape: tuple[int, ...], key: str) -> None:
        self.pictures, self.length, self.shape, self.key = pictures, length, shape, key
        self.wanted = set(chosen_frames(length).tolist())
        self.kept: list[Array] = []

    def __iter__(self) -> Any:
        number = 0
        for number, picture in enumerate(self.pictures, 1):
            if picture.shape != self.shape or picture.dtype != np.uint8:
                raise DataError(
                    f"{self.key!r}: an image is {picture.dtype}{list(picture.shape)}, expected "
                    f"uint8{list(self.shape)}"
                )
            if number - 1 in self.wanted:
                self.kept.append(picture)
            yield picture
        if number != self.length:
            raise DataError(f"{self.key!r}: {number} images for {self.length} frames")

    def statistics(self) -> dict[str, Array]:
        return _pixel_statistics(self.kept)


def _pixel_statistics(pictures: list[Array]) -> dict[str, Array]:
    """Return statistics [c, 1, 1] in [0, 1] over the pixels of images, thinned out if large."""
    height, width, channels = pictures[0].shape
    thin = max(1, max(height, width) // IMAGE_PIXELS)
    pixels = np.concatenate([p[::thin, ::thin].reshape(-1, channels) for p in pictures]) / 255.0
    stats = array_statistics(pixels)
    out = {k: v.reshape(-1, 1, 1) for k, v in stats.items() if k != "count"}
    return {**out, "count": np.array([len(pictures)])}


def _checked(name: str, feature: Feature) -> Feature:
    """Return a feature if it can be written."""
    if name in COUNTERS:
        raise DataError(f"{name!r} is set automatically and cannot be recorded")
    shape = feature.shape
    if feature.is_image and (len(shape) != 3 or shape[2] not in PNG_MODES):
        raise DataError(f"{name!r}: images are [height, width, 1, 3 or 4], not {list(shape)}")
    if feature.dtype == "video" and (shape[0] % 2 or shape[1] % 2 or shape[2] != 3):
        raise DataError(f"{name!r}: a video needs even sides and 3 channels, not {list(shape)}")
    return feature
