"""`dreamlab data convert`: convert a dataset to another format."""

from __future__ import annotations

from pathlib import Path

import click

from dreamlab.commands.arguments import Place, argument, verb
from dreamlab.commands.printing import warn
from dreamlab.core.errors import LabError
from dreamlab.core.files import disk_errors
from dreamlab.core.text import one_line, print

FORMATS = ("lerobot", "robomimic", "d4rl")
CODECS = ("libsvtav1", "libx264")


@verb(
    "convert",
    "dreamlab data convert data/old data/new  # LeRobot v2.1 to v3.0",
    "dreamlab data convert experiments/first data/first",
    "dreamlab data convert data/pusht pusht.hdf5  # robomimic",
    "dreamlab data convert data/hopper hopper.hdf5 --to d4rl",
)
@argument("source", "a dataset of any format, or a run directory", metavar="SET")
@argument("target", "path of the new dataset", type=Place(), metavar="TARGET")
@click.option(
    "--to",
    type=click.Choice(FORMATS),
    help="Output format. Default: robomimic if TARGET ends with .hdf5 or .h5, else lerobot.",
)
@click.option("--codec", type=click.Choice(CODECS), default="libsvtav1", help="Video codec.")
@click.option("--skip-damaged", is_flag=True, help="Skip corrupted episodes, and report them.")
def convert(source: str, target: Path, to: str | None, codec: str, skip_damaged: bool) -> int:
    """Convert a dataset to LeRobot v3.0, or to robomimic or D4RL HDF5."""
    from dreamlab.data.datasets.convert import to_lerobot
    from dreamlab.data.datasets.hdf5 import write_d4rl, write_robomimic
    from dreamlab.data.datasets.opening import open_dataset

    to = _format(target, to)
    data = open_dataset(source)
    warn(data.check_whole(data.broken, skip_damaged) + data.check_pictures(skip_damaged))
    with disk_errors("Choose another path for the new dataset"):
        if to == "lerobot":
            to_lerobot(data, target, codec)
        elif target.exists():
            raise LabError(f"{target} already exists: choose a new path for the dataset")
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.with_name(f".{target.name}.tmp")
            try:
                warn((write_robomimic if to == "robomimic" else write_d4rl)(data, temporary))
                temporary.rename(target)
            finally:
                temporary.unlink(missing_ok=True)
    print(one_line(f"{target}: {len(data.episodes)} episodes, {data.num_frames:,} frames"))
    return 0


def _format(target: Path, to: str | None) -> str:
    """Return the format to write: the one requested, or that of the name; raise if they differ."""
    from dreamlab.data.datasets.hdf5 import SUFFIXES

    file = target.suffix in SUFFIXES
    if to is None:
        return "robomimic" if file else "lerobot"
    if file != (to != "lerobot"):
        kind = "is a folder: choose a name without" if file else "is a file: end its name with"
        raise LabError(f"{target}: a {to} dataset {kind} .hdf5 or .h5")
    return to
