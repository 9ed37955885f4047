"""What a person sees of many jobs: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.constrain import Constrain
from rich.live import Live
from rich.table import Table

from dreamlab.core.clock import moment_of
from dreamlab.core.console import WorkConsole
from dreamlab.core.readers import FileError, Record
from dreamlab.core.text import one_line, visible
from dreamlab.core.words import duration, number
from dreamlab.runs.readers import config_if_readable, newest_metrics, planned_count, read_metrics
from dreamlab.sweeps.job import Job, returns, text_of

PLAIN_EVERY_S = 60.0
WIDTHS = {"frames": 16, "return": 6, "time left": 9}  # columns that would jump otherwise
ORDER = ("finished", "running", "failed", "pruned", "interrupted", "waiting")


class SweepProgress:
    """Shows how many jobs are done, running, failed and left, and how the running ones do."""

    def __init__(self, title: str, size: int, console: Console | None = None) -> None:
        self.title, self.size = title, size
        self.console = console or WorkConsole()
        self.live: Live | None = None
        self.took: list[float] = []
        self.due = time.monotonic() + PLAIN_EVERY_S
        self.drawn = 0.0

    def start(self) -> None:
        """Start to draw, on a terminal."""
        if self.console.is_terminal:
            self.live = Live(console=self.console, refresh_per_second=2, transient=True)
            self.live.start()

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self.console.print(visible(text), highlight=False, markup=False, soft_wrap=True)

    def ended(self, job: Job) -> None:
        """Learn how long a job takes from one that has ended."""
        if seconds := job.record().get("seconds"):
            self.took.append(float(seconds))

    def show(self, states: Mapping[str, str], running: Sequence[Job], left: int) -> None:
        """Draw the table again; where nothing can be drawn, print a summary once a minute."""
        now = time.monotonic()
        if self.live is not None and now - self.drawn > 1.0:
            self.drawn = now
            # a terminal writes ^C behind the last row: beyond the edge it would push the table up
            table = Constrain(self._table(states, running, left), self.console.width - 3)
            self.live.update(table)
        elif self.live is None and now > self.due:
            self.due = now + PLAIN_EVERY_S
            self.say(self._summary(states, running, left))

    def close(self) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None

    def _summary(self, states: Mapping[str, str], running: Sequence[Job], left: int) -> str:
        counts = Counter(states.values())
        text = ", ".join(f"{counts[s]} {s}" for s in ORDER if counts[s])
        eta = time_left(running, left, self.size, self.took)
        return f"{self.title}: {text}" + (f", {duration(eta)} to go" if eta else "")

    def _table(self, states: Mapping[str, str], running: Sequence[Job], left: int) -> Table:
        table = Table(title=self._summary(states, running, left), title_justify="left", box=None)
        for name in ("job", "parameters", "frames", "return", "time left"):
            side = "left" if name in ("job", "parameters") else "right"
            table.add_column(name, justify=side, min_width=WIDTHS.get(name), no_wrap=name in WIDTHS)
        for job in running:
            record = newest_metrics(job.run_folder)
            share, rest = progress(job.run_folder, record)
            table.add_row(
                job.name,
                job.label,
                f"{moment_of(record) if record else 0:,} ({share:.0%})",
                number(last_return(record)),
                duration(rest),
            )
        return table


def progress(folder: Path, record: Mapping[str, Any]) -> tuple[float, float | None]:
    """Return the progress of a run, and the seconds left if known."""
    if not record or not (done := moment_of(record)):
        return 0.0, None
    planned, spent = planned_count(config_if_readable(folder)), record.get("time/wall_s")
    if not planned or not isinstance(spent, int | float):
        return 0.0, None
    share = min(1.0, done / planned)
    return share, spent * (1 / share - 1)


def time_left(
    running: Sequence[Job], left: int, size: int, took: Sequence[float] = ()
) -> float | None:
    """Return the seconds until everything has ended, if jobs take as long as those before them.

    `took` are the seconds of jobs that have ended; before there are any, the running ones count.
    """
    wholes: list[float] = []
    rests: list[float] = []
    for job in running:
        record = newest_metrics(job.run_folder)
        share, rest = progress(job.run_folder, record)
        if rest is not None:
            wholes.append(record["time/wall_s"] / share)
            rests.append(rest)
    if not (known := [*took] or wholes):
        return None
    whole = sum(known) / len(known)
    rests += [whole] * (len(running) - len(rests))  # those that have not reported yet
    return max([*rests, (sum(rests) + left * whole) / max(size, len(running))])


def last_return(record: Mapping[str, Any]) -> float | None:
    """Return a record's return: of episodes while it trains, of the evaluation if that is all."""
    found = record.get("episode/return", record.get("eval/return"))
    return found if isinstance(found, int | float) else None


def result(job: Job) -> float | None:
    """Return what a run has reached: its last evaluation, or episodes where there is none."""
    points = returns(_records(job, []))
    return points[-1][1] if points else None


def results(jobs: Iterable[Job], states: Mapping[str, str]) -> tuple[Table, list[str]]:
    """Return a table of jobs with parameters, status, frames, best and last return.

    Beside it stands what could not be read of them.
    """
    jobs = list(jobs)
    keys = list(dict.fromkeys(k for job in jobs for k in job.parameters))
    table = Table(box=None, pad_edge=False)
    for name in ("job", *keys, "status", "frames", "best", "last"):
        table.add_column(name, overflow="fold", justify="left" if name == "job" else "right")
    damage: list[str] = []
    for job in jobs:
        records = _records(job, damage)
        points = returns(records)
        best, last = (max(v for _, v in points), points[-1][1]) if points else (None, None)
        frames = moment_of(records[-1]) if records else 0
        values = [cell(job.parameters[k]) if k in job.parameters else "-" for k in keys]
        row = (states[job.name], f"{frames:,}", number(best), number(last))
        table.add_row(job.name, *values, *row)
    return table, damage


def _records(job: Job, damage: list[str]) -> list[Record]:
    try:
        lines = read_metrics(job.run_folder)
    except FileError as error:
        damage.append(str(error))
        return []
    damage += lines.told(job.run_folder / "metrics.jsonl")
    return lines.records


def cell(value: Any) -> str:
    """Return an option's value in few characters."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return one_line(value if isinstance(value, str) else text_of(value))
