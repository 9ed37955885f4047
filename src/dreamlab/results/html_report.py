"""A comparison as one HTML page that needs no other file and loads nothing."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from dreamlab.core.clock import axis_name
from dreamlab.core.readers import read_text
from dreamlab.results import figures
from dreamlab.results.compare import Comparison
from dreamlab.results.groups import Group, Groups, Member
from dreamlab.results.published import Curves
from dreamlab.results.tables import INTERVALS, normalized, summary, words
from dreamlab.runs.options import differences

FILE_BYTES = 8 * 2**20
"""Larger videos and images are listed instead of embedded."""
PAGE_BYTES = 48 * 2**20
SHOWN_LINES = 6
SHOWN_TASKS = 4
SHOWN_RUNS = 20
"""Longer lists of notes, tasks or runs are collapsed."""
LONG_CHARACTERS = 60
"""Longer cells may wrap."""
SHOWN_CHARACTERS = 20_000
"""Longer text is truncated on the page; the linked file is complete."""
TITLES = {
    "curves": "Learning curves: interquartile mean over seeds",
    "profile": "Performance profile: fraction of runs above a score",
    "improvement": "Probability of improvement",
    "aggregates": "Interquartile mean, mean and median",
}


@dataclass(frozen=True)
class Said:
    """What a reader should know: about the numbers, and about runs that do badly."""

    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()


@dataclass(frozen=True)
class Table:
    """Rows of cells, the first the header; cells that name a group get its color."""

    rows: Sequence[Sequence[str]]
    colors: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Folded:
    """A table, and the words behind which it is folded; it stands open without any."""

    table: Table
    about: str = ""
    is_open: bool = False


@dataclass(frozen=True)
class LongText:
    """A text that a reader may unfold, or the beginning of it."""

    about: str
    text: str

    @property
    def shown(self) -> str:
        cut = self.text[:SHOWN_CHARACTERS]
        more = len(self.text) - len(cut)
        return f"{cut}\n... {more:,} more characters" if more else cut


@dataclass(frozen=True)
class Section:
    """A part of the page: which macro of the template shows it, and what."""

    title: str
    kind: Literal["comparison", "media", "configuration", "commands", "tables"]
    data: Any

    @property
    def anchor(self) -> str:
        """The name by which the page links to it."""
        return re.sub(r"\W+", "-", self.title.lower()).strip("-")


def html_page(
    title: str,
    groups: Groups,
    comparisons: Sequence[Comparison],
    published: Curves | None = None,
    said: Said | None = None,
    again: tuple[Sequence[str], Mapping[str, str]] = ((), {}),
) -> str:
    """Return the page; `again` is what to type to make the runs again, and the files for that."""
    sections = [
        Section(c.metric, "comparison", _comparison(c, published if c.is_return else None))
        for c in comparisons
    ]
    sections += [
        Section("Videos", "media", _media(groups, comparisons[0])),
        Section("Configuration", "configuration", _configuration(groups.groups)),
        Section("Runs", "tables", [_run_table(groups)]),
        Section("Environment", "tables", _machine_tables(groups.groups)),
        Section("Reproduce", "commands", _commands(*again)),
    ]
    said = said or Said()
    return _template().render(
        title=title,
        style=Markup(files("dreamlab.results").joinpath("html_report.css").read_text()),
        what=_what(groups),
        warnings=said.warnings,
        notes=said.notes,
        sections=[s for s in sections if s.data],
        shown_lines=SHOWN_LINES,
        long_characters=LONG_CHARACTERS,
    )


def _template() -> Template:
    """Return the page's template, in which every value is escaped and none may be missing."""
    environment = Environment(
        loader=PackageLoader("dreamlab.results", ""),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    return environment.get_template("html_report.html.j2")


def _what(groups: Groups) -> str:
    """Return a line about all runs: how many, of which tasks, made when."""
    tasks = sorted({m.task for m in groups.members})
    days = sorted({str(m.run.manifest.get("created", ""))[:10] for m in groups.members} - {""})
    when = " to ".join(dict.fromkeys([*days[:1], *days[-1:]]))
    named = ", ".join(tasks) if len(tasks) < 6 else f"{len(tasks)} tasks"
    parts = [_count(len(groups.members), "run"), _count(len(groups.groups), "group"), named, when]
    return " · ".join(filter(None, parts))


def _count(num: int, word: str) -> str:
    return f"{num} {word}" if num == 1 else f"{num} {word}s"


def table(rows: Iterable[Sequence[Any]], colors: Mapping[str, str] | None = None) -> Table:
    """Return rows of anything as a table of texts."""
    return Table([[str(c) for c in row] for row in rows], colors or {})


def swatches(groups: Sequence[Group]) -> dict[str, str]:
    """Return each group's color in the figures; the style knows a lighter one on black."""
    return {g.name: _color(i % len(figures.COLORS)) for i, g in enumerate(groups)}


def _color(index: int) -> str:
    return f"var(--c{index}, {figures.COLORS[index]})"


# -- results --------------------------------------------------------------------------------------


def _comparison(comparison: Comparison, published: Curves | None) -> dict[str, Any]:
    """Return one metric's tables, sentences and images."""
    about = f"At {comparison.at:,} {comparison.axis}; in brackets {INTERVALS}."
    scaled = "".join(f" {line[0].upper()}{line[1:]}." for line in normalized(comparison))
    return {
        "about": about + scaled,
        "tables": _summary(comparison),
        **_verdicts(comparison),
        "figures": _figures(comparison, published),
    }


def _figures(comparison: Comparison, published: Curves | None) -> list[dict[str, Any]]:
    """Return the images that say more than the table does."""
    drawn = figures.draw_all(comparison, published)
    several = len(comparison.tasks) > 1
    kinds = {"curves": "wide" if several else "half", "aggregates": "wide"}
    kinds |= {"profile": "half", "improvement": "half" if several else "alone"}
    if not several and len(comparison.pairs) == 1:
        drawn.pop("improvement")  # the sentence says it
    if all(len(g.members) == 1 for g in comparison.groups):
        drawn = {"curves": drawn["curves"]}  # one number each: the table says them
    return [
        {"kind": kinds[name], "svg": inline_svg(drawn[name], caption), "caption": caption}
        for name, caption in TITLES.items()
        if name in drawn
    ]


def _summary(comparison: Comparison) -> list[Folded]:
    """Return every statistic: of all tasks together first, then of each."""
    head, *rows = summary(comparison)
    colors, num = swatches(comparison.groups), len(comparison.groups)
    if head[0] != "task":
        return [Folded(table([head, *rows], colors))]
    each = table([head, *rows[:-num]], colors)
    tasks = f"By task ({len(comparison.tasks)})" if len(comparison.tasks) > 1 else "Raw scores"
    shown = len(comparison.tasks) <= SHOWN_TASKS
    return [Folded(table([head, *rows[-num:]], colors)), Folded(each, tasks, shown)]


def _verdicts(comparison: Comparison) -> dict[str, Any]:
    """Return what may be said of each pair of groups: a box for one, a table for several."""
    pairs = comparison.pairs
    one = None
    if len(pairs) == 1:
        p = pairs[0]
        one = {"text": p.verdict, "odds": f"P({p.a} > {p.b}) = {words(p.probability)}"}
    rows = [[p.a, p.b, words(p.probability), p.verdict] for p in pairs]
    head = ["a", "b", "P(a > b)", "verdict"]
    every = table([head, *rows], swatches(comparison.groups)) if len(rows) > 1 else None
    return {"verdict": one, "verdicts": every}


def inline_svg(figure: Any, label: str) -> Markup:
    """Return a figure as SVG that stands inside a page and takes its color for lines and text."""
    svg = figures.render(figure, "svg").decode()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg).replace("xlink:href", "href")
    svg = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", svg)  # the same in every figure, never referred to
    width = f"max-width:{figure.get_figwidth():.3g}in"  # no larger than it was drawn
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{escape(label)}" style="{width}"', 1)
    for i, color in enumerate(figures.COLORS):
        svg = svg.replace(color.lower(), _color(i))
    return Markup(svg.replace("#000000", "currentColor").strip())  # matplotlib escapes its texts


