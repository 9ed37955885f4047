"""The verbs that make results of runs: compare, export, report."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from dreamlab.commands.arguments import Parser, positive_int
from dreamlab.commands.printing import json_text, warn
from dreamlab.core.errors import LabError
from dreamlab.core.files import write_text
from dreamlab.core.text import print, visible
from dreamlab.results import figures, published
from dreamlab.results.compare import Comparison, remarks
from dreamlab.results.compare import compare as compare_groups
from dreamlab.results.groups import Groups, read_groups
from dreamlab.results.tables import curves_csv, in_format, text


def compare(args: list[str]) -> int:
    """Compare groups of seeds; print statistics, draw figures with --out."""
    parser = _parser("compare")
    parser.add_argument("--out", type=Path, help="folder for figures (PNG and SVG)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--against", metavar="published[:METHOD]", help="draw published curves")
    options = parser.parse_args(args)
    groups, named = _compare(options)
    comparisons = list(named.values())
    curves = _published(options, comparisons)
    said = {"notes": remarks(groups, comparisons), "warnings": _below(options, comparisons)}
    if options.json:
        data = {name: c.data() for name, c in named.items()}
        said["warnings"] += groups.damage
        print(json_text({"metrics": data, **said}))
    else:
        print("\n\n".join(text(c) for c in comparisons))
        lines = [f"{kind[:-1]}: {line}" for kind, own in said.items() for line in own]
        print(*(["", *lines] if lines else []), sep="\n", end="\n" if lines else "")
    for comparison in comparisons if options.out else []:
        drawn = figures.draw_all(comparison, curves if comparison.is_return else None)
        paths = figures.save_all(drawn, options.out, comparison.metric)
        print(*(f"wrote {p}" for p in paths), sep="\n", file=sys.stderr)
    return 0


def export(args: list[str]) -> int:
    """Write a table of groups and metrics: statistic, interval and seeds."""
    parser = _parser("export")
    parser.add_argument("--format", default="markdown", help="latex, csv, markdown or json")
    parser.add_argument("--statistic", default="iqm", help="latex, markdown: iqm, mean or median")
    parser.add_argument("--curves", action="store_true", help="csv: every value of every run")
    parser.add_argument("--out", type=Path, help="a file; without it the table is printed")
    options = parser.parse_args(args)
    groups, named = _compare(options)
    comparisons = list(named.values())
    exported = in_format(comparisons, options.format, options.statistic)
    if options.curves and options.format != "csv":
        raise LabError("--curves: curves are written with --format csv")
    exported = curves_csv(comparisons) if options.curves else exported
    if options.out:
        write_text(options.out, exported + "\n")
        print(f"wrote {options.out}")
    else:
        print(exported)
    for note in remarks(groups, comparisons):
        print(f"note: {note}", file=sys.stderr)
    return 0


def report(args: list[str]) -> int:
    """Write one HTML page about groups of runs."""
    from dreamlab.commands.reproduce import recipe
    from dreamlab.results.html_report import Said, html_page

    parser = _parser("report")
    parser.add_argument("--out", type=Path, default=Path("report.html"))
    parser.add_argument("--title", help="the page's title; otherwise the groups' names")
    parser.add_argument("--against", metavar="published[:METHOD]", help="draw published curves")
    options = parser.parse_args(args)
    groups, named = _compare(options)
    comparisons = list(named.values())
    curves = _published(options, comparisons)
    warnings = [*groups.damage, *_below(options, comparisons)]
    said = Said(remarks(groups, comparisons), warnings)
    title = options.title or _title([g.name for g in groups.groups])
    again = recipe(groups, _typed_again(options))
    page = html_page(title, groups, comparisons, curves, said, (again.lines, again.files))
    write_text(options.out, visible(page))
    print(f"wrote {options.out} ({len(page) / 2**20:.1f} MiB)")
    return 0


def _parser(verb: str) -> Parser:
    """Return the arguments that the three verbs share."""
    about = "GROUP: a run, a folder of runs, or name=folder,folder"
    parser = Parser(prog=f"dreamlab {verb}", epilog=about)
    parser.add_argument("groups", nargs="+", metavar="GROUP")
    parser.add_argument(
        "--metrics", "--metric", default=["return"], type=lambda s: s.split(","), metavar="A,B",
        help="return, loss, or names as in metrics.jsonl",
    )  # fmt: skip
    parser.add_argument(
        "--at", type=positive_int, metavar="FRAMES", help="env frames to compare at"
    )
    parser.add_argument(
        "--normalize", default="auto", metavar="RULE",
        help="how scores of several tasks are put together: auto, none, atari, dmc or minmax",
    )  # fmt: skip
    return parser


def _compare(options: argparse.Namespace) -> tuple[Groups, dict[str, Comparison]]:
    """Return the groups, and a comparison by what the user called its metric."""
    groups = read_groups(options.groups)
    warn(groups.damage)
    found: dict[str, Comparison] = {}
    for name in options.metrics:
        many = compare_groups(groups, name, options.at, options.normalize)
        found |= {c.metric: c for c in many} if len(many) > 1 else {name: many[0]}
    return groups, found


def _title(names: list[str]) -> str:
    """Return a title from groups' names; of many, the first few."""
    shown = names if len(names) < 4 else [*names[:2], f"{len(names) - 2} more"]
    return " and ".join(filter(None, [", ".join(shown[:-1]), shown[-1]]))


def _typed_again(options: argparse.Namespace) -> list[str]:
    """Return the options of a page that its groups are not."""
    asked: dict[str, Any] = {
        "--metrics": ",".join(options.metrics), "--at": options.at, "--against": options.against,
        "--normalize": options.normalize, "--title": options.title,
    }  # fmt: skip
    usual = {"--metrics": "return", "--normalize": "auto"}
    kept = {k: v for k, v in asked.items() if v is not None and v != usual.get(k)}
    return [word for k, v in kept.items() for word in (k, str(v))]


def _published(
    options: argparse.Namespace, comparisons: list[Comparison]
) -> published.Curves | None:
    return published.against(comparisons[0].groups, options.against) if options.against else None


def _below(options: argparse.Namespace, comparisons: list[Comparison]) -> list[str]:
    """Return the warnings about runs that do not keep up with what was published."""
    if options.against is None:
        return []
    returns = [c for c in comparisons if c.is_return]
    if not returns:
        raise LabError("--against: only returns are published; compare --metrics return")
    return [note for c in returns for note in published.below(c, options.against, options.at)]
