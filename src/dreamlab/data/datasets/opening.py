"""Finds out what kind of dataset lies somewhere, and reads it."""

from __future__ import annotations

from pathlib import Path

from dreamlab.data.datasets.hdf5 import is_hdf5, read_hdf5
from dreamlab.data.datasets.lerobot import is_lerobot, read_lerobot
from dreamlab.data.datasets.minari import PREFIX, read_minari
from dreamlab.data.datasets.run import read_run, replay_folder
from dreamlab.data.datasets.table import DataError, Dataset

FORMATS = (
    "a LeRobot folder (meta/info.json), a D4RL or robomimic HDF5 file, a run with a saved replay "
    "buffer, or minari:ID"
)


def open_dataset(place: str | Path) -> Dataset:
    """Return the dataset of a folder, a file or a Minari id, whatever its format."""
    if str(place).startswith(PREFIX):
        return read_minari(str(place).removeprefix(PREFIX))
    path = Path(place)
    if not path.exists():
        raise DataError(f"{place}: no such dataset")
    if is_lerobot(path):
        return read_lerobot(path)
    if is_hdf5(path):
        return read_hdf5(path)
    if path.is_dir() and (folder := replay_folder(path)) is not None:
        return read_run(folder)
    raise DataError(f"{place} is not a supported dataset: expected {FORMATS}")