# -- media ----------------------------------------------------------------------------------------


def typical(group: Group, comparison: Comparison) -> list[Member]:
    """Return of each task the run with something to see whose score is nearest to the median."""
    found: list[Member] = []
    for task, scores in comparison.scores(group).items():
        nearest = np.argsort(np.abs(scores - np.median(scores)), kind="stable")
        members = [group.tasks[task][i] for i in nearest]
        found += [m for m in members if newest_media(m.run.folder)][:1]
    return found


def newest_media(folder: Path) -> list[Path]:
    """Return a run's newest video or image of each kind; names end in the frames so far."""
    newest: dict[str, Path] = {}
    kinds = (("videos", "mp4"), ("videos", "png"), ("report", "mp4"), ("report", "png"))
    for sub, ending in kinds:
        for path in sorted(p for p in (folder / sub).glob(f"*.{ending}") if p.is_file()):
            kind = re.sub(r"_\d+(?=$|\.frames$)", "", path.stem)
            newest[f"{sub}/{kind}.{ending}"] = path
    return [p for p in newest.values() if p.name != "learning_curve.png"]


def _media(groups: Groups, comparison: Comparison) -> list[dict[str, Any]]:
    """Return videos and images of the typical run of each group, as far as they fit."""
    shown: list[dict[str, Any]] = []
    room = PAGE_BYTES
    chosen = [(g, m) for g in groups.groups for m in typical(g, comparison)]
    for group, member in sorted(chosen, key=lambda c: c[1].task):  # groups beside each other
        about = f"{group.name}, {member.task}, seed {member.seed}"
        for path in newest_media(member.run.folder):
            size = path.stat().st_size
            fits = size <= min(FILE_BYTES, room)
            room -= size if fits else 0
            shown.append({"about": about, "is_video": path.suffix == ".mp4", **_file(path, fits)})
    return shown


