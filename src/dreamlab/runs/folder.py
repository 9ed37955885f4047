"""A folder that a run starts or continues in: what may be there, and what goes if the start fails.

Only what this process made is ever removed, and only by the names that a run gives its files.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dreamlab.core.errors import ConfigError
from dreamlab.runs.run import FolderLock

BEGUN = ("metrics.jsonl", "chain.jsonl", "events.jsonl", "checkpoints", "buffers", "manifest.json")
"""Files created after config.yaml, the manifest first."""
PASSING = re.compile(r"\.lock|\.(config\.yaml|manifest\.json)\.\d+\.tmp")
"""Files that a killed start may leave before config.yaml exists."""
SHOWN = 5


@dataclass
class Claim:
    """A folder in the hands of this process."""

    folder: Path
    new: bool = False
    """The folder was empty: run files in it were created here."""
    kept: bool = False
    """The run has started: nothing is rolled back any more."""

    def keep(self) -> None:
        """Let the folder be what it is now."""
        self.kept = True


@contextmanager
def claimed(folder: Path) -> Iterator[Claim]:
    """Hold a run directory; leave it as it was found unless the claim is kept."""
    check_folder(folder)  # before anything is written into it
    with FolderLock(folder) as lock:
        claim = Claim(folder)
        try:
            check_folder(folder)  # whoever had it until now may have changed it
            claim.new = not (folder / "config.yaml").exists()
            yield claim
        finally:
            if not claim.kept:
                if claim.new:
                    _take_back(folder)
                lock.undo()


def check_folder(folder: Path) -> None:
    """Raise unless a run can start or continue in a folder: it is missing, empty, or a run's."""
    names = _contents(folder)
    lost = [name for name in BEGUN if name in names]
    whole = "config.yaml" in names and ({"manifest.json", "checkpoints"} & {*names})
    if not names or names == ["config.yaml"] or whole:
        return
    if "config.yaml" not in names and {"manifest.json", "metrics.jsonl", "checkpoints"} & {*lost}:
        raise ConfigError(
            f"{folder} has {_listed(lost)}, but no config.yaml, so it cannot be resumed. Nothing "
            f"was changed. Restore it from a backup, or use another run.dir."
        )
    raise ConfigError(
        f"{folder} is not empty and not a run: it contains {_listed(names)}. Nothing was changed. "
        f"Use a new or empty run.dir."
    )


def _contents(folder: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if not PASSING.fullmatch(name))
    except FileNotFoundError:
        return []


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _take_back(folder: Path) -> None:
    """Remove what a start has made in a folder that was empty."""
    for name in (*BEGUN, "config.yaml"):  # at every moment it is a run directory or an empty one
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
