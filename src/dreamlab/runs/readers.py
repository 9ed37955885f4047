"""What a run directory says, read with care: its manifest, configuration, metrics and events.

Every part of the lab that wants one of these files reads it here. Intact parts are used, corruption
is reported: by an error that names the file, or, for lines, by their number.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dreamlab.core.clock import CLOCK, LATE, moment_of
from dreamlab.core.readers import (
    FileError,
    Lines,
    Record,
    is_number,
    read_json,
    read_jsonl,
    read_pointer,
    read_tail,
    read_yaml,
)

NOT_FINITE = ("nan", "inf", "-inf")
"""How metrics.jsonl encodes NaN and infinity."""
MOST_FRAMES = 2**62
LAST_TIME = 2.5e11
"""Seconds since 1970, up to the year 9999, the last that datetime can print."""


# -- manifest.json --------------------------------------------------------------------------------


def _is_time(value: Any) -> bool:
    return is_number(value) and 0 <= value < LAST_TIME


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and not any(isinstance(v, dict | list) for v in value)


ANY: dict[str, Any] = {}
CODE = {"commit": _is_text, "diff": _is_text}
FIELDS: dict[str, Any] = {
    **dict.fromkeys(("id", "name", "status", "created"), _is_text),
    **dict.fromkeys(("seed", "env_frames", "updates"), is_number),
    **dict.fromkeys(("last_return", "best_return", "last_eval", "best_eval"), is_number),
    "last_success": is_number,
    **dict.fromkeys(("command", "tags"), _is_list),
    **dict.fromkeys(("git", "project"), CODE),
    **dict.fromkeys(("versions", "hardware"), ANY),
    "wall_s": is_number,
    "heartbeat": _is_time,
    "final_eval": {"*": is_number},
    "cleaned": {"kinds": _is_list, "freed_bytes": is_number},
}
"""Types of the manifest's fields; fields of another type are ignored."""


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return a run's manifest: every field that is there is what its readers expect."""
    return _fitting(read_json(folder / "manifest.json"), FIELDS)


def _fitting(node: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in node.items():
        kind = fields.get(key, fields.get("*"))
        if isinstance(kind, dict):
            out |= {key: _fitting(value, kind)} if isinstance(value, dict) else {}
        elif kind is None or kind(value):
            out[key] = value
    return out


# -- config.yaml ----------------------------------------------------------------------------------


def read_config_node(folder: Path) -> dict[str, Any]:
    """Return a run's configuration as plain data."""
    return read_yaml(folder / "config.yaml")


def config_if_readable(folder: Path) -> dict[str, Any]:
    """Return the same for those who only look; nothing where there is nothing to read."""
    try:
        return read_config_node(folder)
    except FileError:
        return {}


def planned_count(config: Mapping[str, Any]) -> int | None:
    """Return the planned length of a run on its clock, if its phases define it."""
    training = config.get("training")
    if not isinstance(training, dict):
        return None
    if is_number(total := training.get("total_frames")) and total > 0:
        return int(total)
    phases = found if isinstance(found := training.get("phases"), list) else []
    known = [p for p in phases if isinstance(p, dict)]
    collects = any(p.get("duration_steps") is not None for p in known)
    lengths = [p.get("duration_steps" if collects else "duration_updates") for p in known]
    return sum(int(n) for n in lengths if is_number(n)) or None


# -- metrics.jsonl, events.jsonl ------------------------------------------------------------------


def is_metrics(record: Record) -> bool:
    """Return whether a record holds its env frames, and numbers beside them."""
    frames = record.get("env_frames")
    counts = (frames, record.get(CLOCK, 0))
    if not all(type(n) is int and 0 <= n < MOST_FRAMES for n in counts):
        return False
    return all(is_number(v) or (type(v) is str and v in NOT_FINITE) for v in record.values())


def is_event(record: Record) -> bool:
    """Return whether a record holds what happened, and when."""
    return _is_time(record.get("time")) and _is_text(record.get("event"))


def read_metrics(folder: Path) -> Lines:
    """Return the records of metrics.jsonl, in the order of the run's clock.

    A run never goes back. Where a line's count is corrupted, it does not fit between the others:
    the largest part that is in order stays. Those that say they are late are put into their place.
    """
    found = read_jsonl(folder / "metrics.jsonl", is_metrics)
    late = [r for r in found.records if LATE in r]
    rest = [r for r in found.records if LATE not in r]
    kept = in_order([moment_of(r) for r in rest])
    found.damaged += len(rest) - len(kept)
    found.records = sorted([*(rest[i] for i in kept), *late], key=moment_of)
    return found


def in_order(values: list[int]) -> list[int]:
    """Return the places of the longest part of a list that never falls."""
    ends: list[int] = []  # the lowest last value of a part with one, two, ... values
    places: list[int] = []
    before = [-1] * len(values)
    for i, value in enumerate(values):
        at = bisect_right(ends, value)
        before[i] = places[at - 1] if at else -1
        ends[at : at + 1], places[at : at + 1] = [value], [i]
    out: list[int] = []
    i = places[-1] if places else -1
    while i >= 0:
        out.append(i)
        i = before[i]
    return out[::-1]


def read_events(folder: Path) -> Lines:
    """Return the records of events.jsonl."""
    return read_jsonl(folder / "events.jsonl", is_event)


def newest_metrics(folder: Path) -> Record:
    """Return the newest value of each metric, from the end of the file alone."""
    return read_tail(folder / "metrics.jsonl", is_metrics)


# -- what is wrong --------------------------------------------------------------------------------


def problems(folder: Path) -> Iterator[str]:
    """Yield what is corrupted in a run directory, one line each; nothing is changed."""
    readers = (read_manifest, read_config_node, _pointers)
    for read in readers:
        try:
            read(folder)
        except FileError as error:
            yield str(error)
    for name, read_all in (("metrics", read_metrics), ("events", read_events)):
        try:
            yield from read_all(folder).told(folder / f"{name}.jsonl")
        except FileError as error:
            yield str(error)


def _pointers(folder: Path) -> None:
    for name in ("latest", "best"):
        path = folder / "checkpoints" / name
        if (target := read_pointer(path)) and not (path.parent / target).is_dir():
            raise FileError(path, f"names {target}, which does not exist")
