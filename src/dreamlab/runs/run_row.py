"""One run as one row: what the index keeps of its manifest and configuration."""

from __future__ import annotations

import hashlib
import json
import math
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dreamlab.core.readers import FileError, MissingFileError, is_number
from dreamlab.runs.locks import is_writing
from dreamlab.runs.options import counts, flatten
from dreamlab.runs.readers import read_config_node, read_manifest

Row = dict[str, Any]

COLUMNS = {
    "path": "TEXT PRIMARY KEY",
    "stamp": "TEXT",
    "id": "TEXT",
    "name": "TEXT",
    "tags": "TEXT",
    "algorithm": "TEXT",
    "workflow": "TEXT",
    "env": "TEXT",
    "seed": "INTEGER",
    "status": "TEXT",
    "frames": "INTEGER",
    "updates": "INTEGER",
    "return": "REAL",
    "best_return": "REAL",
    "last_return": "REAL",
    "success": "REAL",
    "wall_s": "REAL",
    "created": "TEXT",
    "heartbeat": "REAL",
    "config_hash": "TEXT",
    "commit": "TEXT",
    "diff": "TEXT",
}
"""`path` is relative to the index, `stamp` detects changes of the manifest."""

STALE_S = 60.0
"""A run without updates for longer is alive only if a process holds its lock."""
GOING = ("created", "running")
BROKEN = "broken"


def stamp_of(path: Path | str) -> str:
    """Return what changes whenever a file is written again; empty if it is not there."""
    try:
        stat = os.stat(path)
    except OSError:
        return ""
    return f"{stat.st_mtime_ns}:{stat.st_size}:{stat.st_ino}"


def manifest_stamp(folder: Path | str) -> str:
    """Return the stamp of a run's manifest; empty if the folder is not a run's.

    A manifest that cannot be looked at (a link that leads to itself) makes a run as well.
    """
    path = f"{folder}/manifest.json"
    return stamp_of(path) or (BROKEN if os.path.lexists(path) else "")


def read_row(folder: Path) -> tuple[Row, dict[str, Any]]:
    """Return a run's row and its facts: configuration, versions and hardware by path.

    What cannot be read is left out; a run whose manifest or configuration is corrupted is `broken`.
    """
    stamp = manifest_stamp(folder)  # before reading: a later change is seen next time
    config: dict[str, Any] = {}
    try:
        manifest = read_manifest(folder)
    except FileError:
        manifest = {"id": "", "name": folder.name, "status": BROKEN}
    try:
        config = read_config_node(folder)
    except MissingFileError:
        pass
    except FileError:
        manifest["status"] = BROKEN
    return {**row_of(manifest, config), "stamp": stamp}, facts_of(manifest, config)


def row_of(manifest: dict[str, Any], config: dict[str, Any]) -> Row:
    """Return the columns that a manifest and a configuration fill."""
    target = _text(_dict(config.get("workflow")).get("_target_"))
    git = _dict(manifest.get("git"))
    return {
        "id": _text(manifest.get("id")) or "",
        "name": _text(manifest.get("name")) or "",
        "tags": json.dumps(tags_of(manifest, config)),
        "algorithm": target.rpartition(".")[2].lower() if target else None,
        "workflow": target,
        "env": _text(_dict(config.get("env")).get("id")),
        "seed": _number(manifest.get("seed")),
        "status": _text(manifest.get("status")) or BROKEN,
        "frames": _number(manifest.get("env_frames")),
        "updates": _number(manifest.get("updates")),
        **scores_of(manifest),
        "wall_s": _number(manifest.get("wall_s")),
        "created": _utc(manifest.get("created")),
        "heartbeat": _number(manifest.get("heartbeat")),
        "config_hash": config_hash(config) if config else None,
        "commit": _text(git.get("commit")),
        "diff": _short_hash(git),
    }


