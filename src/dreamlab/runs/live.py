"""What running runs look like right now, read from their folders while they write."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from dreamlab.runs.find import runs_under
from dreamlab.runs.rows import live_status, read_config, read_row

BARS = "▁▂▃▄▅▆▇█"


class Tail:
    """Reads the lines that were appended to a JSONL file since the last look."""

    def __init__(self, path: Path) -> None:
        self.path, self.at = path, 0
        self.records: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        """Return every whole record; a file that was cut back (a resume) is read anew."""
        try:
            size = self.path.stat().st_size
            if size < self.at:
                self.at, self.records = 0, []
            with self.path.open("rb") as file:
                file.seek(self.at)
                new = file.read()
        except OSError:
            return self.records
        whole = new[: new.rfind(b"\n") + 1]
        self.at += len(whole)
        for line in whole.splitlines():
            try:
                self.records.append(json.loads(line))
            except ValueError:
                continue
        return self.records


@dataclass
class View:
    """One run at one moment."""

    folder: Path
    name: str
    seed: int | None
    status: str
    frames: int
    total: int | None
    returns: list[float] = field(default_factory=list)
    speed: float | None = None
    age_s: float | None = None
    alerts: list[str] = field(default_factory=list)

    @property
    def last(self) -> float | None:
        return self.returns[-1] if self.returns else None

    @property
    def best(self) -> float | None:
        return max(self.returns, default=None)

    @property
    def eta_s(self) -> float | None:
        """Return the seconds left at the present speed; None where nobody can know."""
        if self.status != "running" or not self.speed or self.total is None:
            return None
        return max(self.total - self.frames, 0) / self.speed


class Watcher:
    """Looks at the runs below some folders again and again, reading only what is new."""

    def __init__(self, roots: Iterable[Path]) -> None:
        self.roots = list(roots)
        self.tails: dict[Path, tuple[Tail, Tail]] = {}

    def look(self, everything: bool = False) -> list[View]:
        """Return the runs that are going on, or all of them, the latest first."""
        views = [self._view(folder) for root in self.roots for folder in runs_under(root)]
        shown = [v for v in views if everything or v.status == "running"]
        return sorted(shown, key=lambda v: (v.status != "running", v.age_s or 0.0, str(v.folder)))

    def _view(self, folder: Path) -> View:
        row, _ = read_row(folder)
        status = live_status(row, folder, time.time())
        heartbeat = row.get("heartbeat")
        age = None if heartbeat is None else max(time.time() - float(heartbeat), 0.0)
        view = View(
            folder, str(row.get("name") or folder.name), row.get("seed"), status,
            int(row.get("frames") or 0), total_frames(read_config(folder)), age_s=age,
        )  # fmt: skip
        if folder not in self.tails:
            self.tails[folder] = (Tail(folder / "metrics.jsonl"), Tail(folder / "events.jsonl"))
        metrics, events = (tail.read() for tail in self.tails[folder])
        view.returns = [x for r in metrics if (x := _return(r)) is not None]
        if metrics:
            view.frames = max(view.frames, int(metrics[-1].get("env_frames", 0)))
            speed = metrics[-1].get("time/frames_per_s")
            view.speed = float(speed) if isinstance(speed, int | float) else None
        view.alerts = [f"{e['alert']}: {e['text']}" for e in events if e.get("event") == "alert"]
        return view


def _return(record: dict[str, Any]) -> float | None:
    for key in ("episode/return", "eval/return"):
        if isinstance(value := record.get(key), int | float):
            return float(value)
    return None


def total_frames(config: dict[str, Any]) -> int | None:
    """Return how many env frames a run is meant to have, if its phases say so."""
    training = config.get("training") or {}
    if training.get("total_frames"):
        return int(training["total_frames"])
    steps = [p.get("duration_steps") for p in training.get("phases") or [] if isinstance(p, dict)]
    known = [int(s) for s in steps if s]
    return sum(known) if known else None


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
