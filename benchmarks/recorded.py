"""What benchmarks write beside their numbers, and rows of earlier records that stay."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def with_earlier(path: Path, rows: list[dict[str, Any]], names: Sequence[str]) -> list[Any]:
    """As `replaced`, for the rows of a file, which may not be there yet."""
    return replaced(json.loads(path.read_text()) if path.exists() else [], rows, names)


def replaced(
    earlier: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]], names: Sequence[str]
) -> list[dict[str, Any]]:
    """Return earlier rows, those replaced that were measured anew, then what is new.

    `names` are the entries by which rows are known.
    """
    known = lambda row: tuple(row.get(name) for name in names)  # noqa: E731
    new = {known(row): row for row in rows}
    return [new.pop(known(row), row) for row in earlier] + list(new.values())


def place(device: str) -> dict[str, str]:
    """Return the machine and the code."""
    import torch

    from dreamlab.runs.git_state import git_state

    where = torch.cuda.get_device_name() if device == "cuda" else "a CPU"
    return {
        "place": where,
        "torch": torch.__version__,
        "commit": git_state().get("commit", "")[:10],
    }
