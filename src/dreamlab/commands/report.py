"""`dreamlab report`: write an HTML report about groups of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dreamlab.commands.arguments import Place, verb
from dreamlab.commands.comparing import Asked, against, compared
from dreamlab.core.files import write_text
from dreamlab.core.text import print, visible


@verb(
    "report",
    "dreamlab report experiments/ppo experiments/dqn --out ppo_dqn.html",
    "dreamlab report experiments/first --title 'First steps' --against published",
)
@compared
@click.option("--out", type=Place(), default=Path("report.html"), help="Output file.")
@click.option("--title", help="Title of the page; default: the group names.")
@against
def command(out: Path, title: str | None, **asked: Any) -> int:
    """Write a self-contained HTML report about groups of runs.

    Statistics, curves, options, videos, and the commands that reproduce them.
    """
    from dreamlab.commands.reproduce import recipe
    from dreamlab.results.compare import remarks
    from dreamlab.results.html_report import Said, html_page

    wanted = Asked(**asked)
    groups, named = wanted.compare()
    comparisons = list(named.values())
    curves = wanted.published(comparisons)
    said = Said(remarks(groups, comparisons), [*groups.damage, *wanted.below(comparisons)])
    again = recipe(groups, _typed_again(wanted, title))
    heading = title or _title([g.name for g in groups.groups])
    page = html_page(heading, groups, comparisons, curves, said, (again.lines, again.files))
    write_text(out, visible(page))
    print(f"wrote {out} ({len(page) / 2**20:.1f} MiB)")
    return 0


def _title(names: list[str]) -> str:
    """Return a title made of the first group names."""
    shown = names if len(names) < 4 else [*names[:2], f"{len(names) - 2} more"]
    return " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))


def _typed_again(wanted: Asked, title: str | None) -> list[str]:
    """Return the options of a report other than its groups."""
    metrics = ",".join(wanted.metrics) if wanted.metrics else None
    asked: dict[str, Any] = {
        "--metrics": metrics, "--at": wanted.at, "--against": wanted.against,
        "--normalize": wanted.normalize, "--title": title,
    }  # fmt: skip
    usual = {"--normalize": "auto"}
    kept = {k: v for k, v in asked.items() if v is not None and v != usual.get(k)}
    return [word for k, v in kept.items() for word in (k, str(v))]
