"""Questions about runs: filters, order, and which run a name means."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dreamlab.core.errors import LabError, unknown
from dreamlab.runs import index
from dreamlab.runs.find import ROOT, is_run
from dreamlab.runs.run_row import COLUMNS, Row, live_status, read_row

OPERATORS = ("!=", ">=", "<=", "=", ">", "<", "~")
HIDDEN = ("path", "stamp")
KEYS = [*(c for c in COLUMNS if c not in HIDDEN), "folder", "tag"]


Reader = Callable[[Path, Sequence[str]], index.Listing]


class NothingFoundError(LabError):
    """There is no such run."""


@dataclass(frozen=True)
class Filter:
    """A condition on one column of a run, or on one path of its configuration."""

    key: str
    operator: str
    value: str

    def accepts(self, row: Row) -> bool:
        """Return whether a run fulfils the condition; what is not known fulfils only `!=`."""
        value, wanted = row[self.key], self.value
        if self.key == "tags":
            return self._accepts_tags(value)
        if self.key == "algorithm":
            value, wanted = _bare(value or ""), _bare(wanted)
        if self.operator in ("=", "!="):
            return (_same(value, wanted)) == (self.operator == "=")
        if value is None:
            return False
        if self.operator == "~":
            return wanted in as_text(value)
        return self._accepts_order(value)

    def _accepts_order(self, value: Any) -> bool:
        a: Any = _number(value)
        b: Any = _number(self.value)
        if isinstance(value, int | float) and b is None:
            raise LabError(f"--filter {self.key}{self.operator}{self.value}: that is not a number")
        if a is None or b is None:
            a, b = as_text(value), self.value
        return {">": a > b, ">=": a >= b, "<": a < b, "<=": a <= b}[self.operator]

    def _accepts_tags(self, tags: list[str]) -> bool:
        if self.operator == "~":
            return any(self.value in t for t in tags)
        if self.operator not in ("=", "!="):
            raise LabError(f"--filter tag{self.operator}{self.value}: tags support only = != and ~")
        return (self.value in tags) == (self.operator == "=")


def parse_filter(text: str) -> Filter:
    """Return the condition that a user wrote, such as `return>400` or `env.num_envs<=8`."""
    match = re.match(r"\s*([\w.-]+?)\s*(!=|>=|<=|=|>|<|~)\s*(.*?)\s*$", text)
    if match is None:
        raise LabError(
            f"--filter {text!r}: expected KEY, one of {' '.join(OPERATORS)} and a value, e.g. "
            f"'return>400' or algorithm=ppo"
        )
    key, operator, value = match.groups()
    return Filter({"tag": "tags"}.get(key, key), operator, value)


def as_text(value: Any) -> str:
    """Return a value as it is written in a configuration."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(as_text(v) for v in value)}]"
    return str(value)


def _same(value: Any, wanted: str) -> bool:
    numbers = _number(value), _number(wanted)
    if None not in numbers:
        return numbers[0] == numbers[1]
    return as_text(value) == (wanted.replace(" ", "") if isinstance(value, list) else wanted)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _bare(name: str) -> str:
    """Return an algorithm's name without what people write differently: dreamer_v3, DreamerV3."""
    return re.sub(r"[_-]", "", name).lower()


@dataclass(frozen=True)
class Answer:
    """The runs that a question found, and what should be said about them."""

    rows: list[Row]
    notes: list[str]


def ask(
    roots: Sequence[Path],
    filters: Sequence[Filter] = (),
    sort: str = "",
    reverse: bool = False,
    read: Reader = index.read,
) -> Answer:
    """Return the runs below these folders that fulfil every filter, in order.

    Without `sort` the newest come first; numbers are sorted from the highest, texts from A.
    """
    sort = {"tag": "tags"}.get(sort, sort)
    keys = [f.key for f in filters] + ([sort] if sort else [])
    paths = sorted({k for k in keys if k not in COLUMNS and k != "folder"})
    found: dict[str, Row] = {}
    notes: list[str] = []
    for root in roots:
        rows, said = _below(root, paths, read)
        home = root.resolve().parent if is_run(root) else root.resolve()
        found.update({f"{home}/{r['path']}": r for r in rows})
        notes += said
    rows = list(found.values())
    if rows:
        _check_keys(paths, rows, roots)
    rows = [r for r in rows if all(f.accepts(r) for f in filters)]
    return Answer(order(rows, sort, reverse), list(dict.fromkeys(notes)))


