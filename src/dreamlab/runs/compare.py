"""Compares groups of seeds at the same number of env frames, and says no more than they show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np

from dreamlab.core.errors import LabError
from dreamlab.runs import stats
from dreamlab.runs.groups import SHORT, TOLERANCE, Group, Groups, Member, find_metric
from dreamlab.runs.stats import Array, Interval

GRID = 100
"""The most points of a learning curve; it has as many as a run in the middle."""
GOOD = ("return", "success")
"""Metrics that end like this are better when higher; of others only the order is told."""


def value_at(frames: Array, values: Array, at: Array) -> Array:
    """Return the last value seen at each frame; nothing is known before the first."""
    last = np.searchsorted(frames, (1 + TOLERANCE) * at, side="right") - 1
    assert (last >= 0).all(), (frames[0], at)
    return values[last]


@dataclass(frozen=True)
class Pair:
    """One group beside another."""

    a: str
    b: str
    probability: Interval
    """How likely a run of `a` is above one of `b` on the same task."""
    verdict: str


@dataclass(frozen=True)
class Comparison:
    """Groups on one metric, on a grid of env frames that every run has reached."""

    short: str
    metric: str
    groups: tuple[Group, ...]
    grid: Array
    at: int

    @property
    def is_return(self) -> bool:
        """Tell whether the metric is what papers publish."""
        return self.metric in SHORT["return"]

    def scores(self, group: Group, at: Array | None = None) -> dict[str, Array]:
        """Return each task's values [point, run], or [run] at the frame that is compared."""
        where = np.array([self.at]) if at is None else at
        found = {
            task: np.stack([value_at(*m.curve(self.metric), where) for m in members], -1)
            for task, members in group.tasks.items()
        }
        return {k: v[0] for k, v in found.items()} if at is None else found

    @cached_property
    def summaries(self) -> dict[str, dict[str, Interval]]:
        """Every statistic of every group."""
        return {
            g.name: stats.intervals(list(self.scores(g).values()), stats.STATISTICS)
            for g in self.groups
        }

    def curve(self, group: Group, task: str | None = None, statistic: str = "iqm") -> Interval:
        """Return a statistic with its band over the grid; of one task, or of all."""
        found = self.scores(group, self.grid)
        scores = list(found.values()) if task is None else [found[task]]
        return stats.intervals(scores, {"it": stats.STATISTICS[statistic]})["it"]

    @cached_property
    def pairs(self) -> list[Pair]:
        """Every two groups that share a task."""
        both = [(a, b) for a, b in combinations(self.groups, 2) if a.tasks.keys() & b.tasks.keys()]
        return [self._pair(a, b) for a, b in both]

    def _pair(self, a: Group, b: Group) -> Pair:
        left, right = self.scores(a), self.scores(b)
        tasks = sorted(left.keys() & right.keys())
        x, y = [left[t] for t in tasks], [right[t] for t in tasks]
        probability = stats.probability_of_improvement(x, y)
        iqms = [stats.intervals(s, {"iqm": stats.iqm})["iqm"] for s in (x, y)]
        seeds = min(stats.fewest(x), stats.fewest(y))
        return Pair(a.name, b.name, probability, self._verdict(a.name, b.name, iqms, seeds))

    def _verdict(self, a: str, b: str, iqms: list[Interval], seeds: int) -> str:
        """Return what may be said of two groups: nothing, or which one is ahead."""
        if seeds < stats.FEWEST_SEEDS:
            return "too few seeds to tell"
        if iqms[0].overlaps(iqms[1]):
            return "no difference to be told: the intervals overlap"
        first, second = (a, b) if iqms[0].value > iqms[1].value else (b, a)
        return f"{first} is {'better' if self.metric.endswith(GOOD) else 'higher'} than {second}"

    def data(self) -> dict[str, Any]:
        """Return everything as plain data; a bound that is not known is None."""
        return {
            "metric": self.metric,
            "env_frames": self.at,
            "groups": [self._row(g) for g in self.groups],
            "pairs": [
                {"a": p.a, "b": p.b, "verdict": p.verdict, "probability": plain(p.probability)}
                for p in self.pairs
            ],
        }

    def _row(self, group: Group) -> dict[str, Any]:
        return {
            "group": group.name,
            "seeds": {task: [m.seed for m in members] for task, members in group.tasks.items()},
            "scores": {task: v.tolist() for task, v in self.scores(group).items()},
            **{k: plain(v) for k, v in self.summaries[group.name].items()},
        }


def plain(interval: Interval) -> dict[str, float | None]:
    """Return an interval of numbers as plain data."""
    found = {"value": interval.value, "low": interval.low, "high": interval.high}
    return {k: float(v) if np.isfinite(v) else None for k, v in found.items()}


def compare(groups: Groups, name: str, at: int | None = None) -> Comparison:
    """Return the groups compared on a metric, at a budget or at the last frame all reached."""
    members = groups.members
    metric = find_metric(name, members)
    first = max(int(m.curve(metric)[0][0]) for m in members)
    shortest = min(members, key=lambda m: m.frames)
    late = 1 + TOLERANCE
    if at is not None and (first > late * at or at > late * shortest.frames):
        raise LabError(
            f"--at {at:,}: {metric} is known for every run from {first:,} to "
            f"{shortest.frames:,} env frames (the end of {shortest.run.folder})"
        )
    end = shortest.frames if at is None else at
    points = min(GRID, int(np.median([len(m.curve(metric)[0]) for m in members])))
    grid = np.linspace(shortest.frames, min(first, end), points).astype(np.int64)
    return Comparison(name, metric, tuple(groups.groups), np.unique(grid), end)


def remarks(groups: Groups, comparisons: Sequence[Comparison]) -> list[str]:
    """Return what a reader should know before believing the numbers."""
    notes = list(groups.notes)
    members = groups.members
    shortest = min(members, key=lambda m: m.frames)
    longest = max(m.frames for m in members)
    if longest > 1.1 * shortest.frames:
        notes.append(
            f"{shortest.run.folder} ends at {shortest.frames:,} env frames, the longest run at "
            f"{longest:,}: what comes after the shortest is not compared"
        )
    if any(len(g.tasks) > 1 for g in groups.groups):
        notes.append("scores of several tasks are pooled as they are, not normalised")
    if len({tuple(g.tasks) for g in groups.groups}) > 1:
        notes.append("not every group has the same tasks; pairs are compared on those they share")
    for c in comparisons:
        notes += [note for m in members if (note := _not_finite(m, c.metric))]
    return notes


def _not_finite(member: Member, metric: str) -> str | None:
    bad = sum(metric in r for r in member.records) - len(member.curve(metric)[0])
    text = f"{member.run.folder}: {bad} values of {metric} are not finite and were left out"
    return text if bad else None
