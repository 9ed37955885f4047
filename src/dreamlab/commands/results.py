"""The verbs that make results of runs: compare, export, report."""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from dreamlab.core.errors import LabError, unknown
from dreamlab.core.files import write_text
from dreamlab.runs import figures
from dreamlab.runs.compare import Comparison, Groups, read_groups, remarks
from dreamlab.runs.compare import compare as compare_groups
from dreamlab.runs.page import html_page, number, text
from dreamlab.runs.stats import Interval


def compare(args: list[str]) -> int:
    """Compare groups of seeds; print statistics, draw figures with --out."""
    parser = _parser("compare", "GROUP: a run, a folder of runs, or name=folder,folder")
    parser.add_argument("--out", type=Path, help="folder for figures (PNG and SVG)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--against", help="published, or published:METHOD")
    options = parser.parse_args(args)
    groups, comparisons = _compare(options)
    published = figures.against(comparisons[0].groups, options.against) if options.against else None
    said = {"notes": remarks(groups, comparisons), "warnings": _below(options.against, comparisons)}
    if options.json:
        named = {name: c.data() for name, c in zip(options.metrics, comparisons, strict=True)}
        print(json.dumps({"metrics": named, **said}, indent=2))
    else:
        print("\n\n".join(text(c) for c in comparisons))
        for kind, lines in said.items():
            print(*(f"{kind[:-1]}: {line}\n" for line in lines), sep="", end="")
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
    exported = in_format(comparisons, options.format, options.curves)
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
    parser = _parser("report", "GROUP: a run, a folder of runs, or name=folder,folder")
    parser.add_argument("--out", type=Path, default=Path("report.html"))
    parser.add_argument("--title", help="the page's title; otherwise the groups' names")
    parser.add_argument("--against", help="published, or published:METHOD")
    options = parser.parse_args(args)
    groups, comparisons = _compare(options)
    published = figures.against(comparisons[0].groups, options.against) if options.against else None
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
    return [note for c in returns for note in figures.below(c, what)]


# -- formats --------------------------------------------------------------------------------------


def mean_rows(comparisons: Sequence[Comparison], join: str) -> list[list[str]]:
    """Return a header and a row per group: seeds, and each metric's mean `join` its interval."""
    rows = [["group", "seeds", *(c.metric for c in comparisons)]]
    for group in comparisons[0].groups:
        cells = [_mean(c.summaries[group.name]["mean"], join) for c in comparisons]
        rows.append([group.name, group.seeds(), *cells])
    return rows


def _mean(interval: Interval, join: str) -> str:
    """Return the mean with half the width of its interval."""
    if not isfinite(interval.low):
        return number(interval.value)
    return f"{number(interval.value)}{join}{number((interval.high - interval.low) / 2)}"


TEX = {c: rf"\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip


def tex(word: str) -> str:
    """Return text that LaTeX prints as it is."""
    return "".join(TEX.get(c, c) for c in word)


def latex(comparisons: Sequence[Comparison]) -> str:
    """Return a booktabs table; `\\usepackage{booktabs}` is all it needs."""
    head, *rows = [[tex(c) for c in row] for row in mean_rows(comparisons, " +- ")]
    lines = [" & ".join(r).replace(" +- ", r" $\pm$ ") + r" \\" for r in (head, *rows)]
    columns = "lr" + "r" * len(comparisons)
    return "\n".join([
        rf"\begin{{tabular}}{{{columns}}}", r"\toprule", lines[0], r"\midrule", *lines[1:],
        r"\bottomrule", r"\end{tabular}",
    ])  # fmt: skip


def markdown(comparisons: Sequence[Comparison]) -> str:
    """Return a table as Markdown."""
    head, *rows = [[c.replace("|", r"\|") for c in r] for r in mean_rows(comparisons, " ± ")]
    marks = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(r) + " |" for r in (head, marks, *rows))


COLUMNS = ("group", "metric", "env_frames", "tasks", "runs", "statistic", "value", "low", "high")


def to_csv(comparisons: Sequence[Comparison]) -> str:
    """Return every statistic of every group, one per line."""
    rows = [
        [g.name, c.metric, c.at, len(g.tasks), len(g.members), name, i.value, i.low, i.high]
        for c in comparisons
        for g in c.groups
        for name, i in c.summaries[g.name].items()
    ]
    return _csv(COLUMNS, rows)


def curves_csv(comparisons: Sequence[Comparison]) -> str:
    """Return every value of every run as it was logged, one per line."""
    rows = [
        [g.name, m.task, m.seed, str(m.run.folder), c.metric, frames, value]
        for c in comparisons
        for g in c.groups
        for m in g.members
        for frames, value in zip(*m.curve(c.metric), strict=True)
    ]
    return _csv(("group", "task", "seed", "run", "metric", "env_frames", "value"), rows)


def _csv(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(["" if c != c else c for c in row] for row in rows)
    return file.getvalue().rstrip("\n")


def to_json(comparisons: Sequence[Comparison]) -> str:
    """Return everything as JSON."""
    return json.dumps([c.data() for c in comparisons], indent=2)


FORMATS: dict[str, Callable[[Sequence[Comparison]], str]] = {
    "latex": latex, "csv": to_csv, "markdown": markdown, "json": to_json,
}  # fmt: skip


def in_format(comparisons: Sequence[Comparison], form: str, curves: bool = False) -> str:
    """Return the table in a format; `curves` asks for what every run logged instead (csv)."""
    if form not in FORMATS:
        raise LabError(unknown("format", form, FORMATS, "--format"))
    if curves and form != "csv":
        raise LabError("--curves: curves are written with --format csv")
    return curves_csv(comparisons) if curves else FORMATS[form](comparisons)
