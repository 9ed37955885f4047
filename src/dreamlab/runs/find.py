"""From what a user types to runs: folders, or folders of runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from dreamlab.core.errors import LabError
from dreamlab.runs.index_file import ROOT as ROOT
from dreamlab.runs.run import Run


def is_run(folder: Path) -> bool:
    """Return whether a folder is a run's: it has a manifest, however corrupted that is."""
    return os.path.lexists(folder / "manifest.json")


def runs_under(root: Path) -> Iterator[Path]:
    """Yield every run directory below `root`, without looking inside of runs."""
    if is_run(root):
        yield root
    elif root.is_dir():
        for folder in sorted(root.iterdir()):
            if folder.is_dir() and not folder.name.startswith("."):
                yield from runs_under(folder)


def find_runs(names: Iterable[str]) -> list[Run]:
    """Return the runs that these names mean: a run directory, or all below another folder."""
    found: dict[Path, Run] = {}
    for name in names:
        below = list(runs_under(Path(name)))
        if not below:
            raise LabError(f"{name}: no runs found")
        found.update({folder: Run(folder) for folder in below})
    return list(found.values())
