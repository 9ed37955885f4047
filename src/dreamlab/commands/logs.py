"""`dreamlab logs`: print a run's events and metrics."""

from __future__ import annotations

import time
from pathlib import Path

import click

from dreamlab.commands.arguments import NATURAL, as_json, root, run_name, verb
from dreamlab.commands.catalogue import finds_runs
from dreamlab.commands.printing import json_text, warn
from dreamlab.core.text import print
from dreamlab.runs.event_log import Line, Story
from dreamlab.runs.query import find_run
from dreamlab.runs.run_row import GOING, live_status, read_row


@verb(
    "logs",
    "dreamlab logs experiments/first --last 20",
    "dreamlab logs 3f2a --follow",
)
@run_name()
@click.option("--follow", is_flag=True, help="Follow until the run ends.")
@click.option("--last", type=NATURAL, help="Print only the last N lines.")
@root
@as_json
@finds_runs
def command(run: str, follow: bool, last: int | None, root: Path, as_json: bool) -> int:
    """Print a run's events and metrics in chronological order, one per line."""
    folder = find_run(run, root)

    def tell(line: Line) -> None:
        text = json_text(line.plain(), None) if as_json else line.text()
        print(text, flush=follow)

    def goes_on() -> bool:
        return live_status(read_row(folder)[0], folder, time.time()) in GOING

    events = Story(folder)
    told = events.so_far()
    for line in told if last is None else told[len(told) - last :]:
        tell(line)
    try:
        for line in events.to_come(goes_on) if follow else ():
            tell(line)
    except KeyboardInterrupt:
        return 0
    finally:
        warn(events.damage)
    return 0 if told or follow else 1
