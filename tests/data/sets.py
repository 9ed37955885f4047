"""Small data sets for tests: written by us in v3.0, and by hand in v2.0 and v2.1."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dreamlab.data.datasets.lerobot_write import LeRobotWriter, Recording
from dreamlab.data.datasets.statistics import array_statistics
from dreamlab.data.datasets.table import Feature
from dreamlab.data.datasets.video import VideoWriter

LENGTHS = (5, 7, 4)
SIZE = (32, 48)
CAMERA = "observation.images.cam"
FEATURES = {
    "observation.state": Feature("float32", (2,), ["x", "v"]),
    "action": Feature("float32", (1,), low=-2.0, high=2.0),
    "next.reward": Feature("float32", (1,)),
    "next.done": Feature("bool", (1,)),
    "next.success": Feature("bool", (1,)),
}


def columns(episode: int, length: int) -> dict[str, Any]:
    """Return an episode whose every number says which episode and frame it is from."""
    t = np.arange(length, dtype=np.float32)
    return {
        "observation.state": np.stack([100 * episode + t, np.full(length, episode)], 1),
        "action": ((100 * episode + t) / 200)[:, None],
        "next.reward": t + 1,
        "next.done": t == length - 1,
        "next.success": (t == length - 1) & (episode % 2 == 0),
    }


def shade(episode: int, frame: int) -> int:
    return 10 + 60 * episode + 8 * frame


def pictures(episode: int, length: int, size: tuple[int, int] = SIZE) -> np.ndarray:
    """Return gray pictures whose shade says which frame it is."""
    shades = np.array([shade(episode, i) for i in range(length)], np.uint8)
    return np.broadcast_to(shades[:, None, None, None], (length, *size, 3)).copy()


def write_v3(
    folder: Path,
    camera: str | None = None,
    lengths: tuple[int, ...] = LENGTHS,
    without: tuple[str, ...] = (),
    **options: Any,
) -> Path:
    """Write a set in v3.0; `camera` is "video" or "image"."""
    features = {k: f for k, f in FEATURES.items() if k not in without}
    if camera is not None:
        features[CAMERA] = Feature(camera, (*SIZE, 3))
    recording = Recording(10, features, **{"codec": "libx264", **options})
    with LeRobotWriter(folder, recording) as writer:
        for e, length in enumerate(lengths):
            images = {CAMERA: pictures(e, length)} if camera is not None else {}
            writer.add(columns(e, length), images, f"task {e % 2}")
    return folder


def write_v2(folder: Path, version: str = "v2.1", lengths: tuple[int, ...] = LENGTHS) -> Path:
    """Write the same set, with a video, in v2.1 or v2.0: a file for every episode."""
    meta = folder / "meta"
    meta.mkdir(parents=True)
    first, episodes, stats = 0, [], []
    every: dict[str, list[np.ndarray]] = {}
    for e, length in enumerate(lengths):
        values = columns(e, length)
        for k, v in values.items():
            every.setdefault(k, []).append(v)
        stats.append({"episode_index": e, "stats": {k: _plain(v) for k, v in values.items()}})
        episodes.append({"episode_index": e, "tasks": [f"task {e % 2}"], "length": length})
        _write_frames(folder, e, values, first)
        path = folder / "videos" / "chunk-000" / CAMERA / f"episode_{e:06d}.mp4"
        film = VideoWriter(path, 10, SIZE, "libx264")
        for picture in pictures(e, length):
            film.add(picture)
        film.close()
        first += length
    _jsonl(meta / "episodes.jsonl", episodes)
    _jsonl(meta / "tasks.jsonl", [{"task_index": i, "task": f"task {i}"} for i in range(2)])
    if version == "v2.1":
        _jsonl(meta / "episodes_stats.jsonl", stats)
    else:
        whole = {k: _plain(np.concatenate(v)) for k, v in every.items()}
        kept = {k: {n: s[n] for n in ("min", "max", "mean", "std")} for k, s in whole.items()}
        (meta / "stats.json").write_text(json.dumps(kept))
    (meta / "info.json").write_text(json.dumps(_info(version, lengths)))
    return folder


def _plain(values: np.ndarray) -> dict[str, Any]:
    stats = array_statistics(values)
    return {k: stats[k].tolist() for k in ("min", "max", "mean", "std", "count")}


def _write_frames(folder: Path, episode: int, values: dict[str, Any], first: int) -> None:
    length = len(values["action"])
    table = {
        "observation.state": pa.array(list(values["observation.state"])),
        "action": pa.array(list(values["action"])),
        "next.reward": pa.array(values["next.reward"]),
        "next.done": pa.array(values["next.done"]),
        "next.success": pa.array(values["next.success"]),
        "timestamp": pa.array((np.arange(length) / 10).astype(np.float32)),
        "frame_index": pa.array(np.arange(length)),
        "episode_index": pa.array(np.full(length, episode)),
        "index": pa.array(np.arange(first, first + length)),
        "task_index": pa.array(np.full(length, episode % 2)),
    }
    path = folder / "data" / "chunk-000" / f"episode_{episode:06d}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(table), path)


def _jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))


def _info(version: str, lengths: tuple[int, ...]) -> dict[str, Any]:
    features: dict[str, Any] = {
        k: {"dtype": f.dtype, "shape": list(f.shape), "names": f.names} for k, f in FEATURES.items()
    }
    names = ["height", "width", "channels"]
    features[CAMERA] = {"dtype": "video", "shape": [*SIZE, 3], "names": names}
    return {
        "codebase_version": version, "robot_type": "toy", "total_episodes": len(lengths),
        "total_frames": sum(lengths), "total_tasks": 2, "total_videos": len(lengths),
        "total_chunks": 1, "chunks_size": 1000, "fps": 10,
        "splits": {"train": f"0:{len(lengths)}"},
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/"
        "episode_{episode_index:06d}.mp4",
        "features": features,
    }  # fmt: skip
