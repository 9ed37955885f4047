"""A comparison as text, and as one HTML page that needs no other file."""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from dreamlab.runs import figures, stats
from dreamlab.runs.compare import Comparison, Group, Groups, Member, differences
from dreamlab.runs.stats import Interval

FILE_BYTES = 8 * 2**20
"""A video or picture larger than this is named, not shown."""
PAGE_BYTES = 48 * 2**20
DIFF_CHARACTERS = 20_000
TITLES = {
    "curves": "Learning curves, interquartile mean",
    "mean_curves": "Learning curves, mean",
    "profile": "Performance profile: the share of runs above a score",
    "aggregates": "Aggregates",
    "improvement": "Probability of improvement",
}
STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --soft: #59636e; --back: #ffffff;
  --line: #d1d9e0; --block: #f4f6f8; --warn: #9a6700; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --soft: #9198a1;
  --back: #0f141a; --line: #3d444d; --block: #1a2027; --warn: #d29922; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back);
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem;
  border-bottom: 1px solid var(--line); } h3 { font-size: 1rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { border-bottom: 1px solid var(--line); padding: 0.3rem 0.8rem 0.3rem 0;
  text-align: left; vertical-align: top; }
pre { background: var(--block); padding: 0.8rem; overflow-x: auto; font-size: 0.85rem; }
.warn { color: var(--warn); } .soft, figcaption { color: var(--soft); font-size: 0.9rem; }
figure { margin: 1rem 0; } figure svg { max-width: 100%; height: auto; color: var(--text); }
figure svg text { fill: currentColor; } video, img { max-width: 100%; }
"""


def number(value: float) -> str:
    """Return four digits, without an exponent where people would write none."""
    return f"{value:,.0f}" if 1_000 <= abs(value) < 1e9 else f"{value:.4g}"


def words(interval: Interval) -> str:
    """Return an interval as `value [low, high]`."""
    if not isfinite(interval.low):
        return f"{number(interval.value)} [-]"
    return f"{number(interval.value)} [{number(interval.low)}, {number(interval.high)}]"


def aligned(rows: list[list[str]]) -> str:
    """Return rows as lines with columns under each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows]
    return "\n".join(lines)


def summary_rows(comparison: Comparison) -> list[list[str]]:
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


# -- the page -------------------------------------------------------------------------------------


def html_page(
    title: str,
    groups: Groups,
    comparisons: Sequence[Comparison],
    published: figures.Curves | None = None,
    notes: Sequence[str] = (),
) -> str:
    """Return the page."""
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{_what(groups)}</p>',
        *(f'<p class="warn">{escape(n)}</p>' for n in notes),
        *(_comparison(c, published if c.is_return else None) for c in comparisons),
        _section("Videos and pictures", _media(groups, comparisons[0])),
        _section("What differs between the groups", _config_table(groups.groups)),
        _section("Runs", _run_table(groups)),
        _section("Software, hardware, code", _machine_table(groups.groups)),
        _section("To reproduce", _commands(groups)),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _what(groups: Groups) -> str:
    tasks = sorted({m.task for m in groups.members})
    return escape(f"{len(groups.members)} runs, {len(groups.groups)} groups: {', '.join(tasks)}")


def _section(title: str, body: str) -> str:
    return f"<h2>{escape(title)}</h2>\n{body}" if body else ""


def table(rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as an HTML table; the first is the header."""
    head, *body = [[escape(str(c)) for c in row] for row in rows]
    lines = ["<tr>" + "".join(f"<th>{c}</th>" for c in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>" for row in body]
    return "<table>\n" + "\n".join(lines) + "\n</table>"


# -- results --------------------------------------------------------------------------------------


def _comparison(comparison: Comparison, published: figures.Curves | None) -> str:
    """Return one metric's table, sentences and pictures."""
    drawn = figures.draw_all(comparison, published)
    pictures = [
        f"<figure>{inline_svg(figure)}<figcaption>{TITLES[name]}</figcaption></figure>"
        for name, figure in drawn.items()
    ]
    lines = "".join(f"<li>{escape(line)}</li>" for line in pair_lines(comparison))
    about = f"at {comparison.at:,} env frames; in brackets 95 % bootstrap intervals over the seeds"
    return _section(
        comparison.metric,
        "\n".join([
            f'<p class="soft">{about}</p>', table(summary_rows(comparison)),
            f"<ul>{lines}</ul>" if lines else "", *pictures,
        ]),
    )  # fmt: skip


def inline_svg(figure: Any) -> str:
    """Return a figure as SVG that stands inside a page and takes its colour for lines and text."""
    svg = figures.render(figure, "svg").decode()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg).replace("xlink:href", "href")
    svg = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", svg)  # the same in every figure, never referred to
    return svg.replace("#000000", "currentColor").strip()


# -- media ----------------------------------------------------------------------------------------


def typical(group: Group, comparison: Comparison) -> list[Member]:
    """Return of each task the run whose score is nearest to the median of its seeds."""
    found: list[Member] = []
    for task, scores in comparison.scores(group).items():
        nearest = int(np.argmin(np.abs(scores - np.median(scores))))
        found.append(group.tasks[task][nearest])
    return found


