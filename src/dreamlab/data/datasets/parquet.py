"""Parquet files of a LeRobot set as arrays: columns, tasks, images inside of columns."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from dreamlab.core.errors import require
from dreamlab.core.types import Array
from dreamlab.data.datasets.table import Broken, DataError, Feature

PNG_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Lossless image format by number of channels."""
INDEX = "__index_level_0__"
"""The name pandas gives to an unnamed index."""


def read_table(path: Path, without: str = "") -> Any:
    """Return a parquet file's table; columns that start with `without` are passed over."""
    pq = require("pyarrow.parquet", "data")
    if not path.is_file():
        raise DataError(f"{path} does not exist")
    try:
        names = pq.read_schema(path).names
        wanted = [n for n in names if not without or not n.startswith(without)]
        return pq.ParquetFile(path).read(columns=wanted)
    except (OSError, ValueError) as error:  # pyarrow's own errors are among these
        raise DataError(f"{path} is corrupted: {' '.join(str(error).split())[:200]}") from None


def read_whole_groups(path: Path) -> tuple[Any, str]:
    """Return the rows of a file that can be read, and what is wrong with the others.

    Episodes are separate row groups in newer files: one that is corrupted takes only itself.
    """
    pq = require("pyarrow.parquet", "data")
    try:
        return read_table(path), ""
    except DataError as error:
        fault = str(error)
        groups: list[Any] = []
        try:
            file = pq.ParquetFile(path)
        except (OSError, ValueError):
            raise error from None
        for number in range(file.num_row_groups):
            with suppress(OSError, ValueError):
                groups.append(file.read_row_group(number))
        if not groups:
            raise
        return join_tables(groups), fault


def join_tables(tables: Sequence[Any]) -> Any:
    """Return tables of the same columns as one."""
    pa = require("pyarrow", "data")
    return pa.concat_tables(
        [t.replace_schema_metadata() for t in tables], promote_options="default"
    )


def column(table: Any, name: str, feature: Feature, where: Path) -> Array:
    """Return a column [n, ...] in the shape that the set gives it."""
    if name not in table.column_names:
        raise DataError(f"{where}: the feature {name!r} is missing from its data")
    values = table.column(name).combine_chunks()
    if feature.dtype == "string":
        return np.array(values.to_pylist(), object)
    while hasattr(values, "flatten") and values.type.num_fields:
        values = values.flatten()
    flat = values.to_numpy(zero_copy_only=False)
    wanted = (table.num_rows, *feature.shape)
    if flat.size != np.prod(wanted):
        raise DataError(
            f"{where}: the feature {name!r} has {flat.size} values in {table.num_rows} frames, "
            f"its shape is {list(feature.shape)}"
        )
    if feature.shape == (1,) and name.startswith("next."):
        wanted = (table.num_rows,)
    return np.ascontiguousarray(flat.reshape(wanted)).astype(feature.dtype, copy=False)


def integers(table: Any, name: str, where: Path) -> Array:
    """Return a column of whole numbers."""
    return column(table, name, Feature("int64", ()), where)


def read_tasks(path: Path) -> list[str]:
    """Return the tasks of v3.0 by number: the text is the table's index, named or not."""
    table = read_table(path)
    texts = [n for n in table.column_names if n != "task_index"]
    if len(texts) != 1 or "task_index" not in table.column_names:
        raise DataError(f"{path}: expected task_index and one column of texts, got {texts}")
    numbers = table.column("task_index").to_pylist()
    return tasks_by_number(dict(zip(numbers, table.column(texts[0]).to_pylist(), strict=True)))


def tasks_by_number(named: dict[int, str]) -> list[str]:
    """Return tasks in the order of their numbers; a number that is not there has no text."""
    return [str(named.get(i, "")) for i in range(max(named, default=-1) + 1)]


class EmbeddedCamera:
    """A camera whose images are encoded one by one, in a column of the data."""

    def __init__(self, key: str, shape: tuple[int, int, int], cells: Any, episode: Array) -> None:
        self.key, self.shape, self.cells, self.episode = key, shape, cells, episode
        self.root: Path | None = None
        """Folder of images that are stored by path."""

    def read(self, frames: Array) -> Array:
        """Decode the images of these frames."""
        return np.stack([self._picture(int(i)) for i in frames])

    def in_order(self, put: Callable[[Array, Array], None]) -> Broken:
        """Decode all images, one by one."""
        broken: Broken = {}
        for row in range(len(self.cells)):
            try:
                put(np.array([row]), self._picture(row)[None])
            except DataError as error:
                broken.setdefault(int(self.episode[row]), str(error))
        return broken

    def _picture(self, row: int) -> Array:
        from PIL import Image, UnidentifiedImageError

        cell = self.cells[row].as_py()
        source: Any = cell if isinstance(cell, bytes) else (cell or {}).get("bytes")
        name = None if isinstance(cell, bytes) else (cell or {}).get("path")
        try:
            if source is None and name is None:
                raise ValueError("it is empty")
            beside = (self.root or Path()) / str(name)
            opened = io.BytesIO(source) if source is not None else beside
            picture = np.asarray(Image.open(opened).convert(PNG_MODES.get(self.shape[2], "RGB")))
        except (OSError, ValueError, UnidentifiedImageError) as error:
            raise DataError(f"{self.key}: the image of row {row} is corrupted: {error}") from None
        picture = picture[..., None] if picture.ndim == 2 else picture
        if picture.shape != self.shape:
            raise DataError(f"{self.key}: an image of shape {picture.shape}, not {self.shape}")
        return picture


def encode_png(picture: Array) -> bytes:
    """Return an image as a PNG file."""
    from PIL import Image

    file = io.BytesIO()
    flat = picture[..., 0] if picture.shape[-1] == 1 else picture
    Image.fromarray(flat).save(file, format="PNG")
    return file.getvalue()


def write_cells(values: Mapping[str, Any], features: Mapping[str, Feature]) -> Any:
    """Return a table of an episode's columns."""
    pa = require("pyarrow", "data")
    return pa.table({k: _cells(pa, values[k], f) for k, f in features.items() if k in values})


def _cells(pa: Any, values: Any, feature: Feature) -> Any:
    """Return a column: a number a frame, or lists of fixed size, nested for more axes."""
    if feature.dtype == "image":
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        return pa.array(values, kind)
    if feature.dtype == "string":
        return pa.array(values, pa.string())
    out = pa.array(np.ascontiguousarray(values).reshape(-1))
    for size in reversed(feature.shape if not feature.is_scalar else ()):
        out = pa.FixedSizeListArray.from_arrays(out, size)
    return out
