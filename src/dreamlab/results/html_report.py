"""A comparison as one HTML page that needs no other file and loads nothing."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

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


@dataclass
class PageParts:
    """The sections of a page, in order."""

    found: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, title: str, body: str) -> None:
        """Add a section, unless there is nothing in it."""
        if body:
            self.found[title] = f'<section id="{anchor(title)}">\n{body}\n</section>'

    def links(self) -> str:
        """Return links to the sections."""
        return " ".join(f'<a href="#{anchor(t)}">{escape(t)}</a>' for t in self.found)

    def body(self) -> str:
        """Return the sections under their titles."""
        return "\n".join(
            section.replace("\n", f"\n<h2>{escape(title)}</h2>\n", 1)
            for title, section in self.found.items()
        )


def anchor(title: str) -> str:
    """Return the name by which a page links to a section."""
    return re.sub(r"\W+", "-", title.lower()).strip("-")


def html_page(
    title: str,
    groups: Groups,
    comparisons: Sequence[Comparison],
    published: Curves | None = None,
    said: Said | None = None,
    again: tuple[Sequence[str], Mapping[str, str]] = ((), {}),
) -> str:
    """Return the page; `again` is what to type to make the runs anew, and the files for that."""
    parts = PageParts()
    for c in comparisons:
        parts.add(c.metric, _comparison(c, published if c.is_return else None))
    parts.add("Videos", _media(groups, comparisons[0]))
    parts.add("Configuration", _config_table(groups.groups))
    parts.add("Runs", _run_table(groups))
    parts.add("Environment", _machine_table(groups.groups))
    parts.add("Reproduce", _commands(*again))
    style = files("dreamlab.results").joinpath("html_report.css").read_text()
    said = said or Said()
    return "\n".join([
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<link rel="icon" href="data:,">',  # or a browser asks for one
        f"<title>{escape(title)}</title><style>\n{style}</style></head><body>",
        f"<header><h1>{escape(title)}</h1>\n<p>{_what(groups)}</p>",
        f"<nav>{parts.links()}</nav></header>\n<main>",
        _box("warnings", "Warnings", said.warnings), _box("notes", "Notes", said.notes),
        parts.body(), "</main></body></html>\n",
    ])  # fmt: skip


def _what(groups: Groups) -> str:
    """Return a line about all runs: how many, of which tasks, made when."""
    tasks = sorted({m.task for m in groups.members})
    days = sorted({str(m.run.manifest.get("created", ""))[:10] for m in groups.members} - {""})
    when = " to ".join(dict.fromkeys([*days[:1], *days[-1:]]))
    named = ", ".join(tasks) if len(tasks) < 6 else f"{len(tasks)} tasks"
    parts = [_count(len(groups.members), "run"), _count(len(groups.groups), "group"), named, when]
    return escape(" · ".join(filter(None, parts)))


def _count(num: int, word: str) -> str:
    return f"{num} {word}" if num == 1 else f"{num} {word}s"


def _box(kind: str, title: str, lines: Sequence[str]) -> str:
    """Return a box of sentences, of many the rest folded; nothing if there are none."""
    cut = len(lines) if len(lines) <= SHOWN_LINES else SHOWN_LINES - 1
    first, rest = (
        "".join(f"<li>{escape(line)}</li>" for line in part) for part in (lines[:cut], lines[cut:])
    )
    more = _fold(f"{len(lines) - cut} more", f"<ul>{rest}</ul>") if rest else ""
    return f'<div class="box {kind}"><b>{title}</b><ul>{first}</ul>{more}</div>' if lines else ""


def _fold(about: str, body: str, is_open: bool = False) -> str:
    """Return what a reader may unfold."""
    return (
        f"<details{' open' * is_open}><summary>{escape(about)}</summary>{body}</details>"
    )  # fmt: skip


# -- tables ---------------------------------------------------------------------------------------


def table(rows: Iterable[Sequence[Any]], swatches: Mapping[str, str] | None = None) -> str:
    """Return rows as an HTML table, the first as header; cells that name a group get its colour."""
    head, *body = [[str(c) for c in row] for row in rows]
    colors = swatches or {}

    def cell(text: str, tag: str) -> str:
        dot = f'<i style="background:{colors[text]}"></i>' if text in colors else ""
        long = ' class="long"' if len(text) > LONG_CHARACTERS else ""
        return f"<{tag}{long}>{dot}{escape(text)}</{tag}>"

    lines = ["<tr>" + "".join(cell(c, "th") for c in head) + "</tr>"]
    lines += ["<tr>" + "".join(cell(c, "td") for c in row) + "</tr>" for row in body]
    return '<div class="scroll"><table>\n' + "\n".join(lines) + "\n</table></div>"


def swatches(groups: Sequence[Group]) -> dict[str, str]:
    """Return each group's colour in the figures; the style knows a lighter one on black."""
    return {g.name: _color(i % len(figures.COLORS)) for i, g in enumerate(groups)}


