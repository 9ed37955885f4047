"""Finds out what kind of data set lies somewhere, and reads it."""

from __future__ import annotations

from pathlib import Path

from dreamlab.data.datasets.lerobot import is_lerobot, read_lerobot
from dreamlab.data.datasets.table import DataError, Dataset

FORMATS = "a LeRobot folder (meta/info.json)"


def open_dataset(place: str | Path) -> Dataset:
    """Return the data set of a folder, a file or a Minari id, whatever its format."""
    path = Path(place)
    if is_lerobot(path):
        return read_lerobot(path)
    if not path.exists():
        raise DataError(f"{place}: there is no such data set")
    raise DataError(f"{place} is no data set that is known here: {FORMATS}")
