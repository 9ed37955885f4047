"""Runs as text for a person and as plain data for a program: tables, one run, two runs."""

from __future__ import annotations

import difflib
import shlex
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dreamlab.core.text import one_line, visible
from dreamlab.core.words import duration
from dreamlab.runs.options import differences, flatten
from dreamlab.runs.query import HIDDEN, as_text
from dreamlab.runs.readers import config_if_readable, problems, read_config_node
from dreamlab.runs.run import Run
from dreamlab.runs.run_row import Row, facts_of

TABLE = ("id", "name", "algorithm", "env", "seed", "status", "frames", "return", "best_return")
PARTS = ("config", "versions", "hardware", "project")
"""Sections compared by path; `project` is the repository in which a run was started."""
TAB = "\t"
DIFF_LINES = 60
"""Maximum lines shown of the difference between two stored git diffs."""


def public(row: Row) -> Row:
    """Return a row without what only the index needs."""
    return {k: v for k, v in row.items() if k not in HIDDEN}


def table(rows: Sequence[Row], extra: Sequence[str] = ()) -> str:
    """Return rows as aligned columns, with further keys beside the usual ones."""
    rate = ["success"] if any(r["success"] is not None for r in rows) else []
    names = list(dict.fromkeys([*TABLE, *rate, *extra, "wall_s", "created", "tags"]))
    cells = [[_cell(n, r[n]) for n in names] for r in rows]
    titles = ["time" if n == "wall_s" else n for n in names]
    widths = [max(len(c) for c in column) for column in zip(titles, *cells, strict=True)]
    lines = [
        "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip()
        for line in [titles, *cells]
    ]
    return "\n".join(lines)


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name == "id":
        return one_line(value[:8]) or "-"
    if name == "wall_s":
        return duration(value)
    if name == "created":
        return one_line(value[:16].replace("T", " "))
    if name == "tags":
        return one_line(",".join(value))
    if name == "frames":
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else one_line(as_text(value))


def everything(row: Row) -> dict[str, Any]:
    """Return all there is to know about a run, and the commands that resume it."""
    folder = Path(row["folder"])
    run, config = Run(folder), config_if_readable(folder)
    git = run.manifest.get("git") or {}
    checkpoints = sorted(p.name for p in folder.glob("checkpoints/[0-9]*"))
    return {
        **public(row),
        "damaged": list(problems(folder)),
        "started_with": shlex.join(map(str, run.manifest.get("command") or [])),
        "final_eval": run.manifest.get("final_eval"),
        "exact_resume": run.manifest.get("exact_resume"),
        "checkpoints": checkpoints,
        "versions": run.manifest.get("versions") or {},
        "hardware": run.manifest.get("hardware") or {},
        "git": _told_code(git),
        "project": _told_code(run.manifest.get("project") or {}),
        "config": config,
        "commands": commands(folder, git, bool(checkpoints)),
    }


def _told_code(git: dict[str, Any]) -> dict[str, Any]:
    lines = len(str(git.get("diff") or "").splitlines())
    return {"commit": git["commit"], "diff_lines": lines} if git.get("commit") else {}


def commands(folder: Path, git: dict[str, Any], has_checkpoint: bool) -> dict[str, list[str]]:
    """Return what to type to resume, evaluate and reproduce a run."""
    name = shlex.quote(one_line(str(folder)))
    commit = shlex.quote(one_line(str(git.get("commit") or "")))
    code = [f"git checkout {commit}"] if git.get("commit") else []
    if git.get("diff"):
        code.append(f"dreamlab show {name} --diff | git apply")
    again = [
        f"sed '1i # @package _global_' {name}/config.yaml > again.yaml",
        "dreamlab train again.yaml run.dir=experiments/again",
    ]
    resume = {"resume": [f"dreamlab resume {name}"]}
    if has_checkpoint:
        resume["evaluate"] = [f"dreamlab eval {name} --checkpoint best --episodes 20 --video"]
    return {**resume, "reproduce": [*code, *again]}


def page(about: dict[str, Any]) -> str:
    """Return all about a run for a person to read."""
    nested = ("versions", "hardware", "git", "project", "final_eval", "config", "commands")
    told = {k: v for k, v in about.items() if k not in nested and (v or k != "damaged")}
    lines = [f"{k:14s} {_value(k, v)}" for k, v in told.items()]
    for name in nested[:-1]:
        if not (found := flatten(about[name] or {})):
            continue
        told = (one_line(f"{k:34s} {as_text(v)}") for k, v in found.items() if k)
        lines += ["", name, *(f"  {line}" for line in told)]
    for name, typed in about["commands"].items():
        lines += ["", f"to {name}", *(f"  {line}" for line in typed)]
    return "\n".join(lines)


def _value(name: str, value: Any) -> str:
    if value is None or value == []:
        return "-"
    if name in ("tags", "checkpoints"):
        return one_line(", ".join(value))
    if name == "damaged":
        return f"\n{'':14s} ".join(map(one_line, value))
    if name == "heartbeat":
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))
    return one_line(str(value)) if name == "id" else _cell(name, value)


def changes_between(a: Path, b: Path) -> dict[str, Any]:
    """Return how two runs differ: configuration, versions and hardware by path, and code."""
    manifests = [Run(f).manifest for f in (a, b)]
    tables = [facts_of(m, read_config_node(f)) for m, f in zip(manifests, (a, b), strict=True)]
    parts = {name: dict[str, Any]() for name in PARTS}
    for key, pair in differences(tables, "(absent)").items():
        top = key.partition(".")[0]
        parts[top if top in PARTS else "config"][key] = pair
    git = [m.get("git") or {} for m in manifests]
    commits = [g.get("commit") for g in git]
    diffs = [str(g.get("diff") or "").splitlines() for g in git]
    told = difflib.unified_diff(diffs[0], diffs[1], str(a), str(b), lineterm="", n=1)
    return {
        **parts,
        "commit": commits if commits[0] != commits[1] else None,
        "git_diff": list(told),
    }


def compared(found: dict[str, Any]) -> Iterator[str]:
    """Yield the differences of two runs as lines of text."""
    for part in PARTS:
        if found[part]:
            yield part
        for key, (old, new) in found[part].items():
            yield "  " + one_line(f"{key:34s} {as_text(old)} -> {as_text(new)}")
    if found["commit"]:
        old, new = (shlex.quote(one_line(str(c or "unknown"))) for c in found["commit"])
        yield "code"
        yield f"  commit {old} -> {new}"
        yield f"  git diff {old} {new}"
    if diff := found["git_diff"]:
        yield "uncommitted changes"
        yield from (f"  {visible(line, keep=TAB)}" for line in diff[:DIFF_LINES])
        if len(diff) > DIFF_LINES:
            yield f"  ... {len(diff) - DIFF_LINES} more lines: --json has them all"
    if not any(found.values()):
        yield "no difference in configuration, code, versions or hardware"
