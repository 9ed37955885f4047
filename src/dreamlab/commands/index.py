"""`dreamlab index`: update the run index."""

from __future__ import annotations

from pathlib import Path

import click

from dreamlab.commands.arguments import RunFolder, argument, as_json, verb
from dreamlab.commands.catalogue import finds_runs, read_runs
from dreamlab.commands.printing import json_text, warn
from dreamlab.core.errors import LabError
from dreamlab.core.text import print
from dreamlab.runs import index as indexed
from dreamlab.runs.find import ROOT
from dreamlab.runs.query import NothingFoundError


@verb(
    "index",
    "dreamlab index",
    "dreamlab index /data/runs --rebuild",
)
@argument(
    "root", f"a folder of runs; default: {ROOT}",
    required=False, type=RunFolder(), default=ROOT, metavar="[ROOT]",
)  # fmt: skip
@click.option("--rebuild", is_flag=True, help="Rebuild the index from scratch.")
@as_json
@finds_runs
def command(root: Path, rebuild: bool, as_json: bool) -> int:
    """Update or rebuild the index of a folder of runs.

    The index only speeds up `dreamlab list`: run directories are authoritative, and it can be
    deleted.
    """
    if not root.is_dir():
        raise NothingFoundError(f"{root}: no such folder")
    if rebuild and not indexed.remove(root):
        raise LabError(
            f"{root / indexed.FILE} cannot be removed: it is in use, read-only, or not a run index"
        )
    listing = read_runs(root, make=True)
    warn(listing.notes)
    found = {"root": str(root), "runs": len(listing.rows), "read": listing.read}
    if as_json:
        print(json_text(found))
    else:
        print(f"{root}: {found['runs']} runs, {found['read']} updated")
    return 0 if listing.rows else 1
