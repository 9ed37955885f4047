"""What a person sees while a run goes on: a live view on a terminal or in a notebook, or lines."""

from __future__ import annotations

import sys
from typing import Any, Literal

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from dreamlab.core.clock import LATE, moment_of, unit_of
from dreamlab.core.console import WorkConsole
from dreamlab.core.text import one_line, visible
from dreamlab.core.words import number
from dreamlab.engine.notebook import NotebookLive, in_notebook

SHOWN = ("episode/return", "eval/return", "eval/success", "train/loss")
Kind = Literal["auto", "live", "plain", "off"]


class Terminal:
    """Shows phase, progress with the time left, speed and return."""

    def __init__(self, kind: Kind, name: str, console: Console | None = None) -> None:
        self.console = console or WorkConsole(force_jupyter=False)
        self.notebook = in_notebook()
        if kind == "auto":
            watched = self.console.is_terminal and sys.stdout.isatty()
            kind = "live" if watched or self.notebook else "plain"
        self.kind, self.name = kind, name
        self.total = 0
        self.last: dict[str, float] = {}
        self.lines: list[str] = []
        self.progress = Progress(
            TextColumn("[bold]{task.fields[phase]}"),
            BarColumn(bar_width=None),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} {task.fields[unit]}"),
            TimeRemainingColumn(),
            console=self.console,
        )
        self.task = self.progress.add_task("run", total=1, phase="starting", unit="frames")
        self.live: Live | NotebookLive | None = None

    def start(self) -> None:
        """Start to draw."""
        if self.kind == "live":
            self.live = (
                NotebookLive(self._view())
                if self.notebook
                else Live(self._view(), console=self.console, refresh_per_second=4)
            )
            self.live.start()

    def say(self, text: str) -> None:
        """Print a line that stays."""
        if self.kind != "off":
            (self.live.console if isinstance(self.live, Live) else self.console).print(
                visible(text), highlight=False, markup=False, soft_wrap=True
            )

    def tick(self, phase: str, done: float, total: float, unit: str) -> None:
        """Move the bar."""
        if self.live is not None:
            self.progress.update(
                self.task,
                completed=done,
                total=max(total, 1),
                phase=escape(one_line(phase)),
                unit=unit,
            )
        if isinstance(self.live, NotebookLive):
            self.live.tick()

    def write(self, record: dict[str, float]) -> None:
        """Show a record of metrics."""
        self.last.update(record)
        if self.live is not None:
            self.live.update(self._view())
        elif self.kind == "plain":
            self.say(self._line(record))

    def _line(self, record: dict[str, float]) -> str:
        unit = unit_of(record)
        rates = {u: record.get(f"time/{u}_per_s", 0.0) for u in (unit, "updates")}
        counted = unit if rates[unit] else "updates"  # a phase may learn and collect nothing
        speed = f"{number(float(f'{rates[counted]:.3g}'))} {counted}/s"
        if LATE in record:
            speed = "measured meanwhile"
        shown = [f"{k} {record[k]:.4g}" for k in SHOWN if k in record]
        return " | ".join([f"{self.name}: {moment_of(record):,} {unit}", speed, *shown])

    def _view(self) -> Table:
        table = Table.grid(padding=(0, 2))
        numbers = Table(box=None, pad_edge=False)
        cells: dict[str, str] = {
            "env frames/s": number(self.last.get("time/frames_per_s")),
            "updates/s": number(self.last.get("time/updates_per_s")),
            "return": number(self.last.get("episode/return")),
            "eval return": number(self.last.get("eval/return")),
            "episodes": number(self.last.get("episodes")),
        }
        if "eval/success" in self.last:
            cells["eval success"] = number(self.last["eval/success"])
        for name in cells:
            numbers.add_column(name, justify="right", min_width=12)
        numbers.add_row(*cells.values())
        table.add_row(f"[bold cyan]{self.name}[/]")
        table.add_row(self.progress)
        table.add_row(numbers)
        return table

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None: ...

    def restart(self) -> None: ...

    def close(self) -> None:
        if self.live is not None:
            self.live.update(self._view())
            self.live.stop()
            self.live = None
