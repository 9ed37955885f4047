"""Every notebook runs from its first cell to its last, and is kept without what it prints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import need

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
SHORT = {"open_loop_dream": 700, "comparing_runs": 2_000}
"""Env frames instead of those of the notebook."""


def read(path: Path) -> Any:
    return need("nbformat").read(path, as_version=4)


def test_there_are_notebooks():
    assert {p.stem for p in NOTEBOOKS} == SHORT.keys()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_it_is_kept_without_outputs(path):
    for cell in read(path).cells:
        assert cell.cell_type == "markdown" or not (cell.outputs or cell.execution_count)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_it_runs(path, tmp_path, monkeypatch):
    nbclient = need("nbclient")
    monkeypatch.delenv("MPLBACKEND", raising=False)  # a notebook has its own
    notebook = read(path)
    setting = notebook.cells[1]
    setting.source, found = re.subn(
        r"^FRAMES = [\d_]+", f"FRAMES = {SHORT[path.stem]}", setting.source, flags=re.MULTILINE
    )
    assert found == 1
    nbclient.NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()  # raises where a cell does
    outputs = [o for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs]
    pictures = [o for o in outputs if "image/png" in o.get("data", {})]
    assert len(pictures) >= 3
    assert list(tmp_path.glob("experiments/*"))
