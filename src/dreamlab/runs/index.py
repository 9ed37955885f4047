"""An index of run directories in SQLite, beside them: `index.sqlite`.

The run directories are authoritative. Whoever reads the index first compares it with them, so that
it may be lost, stale or corrupted at any time; whoever writes it gives up rather than wait. It is
made in the folder `experiments` and where requested, nowhere else.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dreamlab.runs.index_file import (
    FILE,
    READ_S,
    SCHEMA,
    TABLES,
    ForeignError,
    WrongSchemaError,
    belongs,
    check_index,
    connect,
    home_of,
    make_tables,
    opened,
    remove,
    transaction,
)
from dreamlab.runs.readers import config_if_readable, problems
from dreamlab.runs.run_row import (
    BROKEN,
    COLUMNS,
    Row,
    facts_of,
    live_status,
    manifest_stamp,
    read_row,
    row_of,
    stamp_of,
)

BEAT_S = 1.0
"""Minimum interval between writes of a run, unless its status changes."""
BEAT_SHARE = 0.01
"""Maximum share of time spent writing, also on a slow disk."""
RETRY_S = 30.0
"""Wait after a failed write before the next attempt."""
WRITE_S = 0.25
"""Maximum time that training waits for other writers."""
CHUNK = 200
"""Runs per transaction; short transactions keep waits short."""
PUT_RUN = f"INSERT OR REPLACE INTO runs VALUES ({', '.join('?' * len(COLUMNS))})"
PUT_FACTS = "INSERT OR REPLACE INTO facts VALUES (?, ?)"


# -- reading --------------------------------------------------------------------------------------


Progress = Callable[[int, int], None]
"""Progress callback: changed runs read, and their total."""


def _silent(done: int, total: int) -> None:
    pass


@dataclass(frozen=True)
class Listing:
    """The runs below a folder, and what was found out on the way."""

    rows: list[Row]
    notes: list[str]
    read: int
    """Number of changed manifests that were read."""


def read(
    root: Path, paths: Sequence[str] = (), progress: Progress = _silent, *, make: bool = False
) -> Listing:
    """Return every run below a folder as its files are now, with the facts under `paths`.

    A corrupted or older index is rebuilt, and a missing one where it belongs or with `make`. One
    that cannot be written is copied into memory and brought up to date there.
    """
    there, ours = bool(stamp_of(root / FILE)), make or belongs(root)
    if not there and next(scan(root), None) is None:
        return Listing([], [], 0)
    notes: list[str] = []
    for _ in range(2 if there or ours else 0):
        try:
            with opened(root, READ_S) as db:
                changed = _bring_up_to_date(db, root, progress)
                return _listing(db, root, paths, notes, changed)
        except (sqlite3.Error, OSError, ValueError) as error:  # the last: a column that is no JSON
            if _is_useless(error, ours) and remove(root):
                notes = [f"{root / FILE} is unusable ({error}) and will be rebuilt"]
                continue
            notes = [f"{root / FILE} cannot be used ({error}): reading the run directories instead"]
            break
    with closing(_in_memory(root)) as db:
        changed = _bring_up_to_date(db, root, progress)
        return _listing(db, root, paths, notes, changed)


def _is_useless(error: Exception, ours: bool) -> bool:
    """Return whether an index cannot get better: corrupted, or of an older version.

    What is not a database at all is an index only where there has to be one.
    """
    if isinstance(error, ForeignError):
        return False
    if isinstance(error, ValueError):
        return True
    if isinstance(error, WrongSchemaError):
        return error.version < SCHEMA
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    damaged = code == sqlite3.SQLITE_CORRUPT or (ours and code == sqlite3.SQLITE_NOTADB)
    return damaged or "no such " in str(error)


def _in_memory(root: Path) -> sqlite3.Connection:
    """Return an index that is lost when closed, started with what the one on the disk has."""
    ways = ["ro"] if stamp_of(root / f"{FILE}-wal") else ["ro", "ro&immutable=1"]
    for way in ways:
        with suppress(sqlite3.Error):
            return _copied(root, way)
    return _empty()


def _copied(root: Path, way: str) -> sqlite3.Connection:
    with closing(connect(root, way, READ_S)) as disk:
        check_index(disk)
        db = _empty()
        for name in TABLES:
            rows = disk.execute(f"SELECT * FROM {name}").fetchall()
            marks = ", ".join("?" * (len(COLUMNS) if name == "runs" else 2))
            db.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
    return db


def _empty() -> sqlite3.Connection:
    db = sqlite3.connect(":memory:", isolation_level=None)
    make_tables(db)
    return db


def _listing(
    db: sqlite3.Connection, root: Path, paths: Sequence[str], notes: Sequence[str], changed: int
) -> Listing:
    rows, now = list(_rows(db, paths)), time.time()
    for row in rows:
        row["folder"] = os.path.join(root, row["path"])
        row["status"] = live_status(row, row["folder"], now)
        row["tags"] = json.loads(row["tags"]) if row["tags"] != "[]" else []
    return Listing(rows, [*notes, *_doubts(rows)], changed)


def _doubts(rows: Iterable[Row]) -> Iterator[str]:
    """Say which runs are there twice, and which cannot be read."""
    homes: dict[str, list[str]] = {}
    for row in rows:
        if row["id"]:
            homes.setdefault(row["id"], []).append(row["folder"])
        if row["status"] == BROKEN:
            yield next(problems(Path(row["folder"])), f"{row['folder']} is corrupted")
    for name, folders in homes.items():
        if len(folders) > 1:
            yield f"run {name} exists {len(folders)} times: {', '.join(sorted(folders))}"


def _rows(db: sqlite3.Connection, paths: Sequence[str]) -> Iterator[Row]:
    names = [f'runs."{c}"' for c in COLUMNS]
    wanted = [f'$."{p}"' for p in paths for _ in range(2)]
    names += ["json_type(facts.facts, ?), json_extract(facts.facts, ?)"] * len(paths)
    query = f"SELECT {', '.join(names)} FROM runs"
    if paths:
        query += " LEFT JOIN facts USING (path)"
    size = len(COLUMNS)
    for values in db.execute(query, wanted):
        row: Row = dict(zip(COLUMNS, values[:size], strict=True))
        for i, path in enumerate(paths):
            kind, value = values[size + 2 * i : size + 2 * i + 2]
            row[path] = _plain(kind, value)
        yield row


def _plain(kind: str | None, value: Any) -> Any:
    """Return a value of SQLite's JSON as Python would have read it."""
    if kind in ("true", "false"):
        return kind == "true"
    return json.loads(value) if kind in ("array", "object") else value