def scores_of(manifest: dict[str, Any]) -> dict[str, float | None]:
    """Return how well a run does: as evaluated, or as training went where nothing was evaluated."""
    last, best = _number(manifest.get("last_return")), _number(manifest.get("best_return"))
    measured = _dict(manifest.get("final_eval"))
    final, rate = (_number(measured.get(k)) for k in ("eval/return", "eval/success"))
    seen, success = _number(manifest.get("last_eval", final)), manifest.get("last_success", rate)
    if seen is not None:
        best = best_of(manifest.get("best_eval"), final, seen)
    else:
        seen, best = last, best_of(best, last)
    told = {"return": seen, "best_return": best, "last_return": last}
    return {**told, "success": _number(success)}


def best_of(*returns: Any) -> float | None:
    """Return the highest of those that are finite numbers."""
    known = [r for r in (_number(r) for r in returns) if r is not None]
    return max(known, default=None)


def tags_of(manifest: dict[str, Any], config: dict[str, Any]) -> list[str]:
    """Return a run's tags: those of its manifest, or those it was started with."""
    tags = manifest.get("tags", _dict(config.get("run")).get("tags"))
    return [str(t) for t in tags] if isinstance(tags, list) else []


def config_hash(config: dict[str, Any]) -> str:
    """Return a short hash of what the numbers depend on: not of names, folders and logs."""
    kept = {k: v for k, v in config.items() if counts(k, "name")}
    text = json.dumps(_with_text_keys(kept), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def facts_of(manifest: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """Return configuration, versions and hardware as one table, by path."""
    extra = {k: v for k in ("versions", "hardware") if (v := _dict(manifest.get(k)))}
    if project := _dict(manifest.get("project")):
        extra["project"] = {"commit": project.get("commit"), "diff": _short_hash(project)}
    found = flatten({**config, **extra})
    finite = {k: v for k, v in found.items() if not isinstance(v, float) or math.isfinite(v)}
    return {**{k: str(v) for k, v in found.items()}, **finite}


def _with_text_keys(node: Any) -> Any:
    """Return a tree whose keys can be sorted; YAML has numbers among them."""
    if isinstance(node, dict):
        return {str(k): _with_text_keys(v) for k, v in node.items()}
    return [_with_text_keys(v) for v in node] if isinstance(node, list) else node


def live_status(row: Row, folder: Path | str, now: float) -> str:
    """Return a run's status: `crashed` if it claims to be running and no process runs it."""
    if row["status"] not in GOING:
        return row["status"]
    alive = heard_of(row, now) or is_writing(Path(folder))
    return row["status"] if alive else "crashed"


def heard_of(row: Row, now: float, patience_s: float = STALE_S) -> bool:
    """Return whether a run says that it continues, and has said so recently.

    Whoever destroys what is not alive has more patience: the folder's lock may be another machine's
    and not be seen here. A heartbeat far in the future (a clock was set back) tells nothing.
    """
    heard = last_heard(row)
    return row["status"] in GOING and heard is not None and abs(now - heard) <= patience_s


def last_heard(row: Row) -> float | None:
    """Return when a run last said anything; at first there is only the time of its creation."""
    return row["heartbeat"] if row["heartbeat"] is not None else _seconds(row["created"])


def _short_hash(git: dict[str, Any]) -> str | None:
    """Return a name for changes that were not committed; None if there were none."""
    diff = git.get("diff")
    return hashlib.sha256(str(diff).encode(errors="replace")).hexdigest()[:12] if diff else None


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return None if value is None else str(value).encode(errors="replace").decode()


def _number(value: Any) -> Any:
    if not is_number(value):
        return None
    return value if abs(value) < 2**63 else float(value)


def _seconds(utc: str | None) -> float | None:
    try:
        return datetime.strptime(str(utc), "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except ValueError:
        return None


def _utc(created: Any) -> str | None:
    """Return a manifest's time of creation in UTC, so that texts sort as times do."""
    try:
        moment = datetime.strptime(str(created), "%Y-%m-%dT%H:%M:%S%z")
    except ValueError:
        return _text(created)
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
