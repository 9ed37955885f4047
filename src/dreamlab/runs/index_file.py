"""The file of an index: a small SQLite database that is made, opened with care, and thrown away."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psutil

from dreamlab.runs.locks import held
from dreamlab.runs.run_row import COLUMNS, stamp_of

FILE = "index.sqlite"
ROOT = Path("experiments")
"""Default folder of runs."""
SCHEMA = 3
READ_S = 2.0
NETWORK = ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "gpfs", "beegfs", "fuse.sshfs")

TABLES = {
    "runs": ", ".join(f'"{name}" {kind}' for name, kind in COLUMNS.items()),
    "facts": "path TEXT PRIMARY KEY, facts TEXT",
}


class WrongSchemaError(sqlite3.DatabaseError):
    """The index was made by another version of this program."""

    def __init__(self, version: int) -> None:
        super().__init__(f"it has schema {version}, this program writes {SCHEMA}")
        self.version = version


class ForeignError(sqlite3.DatabaseError):
    """The file has the name of an index and is something else."""

    def __init__(self) -> None:
        super().__init__("it is not a run index")


def belongs(root: Path) -> bool:
    """Return whether a folder is to have an index without being asked."""
    return os.path.realpath(root) == os.path.realpath(ROOT)


def home_of(folder: Path) -> Path | None:
    """Return the nearest folder above a run that has an index or is to have one."""
    return next((p for p in folder.parents if belongs(p) or stamp_of(p / FILE)), None)


@contextmanager
def opened(root: Path, timeout_s: float) -> Iterator[sqlite3.Connection]:
    """Open a folder's index, made if there is none; raise `sqlite3.Error` if it cannot be used."""
    if not stamp_of(root / FILE):
        make(root, timeout_s)
    if not (root / FILE).is_file():  # a pipe would keep us waiting
        raise sqlite3.OperationalError("it is not a file")
    with held(root, shared=True, timeout_s=timeout_s) as shared:
        if not shared:
            raise sqlite3.OperationalError("another process is rebuilding it")
        with closing(connect(root, "rw", timeout_s)) as db:
            check_index(db)
            yield db


def check_index(db: sqlite3.Connection) -> None:
    """Raise if a database is not an index that this program wrote."""
    names = {str(name) for (name,) in db.execute("SELECT name FROM sqlite_master")}
    if {n for n in names if not n.startswith("sqlite_")} - TABLES.keys():
        raise ForeignError
    if (version := version_of(db)) != SCHEMA:
        raise WrongSchemaError(version)


def make(root: Path, timeout_s: float = READ_S) -> None:
    """Make the index of a folder, with nothing in it yet."""
    with held(root, timeout_s=timeout_s) as alone:
        if not alone:
            raise sqlite3.OperationalError("another process is rebuilding it")
        with closing(connect(root, "rwc", timeout_s)) as db:
            if version_of(db) == 0:
                _choose_journal(db, root)
                make_tables(db)


def connect(root: Path, mode: str, timeout_s: float) -> sqlite3.Connection:
    """Return a connection to a folder's index; `mode` is SQLite's (rw, rwc, ro)."""
    address = f"{Path(os.path.abspath(root / FILE)).as_uri()}?mode={mode}"
    db = sqlite3.connect(address, uri=True, timeout=timeout_s, isolation_level=None)
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute("PRAGMA trusted_schema = OFF")  # the file lies beside runs, and may come with them
    return db


def version_of(db: sqlite3.Connection) -> int:
    """Return the schema that an index says it has."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def make_tables(db: sqlite3.Connection) -> None:
    """Make what an index consists of."""
    with transaction(db):
        for name, columns in TABLES.items():
            db.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns})")
        db.execute(f"PRAGMA user_version = {SCHEMA}")


def _choose_journal(db: sqlite3.Connection, root: Path) -> None:
    """Use a write-ahead log, or a rollback journal where the former cannot work."""
    if not is_network(root):
        with suppress(sqlite3.OperationalError):
            if db.execute("PRAGMA journal_mode = WAL").fetchone()[0] == "wal":
                return
    db.execute("PRAGMA journal_mode = DELETE")


def is_network(folder: Path) -> bool:
    """Return whether a folder lies on a file system that several machines share."""
    try:
        mounts = psutil.disk_partitions(all=True)
    except OSError:
        return False
    place = folder.resolve()
    above = [(len(m.mountpoint), m.fstype) for m in mounts if place.is_relative_to(m.mountpoint)]
    return bool(above) and max(above)[1] in NETWORK


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Write everything that is done inside, or nothing."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        with suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def remove(root: Path) -> bool:
    """Delete a folder's index if unused; return whether that was possible."""
    with held(root, timeout_s=READ_S) as alone:
        if not alone or _is_foreign(root):
            return False
        try:
            for suffix in ("", "-wal", "-shm", "-journal"):
                (root / f"{FILE}{suffix}").unlink(missing_ok=True)
        except OSError:
            return False
    return True


def _is_foreign(root: Path) -> bool:
    """Return whether the file is a database of another program."""
    try:
        with closing(connect(root, "ro", READ_S)) as db:
            check_index(db)
    except sqlite3.Error as error:
        return isinstance(error, ForeignError)
    return False