def known_paths(root: Path) -> set[str]:
    """Return the path of every fact of every run below a folder."""
    query = "SELECT DISTINCT key FROM facts, json_each(facts.facts)"
    with suppress(sqlite3.Error, OSError):
        if stamp_of(root / FILE):
            with opened(root, READ_S) as db:
                return {str(key) for (key,) in db.execute(query)}
    return {p for path, _ in scan(root) for p in read_row(root / path)[1]}


def scan(root: Path) -> Iterator[tuple[str, str]]:
    """Yield every run below a folder, as a relative path, with the stamp of its manifest."""
    waiting, seen = [""], set[tuple[int, int]]()
    while waiting:
        inside = waiting.pop()
        try:
            entries = list(os.scandir(root / inside))
        except OSError:
            continue
        for entry in entries:
            if entry.name.startswith(".") or not entry.is_dir() or not _is_utf8(entry.name):
                continue
            path = f"{inside}/{entry.name}" if inside else entry.name
            if stamp := manifest_stamp(entry.path):
                yield path, stamp
                continue
            stat = os.stat(entry.path)
            if (key := (stat.st_dev, stat.st_ino)) not in seen:  # a link may lead back up
                seen.add(key)
                waiting.append(path)


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _bring_up_to_date(db: sqlite3.Connection, root: Path, progress: Progress) -> int:
    """Read what changed in the folders since the index was written; return how many runs."""
    # what is known first: a run that starts meanwhile must not be taken for one that is gone
    known = dict(
        db.execute(
            "SELECT runs.path, CASE WHEN facts.path IS NULL THEN '' ELSE stamp END "
            "FROM runs LEFT JOIN facts USING (path)"
        )
    )
    there = dict(scan(root))
    if gone := [(path,) for path in known if path not in there]:
        with transaction(db):
            db.executemany("DELETE FROM runs WHERE path = ?", gone)
            db.executemany("DELETE FROM facts WHERE path = ?", gone)
    changed = [path for path, stamp in there.items() if known.get(path) != stamp]
    for start in range(0, len(changed), CHUNK):
        progress(start, len(changed))
        chunk = changed[start : start + CHUNK]
        found = [(path, *read_row(root / path)) for path in chunk]
        with transaction(db):
            for path, row, details in found:
                _put(db, {**row, "path": path}, details)
    return len(changed)


def _put(db: sqlite3.Connection, row: Row, details: dict[str, Any] | None) -> None:
    db.execute(PUT_RUN, [row[c] for c in COLUMNS])
    if details is not None:
        db.execute(PUT_FACTS, (row["path"], json.dumps(details, default=str)))


# -- writing --------------------------------------------------------------------------------------


class Entry:
    """A run's own line in the index; whatever happens to the index, the run continues."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(os.path.abspath(folder))
        self.config: dict[str, Any] | None = None
        self.status: str | None = None
        self.due = 0.0
        self.told = False

    @cached_property
    def home(self) -> Path | None:
        """The folder with the index that the run has a line in."""
        return home_of(self.folder)

    def write(self, manifest: dict[str, Any]) -> str | None:
        """Write the run's line if that is due; return what went wrong, but only once."""
        status, now = manifest.get("status"), time.monotonic()
        if "id" not in manifest or (status == self.status and now < self.due) or not self.home:
            return None
        details = None
        if self.config is None:
            self.config = config_if_readable(self.folder)
            details = facts_of(manifest, self.config)
        stamp = stamp_of(self.folder / "manifest.json")
        path = str(self.folder.relative_to(self.home))
        row = {**row_of(manifest, self.config), "path": path, "stamp": stamp}
        self.status, problem = status, None
        try:
            with opened(self.home, WRITE_S) as db, transaction(db):
                _put(db, row, details)
            self.due = now + max(BEAT_S, (time.monotonic() - now) / BEAT_SHARE)
        except (sqlite3.Error, OSError) as error:
            self.due = now + RETRY_S
            problem = None if self.told else f"{self.home / FILE}: {error}"
            self.told = True
        return problem
