"""The table of live runs that `dreamlab watch` shows."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dreamlab.core.text import one_line
from dreamlab.core.words import duration, number
from dreamlab.runs.live import RunView, sparkline

COLOURS = {"crashed": "red", "failed": "red", "interrupted": "yellow", "finished": "green"}
WIDE = 105  # terminal width from which all columns are shown
MOST_ALERTS = 5
WIDTHS = {"frames": 9, "": 4, "return": 6, "best": 6, "eval": 6, "left": 8}  # a stable layout


def plain(view: RunView) -> dict[str, Any]:
    """Return a view as JSON-serializable data."""
    out = {**asdict(view), "folder": str(view.folder)}
    return {**out, "last": view.last, "best": view.best, "eta_s": view.eta_s}


def picture(views: list[RunView], width: int, height: int | None = None) -> RenderableType:
    """Return a table of as many runs as fit, with the latest alerts below it."""
    if not views:
        return Text("no active runs (--all also shows finished ones)")
    names, below = labels(views), alerts(views, time.time(), crop=height is not None)
    fit = len(views) if height is None else max(1, height - len(below) - 4)
    if len(views) > fit:
        below = [Text(f"and {len(views) - fit} more", "dim"), *below]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    rows = [cells(view, name, width) for view, name in zip(views[:fit], names, strict=False)]
    for title in rows[0]:
        side = "left" if title in ("run", "curve") else "right"
        table.add_column(title, justify=side, no_wrap=True, min_width=WIDTHS.get(title))
    for row in rows:
        table.add_row(*row.values())
    return Group(table, Text(), *below) if below else table


def labels(views: list[RunView]) -> list[str]:
    """Return a label for each run: its name and seed, or its folder if those are not unique."""
    full = [v.name if v.seed is None else f"{v.name}/{v.seed}" for v in views]
    shared = Counter(full)
    found = [v.folder.name if shared[n] > 1 else n for v, n in zip(views, full, strict=True)]
    return [one_line(name) for name in found]


def cells(view: RunView, name: str, width: int) -> dict[str, Text | str]:
    """Return a row by column; a narrow terminal gets the most important ones."""
    wide = width >= WIDE
    longest, curve = (30, 16) if wide else (max(8, width - 66), 10)
    share = f"{min(view.frames / view.total, 1):.0%}" if view.total else ""
    extra = {"best": number(view.best), "eval": number(view.eval)} if wide else {}
    return {
        # the end of a folder's name distinguishes it from its siblings
        "run": Text(name if len(name) <= longest else f"…{name[1 - longest :]}"),
        "frames": f"{view.frames:,}",
        "": share,
        "return": number(view.last),
        **extra,
        "curve": f"{sparkline(view.returns, curve):{curve}s}",
        "frames/s": number(view.speed),
        "left": state(view),
    }


def state(view: RunView) -> Text:
    """Return the time left, or how the run ended."""
    if view.status == "created":
        return Text("starting", "dim")
    if view.going:
        return Text(duration(view.eta_s))
    return Text(one_line(view.status), COLOURS.get(view.status, ""))


def alerts(views: list[RunView], now: float, crop: bool) -> list[Text]:
    """Return the last alert of each run and kind, newest first, each cropped to one line."""
    last = {(n, a.kind): a for v, n in zip(views, labels(views), strict=True) for a in v.alerts}
    lines: list[Text] = []
    for (name, kind), alert in sorted(last.items(), key=lambda f: -f[1].time)[:MOST_ALERTS]:
        ago = f"{duration(max(now - alert.time, 0))} ago"
        line = Text(no_wrap=crop, overflow="ellipsis" if crop else "fold")
        line.append(one_line(kind), "red" if kind == "nan" else "yellow")
        lines.append(line.append(f"  {ago}  {name}: {one_line(alert.text)}"))
    return lines