def _color(index: int) -> str:
    return f"var(--c{index}, {figures.COLORS[index]})"


# -- results --------------------------------------------------------------------------------------


def _comparison(comparison: Comparison, published: Curves | None) -> str:
    """Return one metric's table, sentences and pictures."""
    drawn = figures.draw_all(comparison, published)
    several = len(comparison.tasks) > 1
    kinds = {"curves": "wide" if several else "half", "aggregates": "wide"}
    kinds |= {"profile": "half", "improvement": "half" if several else "alone"}
    if not several and len(comparison.pairs) == 1:
        drawn.pop("improvement")  # the sentence says it
    if all(len(g.members) == 1 for g in comparison.groups):
        drawn = {"curves": drawn["curves"]}  # one number each: the table says them
    pictures = "\n".join(
        f'<figure class="{kinds[name]}">{inline_svg(drawn[name], caption)}'
        f"<figcaption>{caption}</figcaption></figure>"
        for name, caption in TITLES.items()
        if name in drawn
    )
    about = f"At {comparison.at:,} {comparison.axis}; in brackets {INTERVALS}."
    scaled = "".join(f" {line[0].upper()}{line[1:]}." for line in normalized(comparison))
    return "\n".join([
        f'<p class="soft">{escape(about + scaled)}</p>', _summary(comparison),
        _verdicts(comparison), f'<div class="figures">{pictures}</div>',
    ])  # fmt: skip


def _summary(comparison: Comparison) -> str:
    """Return every statistic: of all tasks together first, then of each."""
    head, *rows = summary(comparison)
    colors, num = swatches(comparison.groups), len(comparison.groups)
    if head[0] != "task":
        return table([head, *rows], colors)
    each = table([head, *rows[:-num]], colors)
    tasks = f"By task ({len(comparison.tasks)})" if len(comparison.tasks) > 1 else "Raw scores"
    shown = len(comparison.tasks) <= SHOWN_TASKS
    return table([head, *rows[-num:]], colors) + _fold(tasks, each, shown)


def _verdicts(comparison: Comparison) -> str:
    """Return what may be said of each pair of groups: a box for one, a table for several."""
    pairs = comparison.pairs
    if len(pairs) == 1:
        p = pairs[0]
        odds = escape(f"P({p.a} > {p.b}) = {words(p.probability)}")
        return f'<p class="verdict"><b>{escape(p.verdict)}</b><br>{odds}</p>'
    rows = [[p.a, p.b, words(p.probability), p.verdict] for p in pairs]
    head = ["a", "b", "P(a > b)", "verdict"]
    return table([head, *rows], swatches(comparison.groups)) if rows else ""


def inline_svg(figure: Any, label: str) -> str:
    """Return a figure as SVG that stands inside a page and takes its colour for lines and text."""
    svg = figures.render(figure, "svg").decode()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg).replace("xlink:href", "href")
    svg = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", svg)  # the same in every figure, never referred to
    width = f"max-width:{figure.get_figwidth():.3g}in"  # no larger than it was drawn
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{escape(label)}" style="{width}"', 1)
    for i, color in enumerate(figures.COLORS):
        svg = svg.replace(color.lower(), _color(i))
    return svg.replace("#000000", "currentColor").strip()


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
    """Return a run's newest video or picture of each kind; names end in the frames so far."""
    newest: dict[str, Path] = {}
    kinds = (("videos", "mp4"), ("videos", "png"), ("report", "mp4"), ("report", "png"))
    for sub, ending in kinds:
        for path in sorted(p for p in (folder / sub).glob(f"*.{ending}") if p.is_file()):
            kind = re.sub(r"_\d+(?=$|\.frames$)", "", path.stem)
            newest[f"{sub}/{kind}.{ending}"] = path
    return [p for p in newest.values() if p.name != "learning_curve.png"]


def _media(groups: Groups, comparison: Comparison) -> str:
    """Return videos and pictures of the typical run of each group, as far as they fit."""
    parts: list[str] = []
    room = PAGE_BYTES
    chosen = [(g, m) for g in groups.groups for m in typical(g, comparison)]
    for group, member in sorted(chosen, key=lambda c: c[1].task):  # groups beside each other
        about = f"{group.name}, {member.task}, seed {member.seed}"
        for path in newest_media(member.run.folder):
            size = path.stat().st_size
            shown = size <= min(FILE_BYTES, room)
            room -= size if shown else 0
            parts.append(_figure(path, about) if shown else _too_large(path, about))
    note = '<p class="soft">The run closest to the median of each group and task.</p>'
    return f'{note}\n<div class="media">{"".join(parts)}</div>' if parts else ""


