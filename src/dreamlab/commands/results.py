"""The verbs that make results of runs: compare, export, report."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from dreamlab.core.errors import LabError
from dreamlab.core.files import write_text
from dreamlab.runs import tables
from dreamlab.runs.against import against, below
from dreamlab.runs.compare import Comparison, remarks
from dreamlab.runs.compare import compare as compare_groups
from dreamlab.runs.groups import Groups, read_groups


def compare(args: list[str]) -> int:
    """Compare groups of seeds; print statistics, draw figures with --out."""
    from dreamlab.runs import figures

    parser = _parser("compare", "GROUP: a run, a folder of runs, or name=folder,folder")
    parser.add_argument("--out", type=Path, help="folder for figures (PNG and SVG)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--against", help="published, or published:METHOD")
    options = parser.parse_args(args)
    groups, comparisons = _compare(options)
    published = against(comparisons[0].groups, options.against) if options.against else None
    notes = remarks(groups, comparisons) + _below(options.against, comparisons)
    if options.json:
        named = {name: c.data() for name, c in zip(options.metrics, comparisons, strict=True)}
        print(json.dumps({"metrics": named, "notes": notes}, indent=2))
    else:
        print("\n\n".join(tables.text(c) for c in comparisons))
        for note in notes:
            print(f"note: {note}")
    for comparison in comparisons if options.out else []:
        curves = published if comparison.is_return else None
        paths = figures.save_all(
            figures.draw_all(comparison, curves), options.out, comparison.metric
        )
        print(*(f"wrote {p}" for p in paths), sep="\n", file=sys.stderr)
    return 0


def export(args: list[str]) -> int:
    """Write a table of groups and metrics: mean, interval and seeds."""
    parser = _parser("export", "GROUP: a run, a folder of runs, or name=folder,folder")
    parser.add_argument("--format", default="markdown", help="latex, csv, markdown or json")
    parser.add_argument("--curves", action="store_true", help="csv: every value of every run")
    parser.add_argument("--out", type=Path, help="a file; without it the table is printed")
    options = parser.parse_args(args)
    groups, comparisons = _compare(options)
    text = tables.export(comparisons, options.format, options.curves)
    if options.out:
        write_text(options.out, text + "\n")
        print(f"wrote {options.out}")
    else:
        print(text)
    for note in remarks(groups, comparisons):
        print(f"note: {note}", file=sys.stderr)
    return 0


def report(args: list[str]) -> int:
    """Write one HTML page about groups of runs."""
    from dreamlab.runs.page import html_page

    parser = _parser("report", "GROUP: a run, a folder of runs, or name=folder,folder")
    parser.add_argument("--out", type=Path, default=Path("report.html"))
    parser.add_argument("--title", help="the page's title; otherwise the groups' names")
    parser.add_argument("--against", help="published, or published:METHOD")
    options = parser.parse_args(args)
    groups, comparisons = _compare(options)
    published = against(comparisons[0].groups, options.against) if options.against else None
    notes = remarks(groups, comparisons) + _below(options.against, comparisons)
    title = options.title or " and ".join(g.name for g in groups.groups)
    page = html_page(title, groups, comparisons, published, notes)
    write_text(options.out, page)
    print(f"wrote {options.out} ({len(page) / 2**20:.1f} MiB)")
    return 0


def _parser(verb: str, about: str) -> argparse.ArgumentParser:
    """Return the arguments that the three verbs share."""
    parser = argparse.ArgumentParser(prog=f"dreamlab {verb}", epilog=about)
    parser.add_argument("groups", nargs="+", metavar="GROUP")
    parser.add_argument(
        "--metrics", "--metric", default=["return"], type=lambda s: s.split(","), metavar="A,B",
        help="return, loss, or names as in metrics.jsonl",
    )  # fmt: skip
    parser.add_argument("--at", type=_frames, metavar="FRAMES", help="env frames to compare at")
    return parser


def _frames(text: str) -> int:
    """Read a number of frames: 500000, 500_000, 5e5."""
    return int(float(text))


def _compare(options: argparse.Namespace) -> tuple[Groups, list[Comparison]]:
    groups = read_groups(options.groups)
    return groups, [compare_groups(groups, name, options.at) for name in options.metrics]


def _below(what: str | None, comparisons: list[Comparison]) -> list[str]:
    """Return the warnings about runs that do not keep up with what was published."""
    if what is None:
        return []
    returns = [c for c in comparisons if c.is_return]
    if not returns:
        raise LabError("--against: only returns are published; compare --metrics return")
    return [note for c in returns for note in below(c, what)]
