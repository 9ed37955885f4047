"""Groups of seeds, compared at the same number of env frames; no more is said than they show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np

from dreamlab.core.clock import CLOCK, Unit, axis_name
from dreamlab.core.errors import LabError, unknown
from dreamlab.results import stats
from dreamlab.results.groups import Group, Groups, Member
from dreamlab.results.normalize import RULES, Scale, kind_of, scale_for
from dreamlab.results.stats import Array, Interval

TOLERANCE = 0.01
"""Tolerance for runs that log, evaluate and end at slightly different frames, as a fraction."""
NEAR = 0.1
"""A run that has no value yet is compared by its first, if that comes this share later at most."""
SHORT = {
    "return": ("eval/return", "episode/return"), "success": ("eval/success", "episode/success"),
    "loss": ("train/loss",),
}  # fmt: skip
GRID = 100
"""Maximum number of points of a learning curve; it has at most as many as the shortest run."""
GOOD = ("return", "success")
"""Metrics with these suffixes are better when higher; for others only the order is reported."""
FEW_RUNS = 5
"""With fewer runs bootstrap intervals are too narrow."""


# -- metrics --------------------------------------------------------------------------------------


def find_metrics(name: str, members: Sequence[Member]) -> list[str]:
    """Return the full names of a metric that every run has; raise with the nearest name.

    `loss` is the total loss; all losses that the runs share where an algorithm has no total.
    """
    known = {k for m in members for r in m.records for k in r} - {"env_frames", CLOCK}
    wanted = [n for n in SHORT.get(name, (name,)) if n in known]
    if whole := [n for n in wanted if _common(n, members)]:
        return whole[:1]
    parts = sorted(k for k in known if k.startswith("train/") and k.endswith("_loss"))
    if name == "loss" and (shared := [k for k in parts if _common(k, members)]):
        return shared
    if not wanted:
        near = [k for k in known if k.endswith(f"_{name}")]
        raise LabError(unknown("metric", SHORT.get(name, (name,))[-1], near or known, "--metrics"))
    without = [str(m.run.folder) for m in members if not len(m.curve(wanted[0])[0])]
    if without:
        raise LabError(f"--metrics: {wanted[0]!r} has no value in {', '.join(without)}")
    raise LabError(
        f"--metrics: {wanted[0]!r}: no frame is reached by all runs; compare them separately"
    )


def usual_metrics(groups: Groups) -> list[str]:
    """Return the default metrics: the return, and success if every run reports it."""
    members = [m for g in groups.groups for m in g.members]
    tell = any(_common(n, members) for n in SHORT["success"])
    return ["return", "success"] if tell else ["return"]


def _common(metric: str, members: Sequence[Member]) -> bool:
    """Return whether there is a frame at which every run has a value."""
    check_units(members)
    curves = [m.curve(metric)[0] for m in members]
    end = (1 + NEAR) * min(m.frames for m in members)
    return all(map(len, curves)) and max(c[0] for c in curves) <= end


# -- comparison -----------------------------------------------------------------------------------


def value_at(frames: Array, values: Array, at: Array) -> Array:
    """Return the last value seen at each frame; before the first, the first if it is near."""
    last = np.searchsorted(frames, (1 + TOLERANCE) * at, side="right") - 1
    assert (frames[0] <= (1 + NEAR) * at).all(), (frames[0], at)
    return values[np.maximum(last, 0)]


@dataclass(frozen=True)
class Pair:
    """One group beside another."""

    a: str
    b: str
    probability: Interval
    """Probability that a run of `a` is above a run of `b` on the same task."""
    verdict: str


@dataclass(frozen=True)
class Comparison:
    """Groups on one metric, on a grid of env frames that every run has reached.

    What is said of several tasks at once (`summaries`, `pairs`, `pooled`) is said of normalized
    scores, see `scales`; what is said of one task is in the metric's own unit.
    """

    metric: str
    groups: tuple[Group, ...]
    grid: Array
    at: int
    rule: str = "auto"
    """Normalization of scores, see `normalize.RULES`."""
    asked: str = ""
    """What the metric was called by whoever asked for it."""

    @property
    def is_return(self) -> bool:
        """Return whether the metric is what papers publish."""
        return self.metric in SHORT["return"]

    @property
    def unit(self) -> Unit:
        """What the runs are counted in."""
        return self.groups[0].members[0].unit

    @property
    def axis(self) -> str:
        """The name of that unit."""
        return axis_name(self.unit)

    @cached_property
    def tasks(self) -> list[str]:
        """The tasks of all groups."""
        return sorted({t for g in self.groups for t in g.tasks})

    @cached_property
    def scales(self) -> dict[str, Scale]:
        """The scale of each task; none where scores stay as they are."""
        if self.rule == "none" or (self.rule == "auto" and len(self.tasks) == 1):
            return {}
        upto = np.append(self.grid[self.grid < self.at], self.at)
        found: dict[str, Scale] = {}
        for task in self.tasks:
            own = [g for g in self.groups if task in g.tasks]
            values = [self.scores(g, upto)[task] for g in own]
            found[task] = scale_for(self.rule, own[0].tasks[task][0], self.metric, values)
        return found

    @property
    def label(self) -> str:
        """The metric's name, and whether the groups' scores are normalized."""
        return f"normalized {self.metric}" if self.scales else self.metric

    def scores(self, group: Group, at: Array | None = None) -> dict[str, Array]:
        """Return each task's values [point, run], or [run] at the frame that is compared."""
        where = np.array([self.at]) if at is None else at
        found = {
            task: np.stack([value_at(*m.curve(self.metric), where) for m in members], -1)
            for task, members in group.tasks.items()
        }
        return {k: v[0] for k, v in found.items()} if at is None else found

    def pooled(self, group: Group, at: Array | None = None) -> dict[str, Array]:
        """Return the scores on the scale on which tasks are combined."""
        scores = self.scores(group, at)
        return {t: self.scales[t](v) if self.scales else v for t, v in scores.items()}

    @cached_property
    def summaries(self) -> dict[str, dict[str, Interval]]:
        """Every statistic of every group, over all of its tasks."""
        return {
            g.name: stats.intervals(list(self.pooled(g).values()), stats.STATISTICS)
            for g in self.groups
        }

    def of_task(self, group: Group, task: str) -> dict[str, Interval]:
        """Return every statistic of a group on one task, in the metric's own unit."""
        return stats.intervals([self.scores(group)[task]], stats.STATISTICS)

    def curve(self, group: Group, task: str | None = None, statistic: str = "iqm") -> Interval:
        """Return a statistic with its band over the grid; of one task, or of all."""
        if task is None:
            scores = list(self.pooled(group, self.grid).values())
        else:
            scores = [self.scores(group, self.grid)[task]]
        return stats.intervals(scores, {"it": stats.STATISTICS[statistic]})["it"]

    @cached_property
    def pairs(self) -> list[Pair]:
        """Every two groups that share a task."""
        both = [(a, b) for a, b in combinations(self.groups, 2) if a.tasks.keys() & b.tasks.keys()]
        return [self._pair(a, b) for a, b in both]

    def _pair(self, a: Group, b: Group) -> Pair:
        left, right = self.pooled(a), self.pooled(b)
        tasks = sorted(left.keys() & right.keys())
        x, y = [left[t] for t in tasks], [right[t] for t in tasks]
        probability = stats.probability_of_improvement(x, y)
        iqms = [stats.intervals(s, {"iqm": stats.iqm})["iqm"] for s in (x, y)]
        seeds = min(stats.fewest(x), stats.fewest(y))
        doubt = _doubt(seeds, iqms, probability)
        first, second = (a, b) if iqms[0].value > iqms[1].value else (b, a)
        ahead = "better" if self.metric.endswith(GOOD) else "higher"
        verdict = f"no winner is called: {doubt}" if doubt else ""
        verdict = verdict or f"{first.name} is {ahead} than {second.name}"
        return Pair(a.name, b.name, probability, verdict)

    def data(self) -> dict[str, Any]:
        """Return everything as plain data; a bound that is not known is None."""
        return {
            "metric": self.metric,
            "at": self.at,
            "unit": self.unit,
            "normalization": {
                "asked": self.rule,
                "used": kind_of(self.scales),
                "tasks": {task: asdict(scale) for task, scale in self.scales.items()},
            },
            "groups": [self._row(g) for g in self.groups],
            "pairs": [
                {"a": p.a, "b": p.b, "verdict": p.verdict, "probability": plain(p.probability)}
                for p in self.pairs
            ],
        }

    def _row(self, group: Group) -> dict[str, Any]:
        scores, pooled = self.scores(group), self.pooled(group)
        return {
            "group": group.name,
            "seeds": {task: [m.seed for m in members] for task, members in group.tasks.items()},
            "scores": {task: v.tolist() for task, v in scores.items()},
            "normalized_scores": {t: v.tolist() for t, v in pooled.items()} if self.scales else {},
            **{k: plain(v) for k, v in self.summaries[group.name].items()},
            "tasks": {
                task: {k: plain(v) for k, v in self.of_task(group, task).items()}
                for task in group.tasks
            },
        }