def newest_media(folder: Path) -> list[Path]:
    """Return a run's newest video or picture of each kind; names end in the frames so far."""
    newest: dict[str, Path] = {}
    for sub, ending in (("videos", "mp4"), ("report", "mp4"), ("report", "png")):
        for path in sorted((folder / sub).glob(f"*.{ending}")):
            kind = re.sub(r"_\d+$", "", path.stem)
            newest[f"{sub}/{kind}.{ending}"] = path
    return [p for p in newest.values() if p.name != "learning_curve.png"]


def _media(groups: Groups, comparison: Comparison) -> str:
    """Return videos and pictures of the typical run of each group, as far as they fit."""
    parts: list[str] = []
    room = PAGE_BYTES
    for group in groups.groups:
        for member in typical(group, comparison):
            paths = newest_media(member.run.folder)
            about = f"{group.name}, {member.task}, seed {member.seed} (nearest to the median)"
            parts += [f"<h3>{escape(about)}</h3>"] if paths else []
            for path in paths:
                size = path.stat().st_size
                shown = size <= min(FILE_BYTES, room)
                room -= size if shown else 0
                parts.append(_figure(path, member.run.folder) if shown else _too_large(path))
    return "\n".join(parts)


def _figure(path: Path, folder: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    caption = f"<figcaption>{escape(str(path.relative_to(folder)))}</figcaption>"
    if path.suffix == ".mp4":
        source = f"data:video/mp4;base64,{data}"
        return f'<figure><video controls loop muted src="{source}"></video>{caption}</figure>'
    return f'<figure><img alt="" src="data:image/png;base64,{data}">{caption}</figure>'


def _too_large(path: Path) -> str:
    mib = path.stat().st_size / 2**20
    return f'<p class="soft">{escape(str(path))}: {mib:.1f} MiB, too large for this page</p>'


# -- what was run ---------------------------------------------------------------------------------


def _config_table(groups: Sequence[Group]) -> str:
    """Return the options that are not the same in all groups."""
    rows = differences([_shared([m.own for m in g.members]) for g in groups])
    if not rows:
        return "<p>Nothing but seeds and tasks.</p>" if len(groups) > 1 else ""
    return table([["option", *(g.name for g in groups)], *([k, *v] for k, v in rows.items())])


def _shared(configs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one value per option; several where the members of a group differ."""
    keys = {k for c in configs for k in c}
    return {k: _joined(c.get(k, "-") for c in configs) for k in keys}


def _joined(values: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(str(v) for v in values))


def _run_table(groups: Groups) -> str:
    rows = [["group", "task", "seed", "env frames", "status", "created", "folder"]]
    for group in groups.groups:
        for m in group.members:
            about = [str(m.run.manifest.get(k, "-")) for k in ("status", "created")]
            folder = str(m.run.folder)
            rows.append([group.name, m.task, str(m.seed), f"{m.frames:,}", *about, folder])
    return table(rows)


def machine(member: Member) -> dict[str, str]:
    """Return versions, hardware and code of a run."""
    manifest = member.run.manifest
    git, hardware = manifest.get("git") or {}, manifest.get("hardware") or {}
    found = {
        "commit": git.get("commit", "unknown"),
        "changes after it": f"{len(git.get('diff', '').splitlines())} lines of diff"
        if git.get("dirty")
        else "none",
    }
    found |= {k: _joined(v) or "none" if isinstance(v, list) else v for k, v in hardware.items()}
    return {k: str(v) for k, v in {**found, **(manifest.get("versions") or {})}.items()}


def _machine_table(groups: Sequence[Group]) -> str:
    """Return what the runs were made with; one column where it is the same for all groups."""
    columns = [_shared([machine(m) for m in g.members]) for g in groups]
    names = [g.name for g in groups]
    if all(c == columns[0] for c in columns):
        columns, names = columns[:1], ["all groups"]
    order = list(dict.fromkeys(k for g in groups for m in g.members for k in machine(m)))
    return table([["", *names], *([k, *(c.get(k, "-") for c in columns)] for k in order)])


def _commands(groups: Groups) -> str:
    """Return the commands that made the runs, and what differs from the commit they ran on."""
    manifests = [m.run.manifest for m in groups.members]
    commits = dict.fromkeys((m.get("git") or {}).get("commit") for m in manifests)
    lines = [f"git checkout {c}" for c in commits if c]
    lines += dict.fromkeys(shlex.join(m.get("command", [])) for m in manifests)
    parts = [f"<pre>{escape(chr(10).join(lines))}</pre>"]
    diffs = dict.fromkeys((m.get("git") or {}).get("diff") or "" for m in manifests)
    for diff in filter(None, diffs):
        cut = diff[:DIFF_CHARACTERS]
        rest = f"\n... {len(diff) - len(cut):,} more characters are in manifest.json"
        text = escape(cut + (rest if len(cut) < len(diff) else ""))
        parts.append(
            f"<details><summary>changes after the commit</summary><pre>{text}</pre></details>"
        )
    return "\n".join(parts)
