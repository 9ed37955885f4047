"""What happened in a run, as lines to read: its events and metrics, in order."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dreamlab.core.clock import CLOCK, unit_of
from dreamlab.core.readers import Record, read_lines, size_of
from dreamlab.core.text import one_line
from dreamlab.runs.readers import is_event, is_metrics

SHOWN = ("episode/return", "eval/return", "eval/success", "train/loss", "time/frames_per_s")
STOPS = ("finished", "interrupted", "failed")
POLL_S = 0.5


@dataclass(frozen=True)
class Line:
    """One event or one record of metrics, and when it was written."""

    time: float
    kind: str
    data: Record

    def text(self) -> str:
        """Return the line for a person."""
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.time))
        told = " ".join(_told(self.kind, self.data).splitlines())
        return one_line(f"{clock}  {self.kind:11s} {told}")

    def plain(self) -> Record:
        """Return the line for a program."""
        return {"time": self.time, "kind": self.kind, **self.data}


class Story:
    """A run's events and metrics so far, and those that are still to come."""

    def __init__(self, folder: Path) -> None:
        self.files = {name: folder / f"{name}.jsonl" for name in ("events", "metrics")}
        self.ends = dict.fromkeys(self.files, 0)
        self.damage: list[str] = []
        """Unreadable files and lines."""

    def so_far(self) -> list[Line]:
        """Return the lines of a run in the order in which they happened."""
        events, records = self._new("events"), self._new("metrics")
        told = [*_dated(records, events), *(_event(e) for e in events)]
        return sorted(told, key=lambda line: line.time)

    def to_come(self, goes_on: Callable[[], bool]) -> Iterator[Line]:
        """Yield what is written after that, until the run ends."""
        while True:
            alive = goes_on()  # before reading: what the run wrote last is still shown
            yield from (_event(data) for data in self._new("events"))
            yield from (Line(time.time(), "metrics", data) for data in self._new("metrics"))
            if not alive:
                return
            time.sleep(POLL_S)

    def _new(self, name: str) -> list[Record]:
        path = self.files[name]
        end = min(self.ends[name], size_of(path))  # a resume cuts metrics back
        found = read_lines(path, is_event if name == "events" else is_metrics, end)
        self.ends[name] = found.end
        self.damage += found.told(path)
        return found.records


def _event(data: Record) -> Line:
    rest = {k: v for k, v in data.items() if k not in ("time", "event")}
    return Line(float(data["time"]), data["event"], rest)


def _dated(records: list[Record], events: list[Record]) -> list[Line]:
    """Return records with the time of day, which they do not hold.

    A record knows the seconds of training before it. They are added to the time at which its
    stretch started: the run's first event, or the last resume at fewer frames than it has. No
    record is later than the end of its stretch.
    """
    starts = [e for i, e in enumerate(events) if e.get("event") == "resumed" or i == 0]
    stops = sorted(_number(e.get("time")) for e in events if e.get("event") in STOPS)
    seconds = [_number(r.get("time/wall_s")) for r in records]
    frames = [_moment(r) for r in records]
    out: list[Line] = []
    for record, second, frame in zip(records, seconds, frames, strict=True):
        later = [s for s in starts[1:] if _moment(s) < frame]
        base = (later or starts[:1] or [{}])[-1]
        # seconds of training when the stretch started: those of the last record before it
        at = bisect_right(frames, _moment(base)) if later else 0
        spent = seconds[at - 1] if at else 0.0
        began = _number(base.get("time"))
        ends = [t for t in stops if t >= began] or [math.inf]
        out.append(Line(min(began + max(second - spent, 0.0), ends[0]), "metrics", record))
    return out


def _told(kind: str, data: Record) -> str:
    if kind == "metrics":
        shown = [f"{k} {_short(data[k])}" for k in SHOWN if k in data]
        return " | ".join([f"{int(_moment(data)):,} {unit_of(data)}", *shown])
    hidden = ("text", "error", "traceback")  # a traceback is for programs: `--json` has it
    text = [f"{k} {_short(v)}" for k, v in data.items() if k not in hidden]
    return " | ".join([*text, *(str(data[k]) for k in ("text", "error") if k in data)])


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _moment(data: Record) -> float:
    return _number(data.get(CLOCK, data.get("env_frames")))


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
