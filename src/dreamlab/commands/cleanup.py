"""`dreamlab cleanup`: delete checkpoints and buffers of old runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from dreamlab.commands.arguments import NATURAL, RunFolder, argument, as_json, verb
from dreamlab.commands.printing import json_text
from dreamlab.core.errors import LabError
from dreamlab.core.files import disk_errors
from dreamlab.core.text import print
from dreamlab.runs import cleanup as cleaning
from dreamlab.runs.find import ROOT

MIB = 2**20
RECENT = 30
"""Number of newest runs to keep."""
HOURS = {"h": 1, "d": 24, "w": 168}


class Age(click.ParamType):
    """An age in seconds, written 30d, 12h or 2w."""

    name = "age"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        if isinstance(value, float):
            return value
        match = re.fullmatch(r"(\d{1,5})([hdw])", value.strip())
        if match is None:
            self.fail(f"{value!r}: expected a number and h, d or w, such as 30d", param, ctx)
        return int(match[1]) * HOURS[match[2]] * 3600.0


@verb(
    "cleanup",
    "dreamlab cleanup --older-than 30d",
    "dreamlab cleanup experiments --keep-best 3 --keep-recent 0 --yes",
)
@argument(
    "root", f"a folder of runs; default: {ROOT}",
    required=False, type=RunFolder(), default=ROOT, metavar="[ROOT]",
)  # fmt: skip
@click.option("--keep-best", type=NATURAL, default=10, help="Best runs to keep per experiment.")
@click.option(
    "--keep-recent", type=NATURAL,
    help=f"Newest runs to keep.  [default: {RECENT}, or 0 with --older-than]",
)  # fmt: skip
@click.option(
    "--older-than", type=Age(), metavar="AGE",
    help="Only runs last active longer ago than this: 30d, 12h, 2w.",
)  # fmt: skip
@click.option("--yes", is_flag=True, help="Delete; without it, only list.")
@as_json
def command(
    root: Path,
    keep_best: int,
    keep_recent: int | None,
    older_than: float | None,
    yes: bool,
    as_json: bool,
) -> int:
    """List the disk space old runs would free, in MiB; with --yes delete.

    Deletes checkpoints, buffers and videos; keeps configuration, metrics, events and reports. Never
    touches active runs, the best and newest runs, and runs tagged `keep`.
    """
    # an explicit age applies to all runs of that age
    recent = (0 if older_than else RECENT) if keep_recent is None else keep_recent
    with disk_errors(every=True):
        runs = cleaning.survey(root, keep_best, recent, older_than or 0.0)
    if not runs:
        raise LabError(f"{root}: no runs found")
    due = [run for run in runs if run.due]
    for run in due:
        if yes:
            cleaning.clean(run)
        if not as_json:
            print(f"{'cleaned' if yes else 'would clean':12s} {_mib(run.total)}  {run.folder}")
    if as_json:
        print(json_text([_plain(run, cleaned=run.due and yes) for run in runs]))
        return 0
    _sum_up(runs, due)
    if due and not yes:
        print("dry run: nothing was deleted. Add --yes to delete")
    return 0


def _plain(run: cleaning.Candidate, cleaned: bool) -> dict[str, Any]:
    facts = {"folder": str(run.folder), "kept": run.kept, "bytes": run.sizes}
    return {**facts, "due": run.due, "cleaned": cleaned}


def _sum_up(runs: list[cleaning.Candidate], due: list[cleaning.Candidate]) -> None:
    reasons = [run.kept for run in runs if run.kept]
    counted = ", ".join(f"{reasons.count(r)} {r}" for r in sorted(set(reasons)))
    print(f"{len(due)} of {len(runs)} runs to clean" + (f"; kept: {counted}" if counted else ""))
    for kind, size in cleaning.totals(due).items():
        print(f"  {kind:12s} {_mib(size)}")
    print(f"  {'total':12s} {_mib(sum(run.total for run in due))}")


def _mib(size: int) -> str:
    return f"{size / MIB:10.1f} MiB"
