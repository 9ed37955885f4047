"""`dreamlab compare`: statistics over seeds, intervals and figures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from dreamlab.commands.arguments import Place, as_json, verb
from dreamlab.commands.comparing import Asked, against, compared
from dreamlab.commands.printing import json_text
from dreamlab.core.text import print


@verb(
    "compare",
    "dreamlab compare experiments/ppo experiments/dqn --at 50_000",
    "dreamlab compare ours=a,b theirs=c --metrics return,loss --out figures --against published",
)
@compared
@click.option("--out", type=Place(), help="Folder for figures (PNG and SVG).")
@as_json
@against
def command(out: Path | None, as_json: bool, **asked: Any) -> int:
    """Compare groups of runs: IQM with bootstrap intervals, probability of improvement.

    --out writes figures. A group is a run, a folder of runs, or name=folder,folder.
    """
    from dreamlab.results import figures
    from dreamlab.results.compare import remarks
    from dreamlab.results.tables import text

    wanted = Asked(**asked)
    groups, named = wanted.compare()
    comparisons = list(named.values())
    curves = wanted.published(comparisons)
    said = {"notes": remarks(groups, comparisons), "warnings": wanted.below(comparisons)}
    if as_json:
        data = {name: c.data() for name, c in named.items()}
        said["warnings"] += groups.damage
        print(json_text({"metrics": data, **said}))
    else:
        print("\n\n".join(text(c) for c in comparisons))
        lines = [f"{kind[:-1]}: {line}" for kind, own in said.items() for line in own]
        print(*(["", *lines] if lines else []), sep="\n", end="\n" if lines else "")
    for comparison in comparisons if out else []:
        drawn = figures.draw_all(comparison, curves if comparison.is_return else None)
        assert out is not None
        paths = figures.save_all(drawn, out, comparison.metric)
        print(*(f"wrote {p}" for p in paths), sep="\n", file=sys.stderr)
    return 0
