"""`dreamlab watch`: show live runs in the terminal."""

from __future__ import annotations

import time
from pathlib import Path

import click

from dreamlab.commands.arguments import POSITIVE, RunFolder, argument, as_json, verb
from dreamlab.commands.printing import json_text, warn
from dreamlab.core.text import print
from dreamlab.runs.find import ROOT

ELSEWHERE = 140  # width without a terminal


@verb(
    "watch",
    "dreamlab watch",
    "dreamlab watch experiments/sweep --all --once",
)
@argument(
    "roots", f"runs, or folders of runs; default: {ROOT}",
    nargs=-1, type=RunFolder(), metavar="[ROOT]...",
)  # fmt: skip
@click.option("--all", "ended", is_flag=True, help="Also show finished runs.")
@click.option("--once", is_flag=True, help="Print a snapshot and exit, as without a terminal.")
@as_json
@click.option("--every", type=POSITIVE, default=2.0, help="Seconds between updates.")
def command(roots: tuple[Path, ...], ended: bool, once: bool, as_json: bool, every: float) -> int:
    """Show live runs until Ctrl-C: returns, speed in env frames/s, time left, alerts."""
    from rich.live import Live

    from dreamlab.commands.dashboard import picture, plain
    from dreamlab.core.console import ShowConsole
    from dreamlab.runs.live import Watcher

    watcher = Watcher([*roots] or [ROOT])
    if as_json:
        print(json_text([plain(v) for v in watcher.look(ended)], None))
        warn(watcher.damage())
        return 0
    console = ShowConsole()
    if elsewhere := not console.is_terminal:  # a file or a pipe cannot be redrawn
        console = ShowConsole(width=ELSEWHERE)
    if once or elsewhere:
        views = watcher.look(ended)
        console.print(picture(views, console.width))
        warn(watcher.damage())
        return 0 if views else 1
    try:
        with Live(console=console, auto_refresh=False) as live:
            while True:
                views = watcher.look(ended)
                live.update(picture(views, console.width, console.height), refresh=True)
                time.sleep(every)
    except KeyboardInterrupt:
        return 0
