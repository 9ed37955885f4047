"""What a person sees of many jobs: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.constrain import Constrain
from rich.live import Live
from rich.table import Table

from dreamlab.core.text import one_line, visible
from dreamlab.runs.launch.job import Job, last_record, returns, text_of
from dreamlab.runs.run import Run

PLAIN_EVERY_S = 60.0
WIDTHS = {"frames": 16, "return": 6, "time left": 9}  # columns that would jump otherwise
ORDER = ("finished", "running", "failed", "pruned", "interrupted", "waiting")


class View:
    """Shows how many jobs are done, running, failed and left, and how the running ones do."""

    def __init__(self, title: str, size: int, console: Console | None = None) -> None:
        self.title, self.size = title, size
        self.console = console or Console()
        self.live: Live | None = None
        self.took: list[float] = []
        self.due = time.monotonic() + PLAIN_EVERY_S
        self.drawn = 0.0

    def start(self) -> None:
        """Begin to draw, on a terminal."""
        if self.console.is_terminal:
            self.live = Live(console=self.console, refresh_per_second=2, transient=True)
            self.live.start()

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self.console.print(visible(text), highlight=False, markup=False, soft_wrap=True)

    def ended(self, job: Job) -> None:
        """Learn how long a job takes from one that is over."""
        if seconds := job.record().get("seconds"):
            self.took.append(float(seconds))

    def show(self, states: Mapping[str, str], running: Sequence[Job], left: int) -> None:
        """Draw the table anew; where nothing can be drawn, print a summary once a minute."""
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
            record = last_record(job.run_folder)
            share, rest = progress(job.run_folder, record)
            table.add_row(
                job.name,
                job.label,
                f"{int(record.get('env_frames', 0)):,} ({share:.0%})",
                number(last_return(record)),
                duration(rest),
            )
        return table


@cache
def planned_frames(config: Path) -> int:
    """Return how many env frames a run will have; 0 if that is not known beforehand."""
    training: dict[str, Any] = yaml.safe_load(config.read_text()).get("training", {})
    total = training.get("total_frames")
    return int(total or sum(p.get("duration_steps") or 0 for p in training.get("phases", [])))


def progress(folder: Path, record: Mapping[str, Any]) -> tuple[float, float | None]:
    """Return how much of a run is over, and the seconds it still needs if that can be told."""
    if not record or not (folder / "config.yaml").exists():
        return 0.0, None
    planned, done = planned_frames(folder / "config.yaml"), record["env_frames"]
    if not planned or not done:
        return 0.0, None
    share = min(1.0, done / planned)
    return share, record["time/wall_s"] * (1 / share - 1)


def time_left(
    running: Sequence[Job], left: int, size: int, took: Sequence[float] = ()
) -> float | None:
    """Return the seconds until everything is over, if jobs take as long as those before them.

    `took` are the seconds of jobs that are over; before there are any, the running ones count.
    """
    wholes: list[float] = []
    rests: list[float] = []
    for job in running:
        record = last_record(job.run_folder)
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
    points = returns(Run(job.run_folder).metrics())
    return points[-1][1] if points else None


def results(jobs: Iterable[Job], states: Mapping[str, str]) -> Table:
    """Return a table of jobs with parameters, status, frames, best and last return."""
    jobs = list(jobs)
    keys = list(dict.fromkeys(k for job in jobs for k in job.parameters))
    table = Table(box=None, pad_edge=False)
    for name in ("job", *keys, "status", "frames", "best", "last"):
        table.add_column(name, overflow="fold", justify="left" if name == "job" else "right")
    for job in jobs:
        points = returns(Run(job.run_folder).metrics())
        best, last = (max(v for _, v in points), points[-1][1]) if points else (None, None)
        frames = int(last_record(job.run_folder).get("env_frames", 0))
        values = [cell(job.parameters[k]) if k in job.parameters else "-" for k in keys]
        row = (states[job.name], f"{frames:,}", number(best), number(last))
        table.add_row(job.name, *values, *row)
    return table


def cell(value: Any) -> str:
    """Return an option's value in few characters."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return one_line(value if isinstance(value, str) else text_of(value))


def number(value: float | None) -> str:
    """Return a number in few digits, or a dash."""
    return "-" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def duration(seconds: float | None) -> str:
    """Return seconds in a unit that reads well, or a dash."""
    if seconds is None:
        return "-"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
