"""Learning curves that others published, to compare runs with.

`published.csv.gz` has one row per suite, task, method and number of env frames: mean and deviation
over seeds. `source` dreamerv3: derived from the score files of github.com/danijar/dreamerv3, the
mean of training episodes inside the tenth of the run that ends there. `source` tdmpc2: from the
result files of github.com/nicklashansen/tdmpc2, evaluations.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from dreamlab.core.errors import LabError, unknown
from dreamlab.results.compare import TOLERANCE, Comparison
from dreamlab.results.groups import Group, Member
from dreamlab.results.stats import Array
from dreamlab.results.tables import numbers

DEFAULT = "dreamerv3"
"""The published method used if none matches the run's algorithm."""
SOURCES = {
    "dreamerv3": "github.com/danijar/dreamerv3, training episodes",
    "tdmpc2": "github.com/nicklashansen/tdmpc2, evaluations",
}


@cache
def published_rows() -> list[dict[str, str]]:
    """Return every row, by column."""
    with (
        files("dreamlab.results").joinpath("published.csv.gz").open("rb") as raw,
        gzip.open(raw, "rt", newline="") as file,
    ):
        return list(csv.DictReader(file))


@dataclass(frozen=True)
class Published:
    """One method's curve on one task: mean and deviation over seeds, by env frames."""

    suite: str
    task: str
    method: str
    seeds: int
    """Minimum number of seeds per point."""
    source: str
    frames: Array
    mean: Array
    std: Array

    @property
    def label(self) -> str:
        return f"{self.method} (published, {self.of})"

    @property
    def of(self) -> str:
        """What a point is the mean of."""
        return f"{self.seeds} seeds" if self.seeds > 1 else "1 seed"

    def floor(self, at: Array | int) -> Any:
        """Return the mean less one deviation at frames; beyond an end of the curve, at that end."""
        return np.interp(at, self.frames, self.mean - self.std)


Curves = Mapping[str, Mapping[str, Published]]
"""Published curves by task and label."""


def places(member: Member) -> list[tuple[str, str]]:
    """Return the suites and tasks of the table that a run's environment may be, best first."""
    suite, task = member.suite, member.task
    if suite == "dmc":
        images = member.config.get("env.options.obs", "proprio") != "proprio"
        full = f"ball_in_{task}" if task.startswith("cup_") else task
        short = full.removeprefix("ball_in_").replace("_", "-")
        return [
            ("dmc_vision" if images else "dmc_proprio", f"dmc_{full}"),
            ("tdmpc2-pixels" if images else "tdmpc2-state", short),
        ]
    if suite == "atari":
        game = task.replace("james_bond", "jamesbond")
        few = member.config.get("env.options.sticky") is False
        return [("atari100k" if few else "atari57", f"atari_{game}")]
    suites = {"dmlab": "dmlab30", "procgen": "procgen", "minecraft": "minecraft_diamond"}
    return [(suites[suite], f"{suite}_{task}")] if suite in suites else []


def find_published(member: Member, method: str | None) -> Published | None:
    """Return the curve for a run's task; None if the table has none at all for it.

    Without a method it is the one that the run's algorithm is named like, else DreamerV3.
    """
    at = places(member)
    rows = [r for place in at for r in published_rows() if (r["suite"], r["task"]) == place]
    if not rows:
        return None
    known = list(dict.fromkeys(r["method"] for r in rows))
    if method is not None and method not in known:
        raise LabError(unknown("published method", method, known, f"--against ({member.task})"))
    chosen = method or _named_like(member, known)
    rows = [r for r in rows if r["method"] == chosen]
    rows = [r for r in rows if r["suite"] == rows[0]["suite"]]
    columns = [np.array([float(r[k]) for r in rows]) for k in ("env_frames", "mean", "std")]
    first, seeds = rows[0], min(int(r["seeds"]) for r in rows)
    return Published(first["suite"], first["task"], chosen, seeds, first["source"], *columns)


def _named_like(member: Member, known: list[str]) -> str:
    target = str(member.config.get("workflow._target_", ""))
    name = target.rpartition(".")[2].lower()
    near = [m for m in known if name and m.partition("_")[0] == name]
    return (near or [m for m in known if m == DEFAULT] or known)[0]


def method_of(what: str) -> str | None:
    """Return the method that `published[:METHOD]` names, if it names one."""
    kind, _, method = what.partition(":")
    if kind != "published":
        raise LabError(unknown("curve to draw", kind, ["published"], "--against"))
    return method or None


def against(groups: tuple[Group, ...], what: str) -> dict[str, dict[str, Published]]:
    """Return the published curves of each task, by label; `what` is `published[:METHOD]`."""
    method = method_of(what)
    found: dict[str, dict[str, Published]] = {}
    for group in groups:
        for task, members in group.tasks.items():
            if curve := find_published(members[0], method):
                found.setdefault(task, {})[curve.label] = curve
    if not found:
        tasks = sorted({t for g in groups for t in g.tasks})
        raise LabError(f"--against: no published curves for {', '.join(tasks)}")
    return found


def sources(curves: Curves) -> str:
    """Return where published curves are from, and what they show."""
    used = {c.source for own in curves.values() for c in own.values()}
    named = "; ".join(SOURCES[s] for s in sorted(used))
    return f"published: mean ± standard deviation over seeds, {named}"


def below(comparison: Comparison, what: str, upto: int | None = None) -> list[str]:
    """Return a warning for each run that is more than one deviation below the published mean.

    Each run is judged by its last value (up to `upto`), however early that is; what comes after
    the end of the published curve is held against that end.
    """
    method = method_of(what)
    return [
        line
        for group in comparison.groups
        for members in group.tasks.values()
        for line in _below(find_published(members[0], method), comparison.metric, members, upto)
    ]


def _below(
    curve: Published | None, metric: str, members: list[Member], upto: int | None
) -> Iterator[str]:
    if curve is None:
        yield f"no published curve for {members[0].task}"
        return
    for m in members:
        frames, values = m.curve(metric)
        end = frames[-1] if upto is None else (1 + TOLERANCE) * upto
        known = (frames >= curve.frames[0]) & (frames <= end)
        frames, values = frames[known], values[known]
        if not len(frames):
            begin = f"{int(curve.frames[0]):,}"
            yield f"{m.run.folder}: too early, the published curve starts at {begin} frames"
            continue
        floors = curve.floor(frames)
        fine = np.flatnonzero(values >= floors)
        since = frames[fine[-1] + 1 :] if len(fine) else frames
        if len(since):
            score, floor = numbers([values[-1], floors[-1]])
            yield (
                f"{m.run.folder}: {metric} {score} at {frames[-1]:,} env frames is below the "
                f"published band of {curve.method} ({floor}: mean - std of {curve.of})"
                + (f", and has been since {since[0]:,}" if len(since) > 1 else "")
            )
