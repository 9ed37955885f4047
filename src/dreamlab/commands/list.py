"""`dreamlab list`: list runs."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from dreamlab.commands.arguments import POSITIVE_INT, RunFolder, argument, as_json, verb
from dreamlab.commands.catalogue import finds_runs, read_runs
from dreamlab.commands.printing import json_text, warn
from dreamlab.core.text import print
from dreamlab.runs import describe
from dreamlab.runs.find import ROOT
from dreamlab.runs.query import COLUMNS, ask, parse_filter


@verb(
    "list",
    "dreamlab list --filter 'return>400' --filter env=CartPole-v1 --sort return --limit 5",
    "dreamlab list experiments /data/runs --filter 'tags~baseline' --json",
)
@argument(
    "roots", f"folders of runs; default: {ROOT}",
    nargs=-1, type=RunFolder(), metavar="[ROOT]...",
)  # fmt: skip
@click.option(
    "--filter",
    "conditions",
    multiple=True,
    metavar="KEY=VALUE",
    help="Operators: = != > >= < <= ~.",
)
@click.option(
    "--sort", default="", show_default=False, metavar="KEY", help="Sort by KEY; numbers descending."
)
@click.option("--reverse", is_flag=True, help="Reverse the order.")
@click.option("--limit", type=POSITIVE_INT, help="Maximum number of runs.")
@as_json
@finds_runs
def command(
    roots: tuple[Path, ...],
    conditions: tuple[str, ...],
    sort: str,
    reverse: bool,
    limit: int | None,
    as_json: bool,
) -> int:
    """List the runs in folders.

    KEY is a column (return, frames, status, env, tags, ...) or a configuration key such as
    workflow.gamma. Exit code 1 if no run matches.
    """
    filters = [parse_filter(f) for f in conditions]
    places = [*roots] or [ROOT]
    answer = ask(places, filters, sort, reverse, read_runs)
    warn(answer.notes)
    rows = answer.rows[:limit]
    if as_json:
        print(json_text([describe.public(r) for r in rows]))
    elif rows:
        keys = [*(f.key for f in filters), sort]
        print(describe.table(rows, [k for k in keys if k in rows[0] and k not in COLUMNS]))
    else:
        where = ", ".join(map(str, places))
        print(f"no run in {where}{' matches these filters' if filters else ''}", file=sys.stderr)
    return 0 if rows else 1
