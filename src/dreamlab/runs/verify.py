"""Compares the chain of a run with that of a second one, and says what else differs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dreamlab.core.clock import moment_of
from dreamlab.core.errors import LabError
from dreamlab.core.readers import FileError, Record, read_jsonl
from dreamlab.runs.git_state import HERE, git, git_state, project_state
from dreamlab.runs.legs import moment_in
from dreamlab.runs.options import differences, flatten
from dreamlab.runs.readers import read_events
from dreamlab.runs.run import Run, hardware, versions

COUNTERS = ("env_frames", "decisions", "updates")
KINDS = ("transitions", "losses", "weights")
CHANGES = {
    "regrouped": ("distributed.processes", "regrouped: not exact"),
    "moved": ("device", "not exact"),
    "resharded": ("distributed.shard", "not exact"),
}
"""What the manifest lists of a resumed run: the option, and what follows."""
Link = Record
Rows = list[tuple[str, Any, Any]]


@dataclass(frozen=True)
class Divergence:
    """The first thing that differs: somewhere after `since`, at the latest at `link`."""

    kind: str
    since: Link | None
    link: Link
    found: Link
    values: Rows = field(default_factory=list)
    """Losses that differ: name, expected, found."""


@dataclass(frozen=True)
class Verdict:
    """What a comparison came to."""

    compared: int
    last: Link | None
    divergence: Divergence | None


def read_chain(folder: Path) -> list[Link]:
    """Return the links of a run; a last line cut short by a crash is left out."""
    path = folder / "chain.jsonl"
    if not path.exists():
        raise LabError(
            f"{folder} has no chain.jsonl: it was recorded by an older version or with "
            f"log.chain=false, so there is nothing to compare"
        )
    found = read_jsonl(path, _is_link)
    if found.damaged:  # links are compared one by one: none may be missing between them
        raise FileError(path, f"is corrupted: {found.damaged} invalid lines")
    return found.records


def _is_link(record: Record) -> bool:
    numbers = all(type(record.get(k)) is int for k in (*COUNTERS, "missed"))
    return numbers and all(type(record.get(k)) is str for k in (*KINDS, "link"))


def whole_part(links: list[Link]) -> list[Link]:
    """Return the links before the first that has not seen everything since the run started."""
    return links[: next((i for i, link in enumerate(links) if link["missed"]), len(links))]


def compare(run: Run, second: Run, after_frames: int) -> Verdict:
    """Return where `second`, which started at a number of frames, leaves what `run` recorded."""
    expected = [x for x in whole_part(read_chain(run.folder)) if moment_of(x) > after_frames]
    found = [x for x in read_chain(second.folder) if moment_of(x) > after_frames]
    before: Link | None = None
    for number, (old, new) in enumerate(zip(expected, found, strict=False)):
        kind = _first_difference(old, new)
        if kind is not None:
            values = _losses(run, second, old) if kind == "losses" else []
            return Verdict(number, before, Divergence(kind, before, old, new, values))
        before = old
    return Verdict(min(len(expected), len(found)), before, None)


def _first_difference(old: Link, new: Link) -> str | None:
    kind = next((kind for kind in KINDS if old[kind] != new[kind]), None)
    moved = any(old[k] != new[k] for k in COUNTERS)
    return "counters" if kind is None and moved else kind


def _losses(run: Run, second: Run, link: Link) -> Rows:
    """Return the metrics of training that differ at a link."""
    place = (link["env_frames"], link["updates"])
    pair = [
        next((m for m in r.metrics() if (m["env_frames"], m.get("updates")) == place), {})
        for r in (run, second)
    ]
    names = sorted(k for k in pair[0].keys() | pair[1].keys() if k.startswith("train/"))
    return [(k, pair[0].get(k), pair[1].get(k)) for k in names if pair[0].get(k) != pair[1].get(k)]


def surroundings(run: Run) -> Rows:
    """Return what differs between then and now in versions, hardware and code."""
    manifest = run.manifest
    rows: Rows = []
    for part, now in (("versions", versions()), ("hardware", hardware())):
        then = manifest.get(part, {})
        rows += [(f"{part}.{k}", a, b) for k, a, b in changes(then, now)]
    inexact = _inexact(manifest)
    rows += [(name, what, "the same throughout") for name, what in inexact]
    if manifest.get("exact_resume") is False and not inexact:
        rows.append(("resume", "some environments started a new episode", "never interrupted"))
    rows += _code("code", manifest.get("git", {}), git_state(), HERE)
    return [*rows, *_code("project", manifest.get("project", {}), project_state(), Path.cwd())]


def check_exact(run: Run, begin: int | None) -> None:
    """Raise if a rerun from a checkpoint (None: from the start) would differ in any case.

    With another number of processes environments and random numbers are others, and the digests
    of what one process saw do not go on; another kind of device rounds differently.
    """
    found = dict(_inexact(run.manifest))
    if (what := found.get("distributed.processes")) is not None:
        raise LabError(f"{run.folder} cannot be repeated: distributed.processes was {what}")
    if (what := found.get("device")) is None:
        return
    times = [moment_in(e) for e in read_events(run.folder).records if e["event"] == "moved"]
    last = max((at.count for at in times if at is not None), default=None)
    if begin is None or begin < (last or 0):
        place = "" if last is None else f" ({last:,} or later)"
        raise LabError(
            f"{run.folder} cannot be repeated from {begin or 'its start'}: device was {what}. Use "
            f"--from with a checkpoint saved after that{place}"
        )


def _inexact(manifest: Record) -> list[tuple[str, str]]:
    """Return which options changed in the middle of a run, so that a rerun differs, and how."""
    told = {name: _course(manifest.get(name)) for name in CHANGES}
    return [(CHANGES[k][0], f"{v} ({CHANGES[k][1]})") for k, v in told.items() if v]


def _course(found: Any) -> str:
    """Return what something was, one after another; an older manifest has the last change alone."""
    listed = found if isinstance(found, list) else [found]
    told = [x for x in listed if isinstance(x, dict)]
    course = [*(x.get("from") for x in told[:1]), *(x.get("to") for x in told)]
    return ", then ".join(map(str, course))


def changes(then: Any, now: Any) -> Rows:
    """Return the leaves of two trees that differ, by path."""
    return [(k, a, b) for k, (a, b) in differences([flatten(then), flatten(now)], None).items()]


def _code(
    name: str, then: dict[str, Any], now: dict[str, Any], place: Path
) -> Iterator[tuple[str, Any, Any]]:
    """Yield how two states of one repository differ; `place` lies in it."""
    if then.get("commit") != now.get("commit"):
        yield f"{name}.commit", then.get("commit"), now.get("commit")
        # from another process's manifest it could be an option of git's instead
        known = re.fullmatch(r"[0-9a-f]{7,64}", commit := str(then.get("commit")))
        listed = git(place, "diff", "--name-only", commit, "HEAD") if known else None
        names = [n for n in (listed or "").split() if name != "code" or n.startswith("src/")]
        if names:
            yield f"{name}.files", f"{len(names)} changed since", ", ".join(names[:5])
    if then.get("diff") != now.get("diff"):
        a, b = (f"{len((x.get('diff') or '').splitlines())} lines" for x in (then, now))
        yield f"{name}.uncommitted changes", a, b


def describe(divergence: Divergence) -> str:
    """Return the first divergence as text."""
    d = divergence
    since = d.since or {"env_frames": "the start", "updates": 0}
    lines = [
        f"diverged: {d.kind}, after env frame {since['env_frames']} (update {since['updates']}) "
        f"and by env frame {d.link['env_frames']} (update {d.link['updates']})"
    ]
    shown = [d.kind] if d.kind in KINDS else []
    shown += [n for n in COUNTERS if d.link[n] != d.found[n]]
    lines += [f"  {n}  expected {d.link[n]}  found {d.found[n]}" for n in shown]
    lines += [f"  {name}  expected {a!r}  found {b!r}" for name, a, b in d.values[:8]]
    return "\n".join(lines)


def table(rows: Rows) -> str:
    """Return differences as lines: what, then, now."""
    return "\n".join(f"  {name}: {a} -> {b}" for name, a, b in rows)