def _below(
    root: Path, paths: Sequence[str], read: Reader = index.read
) -> tuple[list[Row], list[str]]:
    if is_run(root):
        return [_alone(root, paths)], []
    if not root.is_dir():
        raise NothingFoundError(f"{root}: no such folder")
    listing = read(root, paths)
    return listing.rows, listing.notes


def _alone(folder: Path, paths: Iterable[str] = ()) -> Row:
    """Return a run's row from its folder only."""
    row, facts = read_row(folder)
    row |= {"folder": str(folder), "path": folder.resolve().name, "tags": json.loads(row["tags"])}
    row |= {p: facts.get(p) for p in paths}
    return {**row, "status": live_status(row, folder, time.time())}


def _check_keys(paths: Iterable[str], rows: Sequence[Row], roots: Iterable[Path]) -> None:
    """Raise if no run knows a key."""
    missing = [p for p in paths if all(r[p] is None for r in rows)]
    if not missing:
        return
    known: set[str] = set()
    for root in roots:
        known |= set(read_row(root)[1]) if is_run(root) else index.known_paths(root)
    for path in missing:
        if path not in known:
            text = unknown("column or option", path, [*KEYS, *known], "--filter, --sort")
            short = text.partition("\n")[0]
            raise LabError(f"{short}\n  columns: {', '.join(sorted(KEYS))}")


def order(rows: Sequence[Row], sort: str, reverse: bool = False) -> list[Row]:
    """Return rows sorted by one key; those that do not know it come last."""
    if not sort:
        return sorted(rows, key=lambda r: r["created"] or "", reverse=not reverse)
    known = [r for r in rows if r[sort] is not None]
    unknown_rows = [r for r in rows if r[sort] is None]
    numbers = all(isinstance(r[sort], int | float) for r in known)
    if numbers:
        return sorted(known, key=lambda r: r[sort], reverse=not reverse) + unknown_rows
    return sorted(known, key=lambda r: as_text(r[sort]), reverse=reverse) + unknown_rows


def matches(name: str, root: Path = ROOT) -> Answer:
    """Return the runs that a name means: a folder, an id or its beginning, or a run's name.

    Several rows mean that one run is there several times (a copied folder).
    """
    if is_run(Path(name)):
        return Answer([_alone(Path(name))], [])
    rows, notes = _below(root, ()) if root.is_dir() else ([], [])
    ways = (
        lambda r: r["id"] == name,
        lambda r: Path(r["folder"]).name == name,
        lambda r: r["name"] == name,
        lambda r: r["id"].startswith(name),
    )
    for way in ways:
        if found := [r for r in rows if name and way(r)]:
            return Answer(_one_run(name, found), notes)
    raise NothingFoundError(
        f"there is no run {name!r}: not a run directory, nor the id or name of a run in {root}"
    )


def _one_run(name: str, rows: list[Row]) -> list[Row]:
    if len({r["id"] for r in rows}) == 1:
        return rows
    some = "\n  ".join(f"{r['id'][:8]}  {r['folder']}" for r in order(rows, "")[:10])
    raise LabError(
        f"{name!r} is ambiguous: {len(rows)} runs match; use an id or a folder:\n  {some}"
    )


def find_run(name: str, root: Path = ROOT) -> Path:
    """Return the folder of the one run that a name means."""
    found = matches(name, root).rows
    if len(found) > 1:
        folders = ", ".join(r["folder"] for r in found)
        raise LabError(f"run {name} exists {len(found)} times; use its folder: {folders}")
    return Path(found[0]["folder"])
