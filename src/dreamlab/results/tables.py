"""A comparison as text: for a terminal, and as tables for papers and programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor, isfinite, log10
from typing import Any

from dreamlab.core.errors import LabError, unknown
from dreamlab.results import stats
from dreamlab.results.compare import Comparison
from dreamlab.results.groups import Group
from dreamlab.results.normalize import kind_of, told
from dreamlab.results.stats import Interval

NAMES = {"iqm": "IQM", "mean": "mean", "median": "median"}
INTERVALS = "95 % stratified bootstrap intervals"


def numbers(values: Sequence[float]) -> list[str]:
    """Return numbers to the same place, so that the largest has four digits."""
    size = max(map(abs, values))
    if size == 0 or not 1e-4 <= size < 1e9:
        return [f"{v:.4g}" for v in values]
    places = max(0, 3 - floor(log10(size)))
    texts = [f"{v + 0.0:,.{places}f}" for v in values]
    texts = [t.rstrip("0").rstrip(".") if "." in t else t for t in texts]
    return ["0" if t == "-0" else t for t in texts]


def words(interval: Interval) -> str:
    """Return an interval as `value [low, high]`."""
    value, *ends = numbers(_ends(interval))
    return f"{value} [{', '.join(ends) or '-'}]"


def _ends(interval: Interval) -> list[float]:
    known = isfinite(interval.low)
    return [interval.value, interval.low, interval.high] if known else [interval.value]


# -- what the rows are ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A group's statistics on a task, or on all of its tasks."""

    task: str
    """Empty if there is only one task."""
    group: Group
    seeds: str
    found: dict[str, Interval]
    normalization: str = "none"


def rows_of(comparison: Comparison) -> list[Row]:
    """Return the rows of a table: each task in its own unit, then what they are together."""
    c, together = comparison, _together(comparison)
    if not together:
        return [Row("", g, g.seeds(), c.summaries[g.name]) for g in c.groups]
    own = [(t, g) for t in c.tasks for g in c.groups if t in g.tasks]
    rows = [Row(t, g, str(len(g.tasks[t])), c.of_task(g, t)) for t, g in own]
    kind = kind_of(c.scales)
    return rows + [Row(together, g, g.seeds(), c.summaries[g.name], kind) for g in c.groups]


def _together(comparison: Comparison) -> str:
    """Return what the rows over all tasks are called; nothing if there are none."""
    if len(comparison.tasks) == 1:
        return f"{comparison.tasks[0]}, normalized" if comparison.scales else ""
    return f"all tasks, {'normalized' if comparison.scales else 'raw'}"


def cells(rows: Sequence[Row]) -> list[list[str]]:
    """Return the first columns of a table: task, group and seeds; a task is named once."""
    tasks = [r.task if i == 0 or rows[i - 1].task != r.task else "" for i, r in enumerate(rows)]
    named = any(tasks)
    head = ["task"] * named + ["group", "seeds"]
    found = zip(tasks, rows, strict=True)
    return [head, *([task] * named + [row.group.name, row.seeds] for task, row in found)]


def summary(comparison: Comparison) -> list[list[str]]:
    """Return a table with every statistic; the first row is the header."""
    rows = rows_of(comparison)
    head, *first = cells(rows)
    values = [[words(r.found[s]) for s in stats.STATISTICS] for r in rows]
    return [head + [NAMES[s] for s in stats.STATISTICS], *map(list.__add__, first, values)]


# -- a terminal -----------------------------------------------------------------------------------


def aligned(rows: list[list[str]]) -> str:
    """Return rows as lines with columns under each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows]
    return "\n".join(lines)


def pair_lines(comparison: Comparison) -> list[str]:
    """Return a sentence per pair of groups."""
    return [f"P({p.a} > {p.b}) = {words(p.probability)}: {p.verdict}" for p in comparison.pairs]


def normalized(comparison: Comparison) -> list[str]:
    """Return a line that says how scores were normalized, if they were."""
    return [f"normalized: {told(comparison.scales)}"] if comparison.scales else []


def text(comparison: Comparison) -> str:
    """Return the comparison as a terminal shows it."""
    head = f"{comparison.metric} at {comparison.at:,} {comparison.axis}, {INTERVALS}"
    lines = [aligned(summary(comparison)), *normalized(comparison), *pair_lines(comparison)]
    return "\n".join([head, *lines])


# -- formats --------------------------------------------------------------------------------------


def paper_rows(comparisons: Sequence[Comparison]) -> list[list[Any]]:
    """Return a header and rows: task, group, seeds, and of each metric its row."""
    columns = [rows_of(c) for c in comparisons]
    head, *first = cells(columns[0])
    found = [[column[i] for column in columns] for i in range(len(first))]
    return [head + [c.metric for c in comparisons], *map(list.__add__, first, found)]


def about(comparisons: Sequence[Comparison], statistic: str) -> list[str]:
    """Return what a table's numbers are, a line for each metric."""
    return [
        f"{c.metric}: {NAMES[statistic]} with {INTERVALS}, at {c.at:,} {c.axis}"
        + "".join(f"; {line}" for line in normalized(c))
        for c in comparisons
    ]


