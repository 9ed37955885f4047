"""What running runs look like right now, read from their folders while they write."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from dreamlab.core.clock import moment_of
from dreamlab.core.readers import Tail
from dreamlab.runs.find import runs_under
from dreamlab.runs.readers import config_if_readable, is_event, is_metrics, planned_count
from dreamlab.runs.run_row import GOING, Row, live_status, manifest_stamp, read_row, stamp_of

BARS = "▁▂▃▄▅▆▇█"
SPEED_RECORDS = 10  # over how many the speed is averaged: single ones scatter


@dataclass(frozen=True)
class Alert:
    """What a run has warned of, and when."""

    kind: str
    text: str
    time: float


@dataclass
class RunView:
    """One run at one moment."""

    folder: Path
    name: str
    seed: int | None
    status: str
    frames: int
    total: int | None
    returns: list[float] = field(default_factory=list)
    """Returns of training episodes, or of evaluations if there are none."""
    eval: float | None = None
    """Return of the last evaluation."""
    speed: float | None = None
    """Env frames per second of a running run, including evaluation and saving."""
    age_s: float | None = None
    alerts: list[Alert] = field(default_factory=list)

    @property
    def going(self) -> bool:
        return self.status in GOING

    @property
    def last(self) -> float | None:
        return self.returns[-1] if self.returns else None

    @property
    def best(self) -> float | None:
        return max(self.returns, default=None)

    @property
    def eta_s(self) -> float | None:
        """Return the seconds left at the present speed; None if unknown."""
        if not self.going or not self.speed or self.total is None:
            return None
        return max(self.total - self.frames, 0) / self.speed


class Watcher:
    """Looks at the runs below some folders again and again, reading only what is new."""

    def __init__(self, roots: Iterable[Path]) -> None:
        self.roots = list(roots)
        self.rows: dict[Path, Row] = {}
        self.totals: dict[Path, tuple[str, int | None]] = {}
        self.tails: dict[Path, tuple[Tail, Tail]] = {}

    def look(self, everything: bool = False) -> list[RunView]:
        """Return the runs that are running; with `everything` those that ended after them."""
        now = time.time()
        found = {f: self._row(f) for root in self.roots for f in runs_under(root)}
        states = {f: live_status(row, f, now) for f, row in found.items()}
        shown = [f for f in found if everything or states[f] in GOING]
        views = [self._view(f, found[f], states[f], now) for f in shown]
        # by name while they run: otherwise the last writer would jump to the top
        return sorted(views, key=lambda v: (0 if v.going else (v.age_s or 0) + 1, str(v.folder)))

    def damage(self) -> list[str]:
        """Return what could not be read of the runs that were looked at."""
        said: list[str] = []
        for tail in (t for pair in self.tails.values() for t in pair):
            said += [tail.problem] if tail.problem else tail.lines.told(tail.path)
        return said

    def _row(self, folder: Path) -> Row:
        known = self.rows.get(folder)
        if known is None or known["stamp"] != manifest_stamp(folder):
            known = self.rows[folder] = read_row(folder)[0]
        return known

    def _total(self, folder: Path) -> int | None:
        stamp = stamp_of(folder / "config.yaml")
        if self.totals.get(folder, ("", None))[0] != stamp:
            self.totals[folder] = (stamp, planned_count(config_if_readable(folder)))
        return self.totals.get(folder, ("", None))[1]

    def _view(self, folder: Path, row: Row, status: str, now: float) -> RunView:
        heartbeat = row.get("heartbeat")
        age = None if heartbeat is None else max(now - float(heartbeat), 0.0)
        view = RunView(
            folder, str(row.get("name") or folder.name), row.get("seed"), status,
            int(row.get("frames") or 0), self._total(folder), age_s=age,
        )  # fmt: skip
        if folder not in self.tails:
            names = {"metrics": is_metrics, "events": is_event}
            tails = [Tail(folder / f"{name}.jsonl", check) for name, check in names.items()]
            self.tails[folder] = (tails[0], tails[1])
        metrics, events = (tail.read() for tail in self.tails[folder])
        evals = _values(metrics, "eval/return")
        view.returns = _values(metrics, "episode/return") or evals
        view.eval = evals[-1] if evals else None
        if metrics:
            view.frames = max(view.frames, moment_of(metrics[-1]))
        view.speed = recent_speed(metrics) if view.going else None
        view.alerts = [
            Alert(str(e.get("alert", "")), str(e.get("text", "")), e["time"])
            for e in events
            if e["event"] == "alert"
        ]
        return view


def _values(records: list[dict[str, Any]], key: str) -> list[float]:
    return [float(x) for r in records if isinstance(x := r.get(key), int | float)]


def recent_speed(records: list[dict[str, Any]]) -> float | None:
    """Return how fast the clock of the last records goes, per second; None before there is one."""
    known = [r for r in records if isinstance(r.get("time/wall_s"), int | float)]
    marks = [(moment_of(r), r["time/wall_s"]) for r in known]
    if not marks:
        return None
    # the clock starts with the run, at no frames
    (frames_then, then), (frames, now) = ([(0, 0.0), *marks][-SPEED_RECORDS:][0], marks[-1])
    return (frames - frames_then) / (now - then) if now > then else None


def sparkline(values: list[float], width: int = 16) -> str:
    """Return a curve of `width` characters: the mean of each stretch, from lowest to highest."""
    if not values:
        return ""
    size = max(len(values) / width, 1.0)
    edges = [round(i * size) for i in range(int(len(values) / size) + 1)]
    parts = [values[a:b] for a, b in pairwise(edges) if b > a]
    means = [sum(p) / len(p) for p in parts]
    low, high = min(means), max(means)
    if high <= low:
        return BARS[0] * len(means)
    return "".join(BARS[round((m - low) / (high - low) * (len(BARS) - 1))] for m in means)
