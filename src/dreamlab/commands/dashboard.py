"""`dreamlab watch`: the runs that are going on, in the terminal."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table

from dreamlab.runs.find import ROOT
from dreamlab.runs.live import View, Watcher, sparkline

COLOURS = {"running": "green", "crashed": "red", "failed": "red", "interrupted": "yellow"}


def watch(args: list[str]) -> int:
    """Show live runs until Ctrl-C: returns, speed, time left, alerts."""
    parser = argparse.ArgumentParser(prog="dreamlab watch", description=watch.__doc__)
    parser.add_argument("roots", nargs="*", type=Path, help="runs, or folders of runs")
    parser.add_argument("--all", action="store_true", help="those that have ended as well")
    parser.add_argument("--once", action="store_true", help="print one look and stop")
    parser.add_argument("--json", action="store_true", help="one look, for programs")
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two looks")
    options = parser.parse_args(args)
    watcher = Watcher(options.roots or [ROOT])
    if options.json:
        print(json.dumps([plain(v) for v in watcher.look(options.all)]))
        return 0
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    if options.once:
        views = watcher.look(options.all)
        console.print(table(views) if views else "no run is going on")
        return 0 if views else 1
    with Live(table(watcher.look(options.all)), console=console, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(options.every)
                live.update(table(watcher.look(options.all)), refresh=True)
        except KeyboardInterrupt:
            return 0


def plain(view: View) -> dict[str, Any]:
    """Return a view as plain data."""
    out = {**asdict(view), "folder": str(view.folder)}
    return {**out, "last": view.last, "best": view.best, "eta_s": view.eta_s}


def table(views: list[View]) -> Table:
    """Return the runs as a table, and the latest alerts below it."""
    out = Table(box=SIMPLE_HEAD, caption=alerts(views) or None, caption_justify="left")
    for name in ("run", "seed", "status", "frames", "return", "best", "curve", "frames/s", "left"):
        right = name in ("seed", "frames", "return", "best", "frames/s", "left")
        out.add_column(name, justify="right" if right else "left", no_wrap=True)
    for v in views:
        colour = COLOURS.get(v.status, "default")
        of = f" {v.frames / v.total:4.0%}" if v.total else ""
        out.add_row(
            v.name, "" if v.seed is None else str(v.seed), f"[{colour}]{v.status}[/]",
            f"{v.frames:,}{of}", number(v.last), number(v.best), sparkline(v.returns),
            number(v.speed), duration(v.eta_s),
        )  # fmt: skip
    return out


def alerts(views: list[View]) -> str:
    """Return the last alert of every run that has one."""
    return "\n".join(f"{v.name}: {v.alerts[-1]} ({len(v.alerts)})" for v in views if v.alerts)


def number(value: float | None) -> str:
    """Return a number with four digits."""
    return "" if value is None else f"{value:,.4g}"


def duration(seconds: float | None) -> str:
    """Return a time as people say it."""
    if seconds is None:
        return ""
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if hours:
        return f"{hours} h {minutes % 60:02d} min"
    return f"{minutes} min" if minutes else f"{seconds:.0f} s"
