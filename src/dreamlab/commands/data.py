"""`dreamlab data`: inspect, convert and record datasets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dreamlab.commands.arguments import NATURAL, Verb, argument, as_json, verb
from dreamlab.commands.data_convert import convert
from dreamlab.commands.data_record import record
from dreamlab.commands.data_view import view
from dreamlab.commands.printing import json_text, warn
from dreamlab.core.text import one_line, print

if TYPE_CHECKING:
    from dreamlab.data.datasets.table import Dataset


class DataVerb(Verb, click.Group):
    """A command with subcommands."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(n, (c.help or "").splitlines()[0]) for n, c in self.commands.items()]
        with formatter.section("Verbs"):
            formatter.write_dl(rows)


place = argument(
    "place",
    "a LeRobot folder, an HDF5 file, a run directory, or minari:ID",
    metavar="SET",
)
skip_damaged = click.option(
    "--skip-damaged", is_flag=True, help="Skip corrupted episodes, and report them."
)


@verb(
    "info",
    "dreamlab data info data/pusht",
    "dreamlab data info minari:D4RL/door/human-v2 --json",
)
@place
@as_json
def info(place: str, as_json: bool) -> int:
    """Describe a dataset: frames, episodes, features, tasks, corrupted episodes."""
    from dreamlab.data.datasets.opening import open_dataset

    about = described(open_dataset(place))
    if as_json:
        print(json_text(about))
        return 0
    for name, value in about.items():
        if name not in ("features", "damaged"):
            print(one_line(f"{name:16s} {_shown(value)}"))
    for name, feature in about["features"].items():
        print(one_line(f"  {name:32s} {feature['dtype']:8s} {feature['shape']}"))
    warn(f"episode {k} is corrupted: {v}" for k, v in about["damaged"].items())
    return 0


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def described(data: Dataset) -> dict[str, Any]:
    """Return the description of a dataset as JSON-serializable data."""
    lengths = [e.length for e in data.episodes]
    features = {
        k: {"dtype": f.dtype, "shape": list(f.shape), "names": f.names}
        for k, f in data.features.items()
    }
    about: dict[str, Any] = {
        "place": str(data.place), "format": data.kind, "num_episodes": len(data.episodes),
        "num_frames": data.num_frames,
        "fps": int(data.fps) if float(data.fps).is_integer() else data.fps,
        "episode_length": [min(lengths), sum(lengths) / len(lengths), max(lengths)],
        "tasks": data.tasks, "cameras": list(data.cameras), "fingerprint": data.fingerprint,
    }  # fmt: skip
    about |= _outcomes(data)
    return {**about, "features": features, "damaged": {str(k): v for k, v in data.broken.items()}}


def _outcomes(data: Dataset) -> dict[str, Any]:
    """Return the mean return and the success rate, if the dataset has them."""
    from dreamlab.data.datasets.table import REWARD, SUCCESS

    out: dict[str, Any] = {}
    spans = [slice(e.first, e.end) for e in data.episodes]
    if REWARD in data.columns:
        out["return"] = sum(float(data.columns[REWARD][s].sum()) for s in spans) / len(spans)
    if SUCCESS in data.columns:
        out["success"] = sum(bool(data.columns[SUCCESS][s].any()) for s in spans) / len(spans)
    return out


@verb("sample", "dreamlab data sample data/pusht 0", "dreamlab data sample demos.hdf5 17 --json")
@place
@argument("index", "index of a frame", type=NATURAL, metavar="INDEX")
@as_json
def sample(place: str, index: int, as_json: bool) -> int:
    """Print one frame: every feature as recorded; shape and channel means of images."""
    from dreamlab.data.datasets.opening import open_dataset
    from dreamlab.data.datasets.table import DataError

    data = open_dataset(place)
    if index >= data.num_rows and not data.broken:
        raise DataError(f"{place}: there is no frame {index}: it has {data.num_rows:,} frames")
    frame = one_frame(data, _row(data, index))
    if as_json:
        print(json_text(frame))
    else:
        for name, value in frame.items():
            print(one_line(f"{name:32s} {value}"))
    return 0


def _row(data: Dataset, index: int) -> int:
    """Return the row of a frame by its index in the full dataset."""
    from dreamlab.data.datasets.table import DataError

    if not data.broken:
        return index
    found = (data.columns["index"] == index).nonzero()[0]
    if not len(found):
        number, why = next(iter(data.broken.items()))
        raise DataError(
            f"{data.place}: frame {index} does not exist or belongs to a corrupted episode: "
            f"episode {number}: {why}"
        )
    return int(found[0])


def one_frame(data: Dataset, row: int) -> dict[str, Any]:
    """Return the features of a frame; channel means are in [0, 1]."""
    import numpy as np

    out: dict[str, Any] = {}
    for name in ("index", "episode_index", "frame_index", "timestamp"):
        out[name] = data.columns[name][row].item()
    out["task"] = data.task(row)
    for name in data.features:
        if name in data.cameras:
            picture = data.cameras[name].read(np.array([row]))[0]
            mean = (picture.reshape(-1, picture.shape[2]) / 255.0).mean(0)
            out[name] = {"shape": list(picture.shape), "mean": mean.tolist()}
        elif name not in out:
            value = data.columns[name][row]
            out[name] = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    return out


@verb(
    "stats",
    "dreamlab data stats data/pusht",
    "dreamlab data stats data/pusht --stored --json",
)
@place
@click.option(
    "--stored",
    is_flag=True,
    help="Show the statistics stored in the dataset instead of computing them.",
)
@skip_damaged
@as_json
def stats(place: str, stored: bool, skip_damaged: bool, as_json: bool) -> int:
    """Print normalization statistics: exact, computed once and cached by fingerprint."""
    from dreamlab.data.datasets import statistics
    from dreamlab.data.datasets.opening import open_dataset
    from dreamlab.data.datasets.table import DataError

    data = open_dataset(place)
    warn(data.check_whole(data.broken, skip_damaged))
    warn(data.check_pictures(skip_damaged and not stored))
    found = data.stored if stored else statistics.cached(data)
    if not found:
        raise DataError(f"{place}: no statistics are stored: remove --stored to compute them")
    if as_json:
        print(json_text(statistics.plain(found)))
        return 0
    for name, each in found.items():
        print(one_line(name))
        for stat, values in each.items():
            shown = ", ".join(f"{x:.6g}" for x in values.reshape(-1)[:8])
            more = ", ..." if values.size > 8 else ""
            print(f"  {stat:6s} {shown}{more}")
    return 0


@click.group(
    "data",
    cls=DataVerb,
    examples=(
        "dreamlab data info data/pusht",
        "dreamlab data sample data/pusht 0 --json",
        "dreamlab data record experiments/first data/first --episodes 20",
        "dreamlab data convert demos.hdf5 data/demos",
        "dreamlab data view data/pusht 3 --as video",
    ),
)
def command() -> None:
    """Inspect, convert and record datasets.

    Reads LeRobot v2.0, v2.1 and v3.0, D4RL and robomimic HDF5, Minari, and a run's replay buffer.
    """


for each in (info, sample, stats, view, convert, record):
    command.add_command(each)