def _figure(path: Path, about: str) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    caption = f"<figcaption><b>{escape(about)}</b><br>{escape(path.name)}</figcaption>"
    if path.suffix == ".mp4":
        source = f"data:video/mp4;base64,{data}"
        return (
            f'<figure><video controls loop muted playsinline src="{source}"></video>'
            f"{caption}</figure>"
        )
    picture = f'<img alt="{escape(about)}" src="data:image/png;base64,{data}">'
    return f'<figure class="picture">{picture}{caption}</figure>'


def _too_large(path: Path, about: str) -> str:
    size = f"{path.stat().st_size / 2**20:.1f} MiB, too large for this page"
    return (
        f"<figure><figcaption><b>{escape(about)}</b><br>{escape(str(path))}: {size}"
        "</figcaption></figure>"
    )


# -- what was run ---------------------------------------------------------------------------------


def _config_table(groups: Sequence[Group]) -> str:
    """Return the options that are not the same in all groups, and below every option of each."""
    rows = differences([_shared([m.own for m in g.members]) for g in groups])
    parts: list[str] = []
    if rows:
        parts.append('<p class="soft">Options that differ between the groups.</p>')
        parts.append(
            table([["option", *(g.name for g in groups)], *([k, *v] for k, v in rows.items())])
        )
    elif len(groups) > 1:
        parts.append("<p>The groups differ only in seeds and tasks.</p>")
    for group in groups:
        first = group.members[0]
        about = f"All options of {group.name} ({first.task}, seed {first.seed})"
        parts.append(_text(about, read_text(first.run.config_path)))
    return "\n".join(parts)


def _text(about: str, text: str) -> str:
    """Return a text that a reader may unfold."""
    cut = text[:SHOWN_CHARACTERS]
    rest = f"\n... {len(text) - len(cut):,} more characters" if len(cut) < len(text) else ""
    return _fold(about, f"<pre>{escape(cut + rest)}</pre>")


def _shared(configs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one value per option; several where the members of a group differ."""
    keys = {k for c in configs for k in c}
    return {k: _joined(c.get(k, "-") for c in configs) for k in keys}


def _joined(values: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(str(v) for v in values))


def _run_table(groups: Groups) -> str:
    rows = [["group", "task", "seed", "clock", "status", "created (UTC)", "folder"]]
    for group in groups.groups:
        for m in group.members:
            status = str(m.run.manifest.get("status", "-"))
            when = str(m.run.manifest.get("created", "-"))[:16].replace("T", " ")
            about = [f"{m.frames:,} {axis_name(m.unit)}", status, when, str(m.run.folder)]
            rows.append([group.name, m.task, str(m.seed), *about])
    listed = table(rows, swatches(groups.groups))
    many = len(groups.members) > SHOWN_RUNS
    return _fold(f"All {len(groups.members)} runs", listed) if many else listed


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


def _machine_table(groups: Sequence[Group]) -> str:
    """Return what the runs were made with: what is the same for all, then what is not."""
    columns = [_shared([machine(m) for m in g.members]) for g in groups]
    order = list(dict.fromkeys(k for g in groups for m in g.members for k in machine(m)))
    rows = {k: [c.get(k, "-") for c in columns] for k in order}
    same = {k: row[0] for k, row in rows.items() if len(set(row)) == 1}
    head = "all groups" if len(groups) > 1 else groups[0].name
    tables = [table([["", head], *same.items()])] if same else []
    if other := [[k, *row] for k, row in rows.items() if k not in same]:
        tables.append(table([["", *(g.name for g in groups)], *other], swatches(groups)))
    return "\n".join(tables)


def _commands(lines: Sequence[str], attached: Mapping[str, str]) -> str:
    """Return what to type, the files for it to save first, and what is in them."""
    if not lines:
        return ""
    links = " and ".join(
        f'<a download="{escape(name)}" href="data:text/plain;base64,'
        f'{base64.b64encode(text.encode()).decode()}">{escape(name)}</a>'
        for name, text in attached.items()
    )
    where = "Run this in a clone of the repository" + (
        f"; save {links} there first." if links else "."
    )
    shown = [_text(f"Show {name}", text) for name, text in attached.items()]
    return "\n".join([f"<p>{where}</p>", f"<pre>{escape(chr(10).join(lines))}</pre>", *shown])
