"""Rows of an earlier record that were not measured again stay in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def with_earlier(path: Path, rows: list[dict[str, Any]], names: Sequence[str]) -> list[Any]:
    """Return the rows of a file, those replaced that these measured anew, then what is new.

    `names` are the entries by which rows are known.
    """
    known = lambda row: tuple(row.get(name) for name in names)  # noqa: E731
    new = {known(row): row for row in rows}
    earlier = json.loads(path.read_text()) if path.exists() else []
    return [new.pop(known(row), row) for row in earlier] + list(new.values())
