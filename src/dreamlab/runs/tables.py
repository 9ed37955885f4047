"""Tables of a comparison: for a terminal, a paper, a README, a spreadsheet, a program."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any

from dreamlab.core.errors import LabError, unknown
from dreamlab.runs import stats
from dreamlab.runs.compare import Comparison
from dreamlab.runs.stats import Interval

Rows = list[list[str]]


def number(value: float) -> str:
    """Return four digits, without an exponent where people would write none."""
    return f"{value:,.0f}" if 1_000 <= abs(value) < 1e9 else f"{value:.4g}"


def words(interval: Interval) -> str:
    """Return an interval as `value [low, high]`."""
    if not isfinite(interval.low):
        return f"{number(interval.value)} [-]"
    return f"{number(interval.value)} [{number(interval.low)}, {number(interval.high)}]"


def aligned(rows: Rows) -> str:
    """Return rows as lines with columns under each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows]
    return "\n".join(lines)


def summary_rows(comparison: Comparison) -> Rows:
    """Return a header and a row per group: seeds and every statistic."""
    rows = [["group", "seeds", "IQM", "mean", "median"]]
    for group in comparison.groups:
        found = comparison.summaries[group.name]
        rows.append([group.name, group.seeds(), *(words(found[s]) for s in stats.STATISTICS)])
    return rows


def pair_lines(comparison: Comparison) -> list[str]:
    """Return a sentence per pair of groups."""
    return [f"P({p.a} > {p.b}) = {words(p.probability)}: {p.verdict}" for p in comparison.pairs]


def text(comparison: Comparison) -> str:
    """Return the comparison as a terminal shows it."""
    head = f"{comparison.metric} at {comparison.at:,} env frames, 95 % intervals"
    return "\n".join([head, aligned(summary_rows(comparison)), *pair_lines(comparison)])


# -- export ---------------------------------------------------------------------------------------


def mean_rows(comparisons: Sequence[Comparison], join: str) -> Rows:
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


def export(comparisons: Sequence[Comparison], form: str, curves: bool = False) -> str:
    """Return the table in a format; `curves` asks for what every run logged instead (csv)."""
    if form not in FORMATS:
        raise LabError(unknown("format", form, FORMATS, "--format"))
    if curves and form != "csv":
        raise LabError("--curves: curves are written with --format csv")
    return curves_csv(comparisons) if curves else FORMATS[form](comparisons)
