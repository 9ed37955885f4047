"""The legs of a run, from its events: stretches between which its length was changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from dreamlab.core.clock import CLOCK
from dreamlab.core.readers import Record
from dreamlab.runs.readers import read_events

UNKNOWN = -1
"""A length that was not recorded: older versions name only the new one."""


@dataclass(frozen=True)
class Moment:
    """A place in a run: its clock, and its updates where they were recorded."""

    count: int = 0
    updates: int | None = None

    def reaches(self, other: Moment) -> bool:
        """Return whether this is the same moment, as far as is known, or a later one."""
        if self.count != other.count or self.updates is None or other.updates is None:
            return self.count >= other.count
        return self.updates >= other.updates


@dataclass(frozen=True)
class Leg:
    """A stretch of training that another one followed."""

    total_frames: int | None
    end: Moment
    finished: bool
    """It was trained to its end; else it was left at that moment."""


@dataclass(frozen=True)
class _Begun:
    at: Moment = Moment()
    total: int | None = UNKNOWN


def former_legs(folder: Path) -> list[Leg]:
    """Return the legs of a run before its last; that one has the length in `config.yaml`."""
    return legs_of(read_events(folder).records)


def legs_of(events: Iterable[Record]) -> list[Leg]:
    """Return all legs but the last; what was undone by a resume from an older checkpoint is none.

    Lengths matter: schedules follow the completed fraction, and a run that ends writes a record.
    """
    begun, ends, before = [_Begun()], list[Moment](), ""
    for event in events:
        kind, at = event["event"], moment_in(event)
        if kind == "resumed" and at is not None:
            ends = [end for end in ends if at.reaches(end)]
            begun = [*(b for b in begun if not b.at.reaches(at)), _Begun(at, begun[-1].total)]
        elif kind == "finished" and at is not None:
            ends.append(at)
        elif kind == "extended" and before == "resumed":
            begun = _extended(event, begun, ends)
        elif kind == "extended":  # it began again: there was no checkpoint to resume from
            begun, ends = _extended(event, [_Begun()], []), []
        before = before if kind == "message" else kind
    return list(_legs(begun, ends))


def moment_in(event: Record) -> Moment | None:
    """Return when in the training something happened; None if it does not say."""
    count, updates = event.get(CLOCK, event.get("env_frames")), event.get("updates")
    if type(count) is not int:
        return None
    return Moment(count, updates if type(updates) is int else None)


def _extended(event: Record, begun: list[_Begun], ends: list[Moment]) -> list[_Begun]:
    """Return the legs with the new length of the one just begun, and the length before it."""
    here, total = begun[-1].at, event.get("total_frames")
    if not _is_length(total):
        return begun
    known = event.get("before", UNKNOWN)
    if known == UNKNOWN or not _is_length(known):  # where it ended tells how long it was
        known = here.count if any(_same(here, end) for end in ends) else total
    former = [replace(b, total=known) if b.total == UNKNOWN else b for b in begun[:-1]]
    return [*former, _Begun(here, total)]


def _is_length(value: Any) -> bool:
    return value is None or (type(value) is int and value > 0)


def _same(one: Moment, other: Moment) -> bool:
    return one.reaches(other) and other.reaches(one)


def _legs(begun: list[_Begun], ends: list[Moment]) -> Iterator[Leg]:
    """Yield the legs that another one follows; a resume to the same length makes none."""
    for one, following in pairwise(begun):
        if one.total != following.total:
            at = following.at
            yield Leg(one.total, at, any(_same(at, end) for end in ends))
