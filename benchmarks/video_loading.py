"""Frames a second out of a video data set: ours decoded, ours kept, and LeRobot's loader.

The set is written by us, as LeRobot does (AV1, a keyframe every second frame); all read shuffled
batches of single frames in one process, one after the other, in rounds. Run it with

    python benchmarks/video_loading.py --peer-python /path/with/lerobot/bin/python --record

`--peer-python` is a Python that has the lerobot package; without it, ours are measured alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from dreamlab.core.config import load
from dreamlab.data.dataset_source import DatasetConfig, DatasetSource
from dreamlab.data.datasets.frames import FOLDER
from dreamlab.data.datasets.lerobot_write import LeRobotWriter, Recording
from dreamlab.data.datasets.opening import open_dataset
from dreamlab.data.datasets.table import Feature
from dreamlab.data.source import BufferContext

PEER = Path(__file__).parents[1] / "scripts" / "lerobot_peer.py"
RESULTS = Path(__file__).parent / "results" / "video_loading.md"
CAMERA = "observation.images.cam"
SIZES = (96, 240)


def write_set(folder: Path, size: int, episodes: int, length: int) -> Path:
    """Write a set of a square that moves over noise, so that the encoder has work to do."""
    features = {
        "observation.state": Feature("float32", (2,)), "action": Feature("float32", (2,)),
        CAMERA: Feature("video", (size, size, 3)),
    }  # fmt: skip
    rng = np.random.default_rng(0)
    ground = rng.integers(0, 80, (size, size, 3), dtype=np.uint8)
    with LeRobotWriter(folder, Recording(10, features)) as writer:
        for _ in range(episodes):
            place = rng.integers(0, size - size // 4, 2)
            path = np.clip(place + np.cumsum(rng.integers(-3, 4, (length, 2)), 0), 0, size * 3 // 4)
            pictures = np.repeat(ground[None], length, 0)
            for picture, (y, x) in zip(pictures, path, strict=True):
                picture[y : y + size // 4, x : x + size // 4] = 200
            state = path.astype(np.float32)
            writer.add({"observation.state": state, "action": state}, {CAMERA: pictures}, "move")
    return folder


def sampled(folder: Path, batch: int, batches: int, cache_bytes: int) -> float:
    """Return frames a second of shuffled batches; without a cache, each is decoded when drawn."""
    os.environ[FOLDER] = str(folder.parent / f"cache_{bool(cache_bytes)}")
    options = {"path": str(folder), "batch": batch, "pad": "edge", "cache_bytes": cache_bytes}
    config = load(DatasetConfig, options, "demos")
    made = DatasetSource(config, BufferContext(DatasetSource.spec_of(config), 1))
    made.sample()
    start = time.perf_counter()
    for _ in range(batches):
        made.sample()
    return batch * batches / (time.perf_counter() - start)


def decoded_once(folder: Path) -> float:
    """Return frames a second of the one pass that fills the cache."""
    data = open_dataset(folder)
    kept = np.zeros((data.num_rows, *data.camera(CAMERA).shape), np.uint8)

    def put(rows: Any, pictures: Any) -> None:
        kept[rows] = pictures

    start = time.perf_counter()
    assert not data.camera(CAMERA).in_order(put)
    return data.num_rows / (time.perf_counter() - start)


def peer_speed(python: str, folder: Path, batch: int, batches: int) -> float:
    """Return frames a second of LeRobot's own data set behind torch's loader, in its process."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    env |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder.parent / "hf")}
    words = [python, str(PEER), "speed", str(folder), str(batches), str(batch)]
    done = subprocess.run(words, check=True, env=env, capture_output=True, text=True)
    return float(json.loads(done.stdout.splitlines()[-1])["frames_per_s"])


def measure(size: int, options: argparse.Namespace) -> dict[str, list[float]]:
    """Return frames a second of every way, one value a round."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_set(Path(scratch) / "set", size, options.episodes, options.length)
        for _ in range(options.rounds):
            ways = {
                "ours, decoded in order (fills the cache once)": lambda: decoded_once(folder),
                "ours, from the cache": lambda: sampled(
                    folder, options.batch, 10 * options.batches, 2**40
                ),
                "ours, sought and decoded": lambda: sampled(
                    folder, options.batch, options.batches, 0
                ),
            }
            if options.peer_python:
                ways["LeRobot, PyAV backend"] = lambda: peer_speed(
                    options.peer_python, folder, options.batch, options.batches
                )
            for name, way in ways.items():
                found.setdefault(name, []).append(way())
    return found


def table(found: dict[int, dict[str, list[float]]], options: argparse.Namespace) -> str:
    """Return the medians as Markdown."""
    lines = [
        "# Frames a second out of videos",
        "",
        f"Medians of {options.rounds} rounds, shuffled batches of {options.batch}, one process, "
        f"{options.episodes} episodes of {options.length} frames, AV1; "
        f"{os.cpu_count()} CPUs, Python {platform.python_version()}. Made by "
        "`python benchmarks/video_loading.py --peer-python PYTHON --record`.",
        "",
        "| | " + " | ".join(f"{s} x {s}" for s in found) + " |",
        "|---|" + "---:|" * len(found),
    ]
    for name in next(iter(found.values())):
        cells = [f"{statistics.median(f[name]):,.0f}" for f in found.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "Other work ran on the machine meanwhile; the ways were measured in turns. LeRobot is "
        "0.4.4 with its backend `pyav`, torchvision's reader being the stand-in of "
        "`scripts/lerobot_peer.py` where torchvision is missing; torchcodec was not installable "
        "beside this torch.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", default="", help="a Python that has lerobot")
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--length", type=int, default=100)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--record", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    text = table({size: measure(size, options) for size in SIZES}, options)
    print(text)
    if options.record:
        RESULTS.write_text(text)


if __name__ == "__main__":
    main()