def _doubt(seeds: int, iqms: Sequence[Interval], probability: Interval) -> str:
    """Return why neither of two groups may be called ahead; nothing if one may."""
    if seeds < stats.FEWEST_SEEDS:
        return f"fewer than {stats.FEWEST_SEEDS} seeds"
    if iqms[0].overlaps(iqms[1]):
        return "the intervals of the IQM overlap"
    if probability.low <= 0.5 <= probability.high:
        return "the interval of the probability contains 0.5"
    return ""


def plain(interval: Interval) -> dict[str, float | None]:
    """Return an interval of numbers as plain data."""
    found = {"value": interval.value, "low": interval.low, "high": interval.high}
    return {k: float(v) if np.isfinite(v) else None for k, v in found.items()}


def compare(
    groups: Groups, name: str, at: int | None = None, normalize: str = "auto"
) -> list[Comparison]:
    """Return the groups compared on a metric, at a budget or at the last frame all reached.

    There is one comparison but for `loss`, see `find_metrics`.
    """
    if normalize not in RULES:
        raise LabError(unknown("normalisation", normalize, RULES, "--normalize"))
    found = find_metrics(name, groups.members)
    return [_compare(groups, metric, at, (normalize, name)) for metric in found]


def compare_all(
    groups: Groups, metrics: Sequence[str] | None, at: int | None = None, normalize: str = "auto"
) -> dict[str, Comparison]:
    """Return a comparison by what each metric was called; without names, of the usual ones."""
    found: dict[str, Comparison] = {}
    for name in metrics or usual_metrics(groups):
        many = compare(groups, name, at, normalize)
        found |= {c.metric: c for c in many} if len(many) > 1 else {name: many[0]}
    return found