def _file(path: Path, fits: bool) -> dict[str, str]:
    """Return a file's name and content, or only the name where there is no room for more."""
    if fits:
        return {"name": path.name, "data": base64.b64encode(path.read_bytes()).decode()}
    size = path.stat().st_size / 2**20
    return {"name": f"{path}: {size:.1f} MiB, too large for this page", "data": ""}


# -- what was run ---------------------------------------------------------------------------------


def _configuration(groups: Sequence[Group]) -> dict[str, Any]:
    """Return the options that are not the same in all groups, and below every option of each."""
    rows = differences([_shared([m.own for m in g.members]) for g in groups])
    head = ["option", *(g.name for g in groups)]
    texts: list[LongText] = []
    for group in groups:
        first = group.members[0]
        about = f"All options of {group.name} ({first.task}, seed {first.seed})"
        texts.append(LongText(about, read_text(first.run.config_path)))
    found = table([head, *([k, *v] for k, v in rows.items())]) if rows else None
    return {"differences": found, "several": len(groups) > 1, "texts": texts}


def _shared(configs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one value per option; several where the members of a group differ."""
    keys = {k for c in configs for k in c}
    return {k: _joined(c.get(k, "-") for c in configs) for k in keys}


def _joined(values: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(str(v) for v in values))


def _run_table(groups: Groups) -> Folded:
    rows = [["group", "task", "seed", "clock", "status", "created (UTC)", "folder"]]
    for group in groups.groups:
        for m in group.members:
            status = str(m.run.manifest.get("status", "-"))
            when = str(m.run.manifest.get("created", "-"))[:16].replace("T", " ")
            about = [f"{m.frames:,} {axis_name(m.unit)}", status, when, str(m.run.folder)]
            rows.append([group.name, m.task, str(m.seed), *about])
    many = len(groups.members) > SHOWN_RUNS
    about = f"All {len(groups.members)} runs" if many else ""
    return Folded(table(rows, swatches(groups.groups)), about)


def machine(member: Member) -> dict[str, str]:
    """Return versions, hardware and code of a run."""
    manifest = member.run.manifest
    git, hardware = manifest.get("git") or {}, manifest.get("hardware") or {}
    changed = f"{len(git.get('diff', '').splitlines())} lines of diff"
    found = {
        "commit": str(git.get("commit") or "unknown")[:12],
        "uncommitted changes": changed if git.get("dirty") else "none",
    }
    found |= {k: _joined(v) or "none" if isinstance(v, list) else v for k, v in hardware.items()}
    return {k: str(v) for k, v in {**found, **(manifest.get("versions") or {})}.items()}


def _machine_tables(groups: Sequence[Group]) -> list[Folded]:
    """Return what the runs were made with: what is the same for all, then what is not."""
    columns = [_shared([machine(m) for m in g.members]) for g in groups]
    order = list(dict.fromkeys(k for g in groups for m in g.members for k in machine(m)))
    rows = {k: [c.get(k, "-") for c in columns] for k in order}
    same = {k: row[0] for k, row in rows.items() if len(set(row)) == 1}
    head = "all groups" if len(groups) > 1 else groups[0].name
    tables = [Folded(table([["", head], *same.items()]))] if same else []
    if other := [[k, *row] for k, row in rows.items() if k not in same]:
        tables.append(Folded(table([["", *(g.name for g in groups)], *other], swatches(groups))))
    return tables


def _commands(lines: Sequence[str], attached: Mapping[str, str]) -> dict[str, Any]:
    """Return what to type, the files for it to save first, and what is in them."""
    if not lines:
        return {}
    found = [
        {
            "name": name,
            "data": base64.b64encode(text.encode()).decode(),
            "text": LongText(f"Show {name}", text),
        }
        for name, text in attached.items()
    ]
    return {"lines": lines, "files": found}
