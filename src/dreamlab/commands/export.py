"""`dreamlab export`: export a table of results."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from dreamlab.commands.arguments import Place, verb
from dreamlab.commands.comparing import Asked, compared
from dreamlab.core.errors import LabError
from dreamlab.core.files import write_text
from dreamlab.core.text import print


@verb(
    "export",
    "dreamlab export experiments/ppo experiments/dqn --format latex --out table.tex",
    "dreamlab export experiments/ppo --format csv --curves > curves.csv",
)
@compared
@click.option("--format", "kind", default="markdown", help="latex, csv, markdown or json.")
@click.option("--statistic", default="iqm", help="latex, markdown: iqm, mean or median.")
@click.option("--curves", is_flag=True, help="csv: all points of all runs.")
@click.option("--out", type=Place(), help="Output file; default: print to stdout.")
def command(kind: str, statistic: str, curves: bool, out: Path | None, **asked: Any) -> int:
    """Export a table of groups and metrics: statistic, interval and number of seeds."""
    from dreamlab.results.compare import remarks
    from dreamlab.results.tables import curves_csv, in_format

    groups, named = Asked(**asked).compare()
    comparisons = list(named.values())
    exported = in_format(comparisons, kind, statistic)
    if curves and kind != "csv":
        raise LabError("--curves requires --format csv")
    exported = curves_csv(comparisons) if curves else exported
    if out:
        write_text(out, exported + "\n")
        print(f"wrote {out}")
    else:
        print(exported)
    for note in remarks(groups, comparisons):
        print(f"note: {note}", file=sys.stderr)
    return 0