def _compare(groups: Groups, metric: str, at: int | None, how: tuple[str, str]) -> Comparison:
    members = groups.members
    check_units(members)
    curves = [m.curve(metric)[0] for m in members]
    first = max(int(c[0]) for c in curves)
    shortest = min(members, key=lambda m: m.frames)
    last = shortest.frames
    if at is not None and (first > (1 + NEAR) * at or at > (1 + TOLERANCE) * last):
        known = f"from {first:,} to {last:,}" if first <= last else f"at {first:,}"
        raise LabError(
            f"--at {at:,}: {metric} is known for every run {known} "
            f"{axis_name(shortest.unit)} ({shortest.run.folder} ends at {last:,})"
        )
    end = last if at is None else at
    grid = _grid(curves, min(first, end), last)
    rule, asked = how
    return Comparison(metric, tuple(groups.groups), grid, end, rule, asked)


def check_units(members: Sequence[Member]) -> None:
    """Raise if some runs are counted in frames and others in updates."""
    units = {m.unit: m.run.folder for m in members}
    if len(units) > 1:
        raise LabError(
            f"{units['frames']} is counted in env frames and {units['updates']}, an offline run, "
            "in updates: they have no common axis. Compare runs with the same clock"
        )


def _grid(curves: Sequence[Array], first: int, end: int) -> Array:
    """Return the frames at which the run with the fewest values, or one beside it, has the next."""
    frames = [np.unique(c) for c in curves]
    fewest = min(len(f) for f in frames)
    marks = np.max([f[:fewest] for f in frames], 0)
    marks = np.unique(np.clip(np.append(marks, end), first, end))
    if len(marks) > GRID:
        marks = marks[np.linspace(0, len(marks) - 1, GRID).round().astype(int)]
    return marks


def remarks(groups: Groups, comparisons: Sequence[Comparison]) -> list[str]:
    """Return what a reader should know before believing the numbers."""
    notes = list(groups.notes)
    members = groups.members
    shortest = min(members, key=lambda m: m.frames)
    longest = max(m.frames for m in members)
    if longest > 1.1 * shortest.frames:
        notes.append(
            f"{shortest.run.folder} ends at {shortest.frames:,} {axis_name(shortest.unit)}, the "
            "longest run at "
            f"{longest:,}: the comparison ends at the shortest run"
        )
    if any(len(c.tasks) > 1 and not c.scales for c in comparisons):
        notes.append("scores of several tasks are pooled without normalization")
    if len({tuple(g.tasks) for g in groups.groups}) > 1:
        notes.append("groups have different tasks; pairs are compared on their common tasks")
    if few := [g.name for g in groups.groups if 1 < len(g.members) < FEW_RUNS]:
        notes.append(
            f"{', '.join(few)}: with fewer than {FEW_RUNS} seeds bootstrap intervals are too narrow"
        )
    for c in comparisons:
        notes += [note for m in members if (note := _not_finite(m, c.metric))]
        notes += [*_instead(c, members), *_nearest(c, members)]
    return notes


def _instead(comparison: Comparison, members: Sequence[Member]) -> list[str]:
    """Return a note if another metric is compared than the one that is meant first."""
    c = comparison
    meant, *others = SHORT.get(c.asked, ("",))
    if c.metric not in others:
        return []
    without = [str(m.run.folder) for m in members if not len(m.curve(meant)[0])]
    if len(without) == len(members):
        return [f"{c.metric} is compared: no run has {meant}"]
    if without:
        return [f"{c.metric} is compared: {meant} has no value in {', '.join(without)}"]
    first = max(int(m.curve(meant)[0][0]) for m in members)
    return [
        f"{c.metric} is compared: {meant} is known for every run only from {first:,} {c.axis} on, "
        "which not every run reaches"
    ]


def _nearest(comparison: Comparison, members: Sequence[Member]) -> list[str]:
    """Return a note for each run that is compared by a value from after the frame."""
    c = comparison
    firsts = {m.run.folder: int(m.curve(c.metric)[0][0]) for m in members}
    return [
        f"{folder}: its first {c.metric} is at {first:,} {c.axis} and is compared at {c.at:,}"
        for folder, first in firsts.items()
        if first > (1 + TOLERANCE) * c.at
    ]


def _not_finite(member: Member, metric: str) -> str | None:
    bad = sum(metric in r for r in member.records) - len(member.curve(metric)[0])
    text = f"{member.run.folder}: {bad} values of {metric} are not finite and were ignored"
    return text if bad else None