TEX = {c: rf"\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}",
}  # fmt: skip


def tex(word: str) -> str:
    """Return text that LaTeX prints as it is."""
    return "".join(TEX.get(c, c) for c in word)


def _tex_cell(cell: str | Row, statistic: str) -> str:
    """Return a word, or a row's statistic set as mathematics: a minus is one, a comma no gap."""
    if isinstance(cell, str):
        return tex(cell)
    value, *ends = map(_tex_number, numbers(_ends(cell.found[statistic])))
    return f"${value}$" if not ends else f"${value}\\;[{ends[0]},\\,{ends[1]}]$"


def _tex_number(text: str) -> str:
    digits, _, power = text.replace(",", "{,}").partition("e")
    return rf"{digits}\times10^{{{int(power)}}}" if power else digits


def latex(comparisons: Sequence[Comparison], statistic: str) -> str:
    """Return a booktabs table; `\\usepackage{booktabs}` is all it needs."""
    head, *rows = paper_rows(comparisons)
    names = len(head) - len(comparisons) - 1
    lines: list[str] = []
    for i, row in enumerate(rows):
        if i and names == 2 and row[0]:
            lines.append(r"\midrule")
        lines.append(" & ".join(_tex_cell(c, statistic) for c in row) + r" \\")
    return "\n".join([
        *(f"% {line}" for line in about(comparisons, statistic)),
        rf"\begin{{tabular}}{{{'l' * names}r{'r' * len(comparisons)}}}", r"\toprule",
        " & ".join(map(tex, head)) + r" \\", r"\midrule", *lines, r"\bottomrule", r"\end{tabular}",
    ])  # fmt: skip


def markdown(comparisons: Sequence[Comparison], statistic: str) -> str:
    """Return a table as Markdown, and below it what its numbers are."""
    head, *rows = paper_rows(comparisons)
    names = len(head) - len(comparisons) - 1
    told = [[c if isinstance(c, str) else words(c.found[statistic]) for c in r] for r in rows]
    marks = ["---"] * names + ["---:"] * (len(head) - names)
    lines = [[c.replace("|", r"\|") for c in r] for r in (head, marks, *told)]
    table = ["| " + " | ".join(r) + " |" for r in lines]
    return "\n".join([*table, "", *(f"- {line}" for line in about(comparisons, statistic))])


COLUMNS = (
    *("task", "group", "metric", "at", "unit", "normalization", "tasks", "runs"),
    *("statistic", "value", "low", "high"),
)


def to_csv(comparisons: Sequence[Comparison]) -> str:
    """Return every statistic of every group on every task and on all, one per line."""
    rows: list[list[Any]] = []
    for c in comparisons:
        for row in rows_of(c):
            own = row.group.tasks.get(row.task)
            members = own if own is not None else row.group.members
            task = row.task if own is not None else c.tasks[0] if len(c.tasks) == 1 else "all"
            first = [task, row.group.name, c.metric, c.at, c.unit, row.normalization]
            first += [1 if task != "all" else len(row.group.tasks), len(members)]
            rows += [[*first, s, i.value, i.low, i.high] for s, i in row.found.items()]
    return _csv(COLUMNS, rows)


def curves_csv(comparisons: Sequence[Comparison]) -> str:
    """Return every value of every run as it was logged, one per line."""
    rows = [
        [g.name, m.task, m.seed, str(m.run.folder), c.metric, at, m.unit, value]
        for c in comparisons
        for g in c.groups
        for m in g.members
        for at, value in zip(*m.curve(c.metric), strict=True)
    ]
    return _csv(("group", "task", "seed", "run", "metric", "at", "unit", "value"), rows)


def _csv(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(["" if c != c else c for c in row] for row in rows)
    return file.getvalue().rstrip("\n")


def to_json(comparisons: Sequence[Comparison]) -> str:
    """Return everything as JSON."""
    return json.dumps([c.data() for c in comparisons], indent=2)


FORMATS: dict[str, Callable[[Sequence[Comparison], str], str]] = {
    "latex": latex, "csv": lambda c, _: to_csv(c),
    "markdown": markdown, "json": lambda c, _: to_json(c),
}  # fmt: skip


def in_format(comparisons: Sequence[Comparison], form: str, statistic: str = "iqm") -> str:
    """Return the table in a format; `csv` and `json` hold every statistic."""
    if form not in FORMATS:
        raise LabError(unknown("format", form, FORMATS, "--format"))
    if statistic not in NAMES:
        raise LabError(unknown("statistic", statistic, NAMES, "--statistic"))
    return FORMATS[form](comparisons, statistic)
