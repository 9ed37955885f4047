"""Groups of seeds, compared at the same number of env frames; no more is said than they show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf

from dreamlab.core.errors import LabError, unknown
from dreamlab.core.tree import tree_leaves
from dreamlab.runs import stats
from dreamlab.runs.find import find_runs
from dreamlab.runs.run import Run
from dreamlab.runs.stats import Array, Interval

# What may differ between the seeds of one configuration. Runs on several tasks (`env.id`) belong
# together too: statistics are stratified over them.
FREE = ("seed", "schema", "env.id", "run", "log", "watch", "checkpoint", "report")
FREE_PREFIXES = tuple(f"{name}." for name in FREE)
TOLERANCE = 0.01
"""Runs log, evaluate and end at slightly different frames: what comes this share later counts."""
SHORT = {"return": ("eval/return", "episode/return"), "loss": ("train/loss",)}
GRID = 100
"""The most points of a learning curve; it has as many as a run in the middle."""
GOOD = ("return", "success")
"""Metrics that end like this are better when higher; of others only the order is told."""


@dataclass(frozen=True)
class Member:
    """One run of a group, read from its folder."""

    run: Run
    config: dict[str, Any]
    """Every option by its dotted name."""
    records: list[dict[str, Any]]

    @property
    def task(self) -> str:
        return str(self.config.get("env.id", ""))

    @property
    def seed(self) -> Any:
        return self.config.get("seed")

    @property
    def frames(self) -> int:
        """How far the run is, in env frames."""
        return int(self.records[-1]["env_frames"])

    @property
    def own(self) -> dict[str, Any]:
        """The options that make its group."""
        return {k: v for k, v in self.config.items() if not f"{k}.".startswith(FREE_PREFIXES)}

    def curve(self, metric: str) -> tuple[Array, Array]:
        """Return env frames and values of a metric; what is not finite is left out."""
        points = [
            (r["env_frames"], r[metric])
            for r in self.records
            if isinstance(r.get(metric), int | float) and isfinite(r[metric])
        ]
        frames, values = zip(*points, strict=True) if points else ((), ())
        return np.array(frames, np.int64), np.array(values, np.float64)


@dataclass(frozen=True)
class Group:
    """Runs that differ in seed and task only, or that the user put together."""

    name: str
    members: tuple[Member, ...]

    @property
    def tasks(self) -> dict[str, list[Member]]:
        """The members by task, tasks in order of their names."""
        found: dict[str, list[Member]] = {t: [] for t in sorted({m.task for m in self.members})}
        for member in self.members:
            found[member.task].append(member)
        return found

    def seeds(self) -> str:
        """Return the number of seeds per task in words."""
        counts = sorted(len(m) for m in self.tasks.values())
        each = str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]}-{counts[-1]}"
        return each if len(counts) == 1 else f"{each} x {len(counts)} tasks"


@dataclass
class Groups:
    """All that is compared, and what the reader should know about it."""

    groups: list[Group] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def members(self) -> list[Member]:
        return [m for g in self.groups for m in g.members]


def read_config(folder: Path) -> dict[str, Any]:
    """Return a run's configuration by dotted names."""
    path = folder / "config.yaml"
    if not path.is_file():
        raise LabError(f"{path} does not exist: this is not a run folder")
    plain = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    return {k.replace("/", "."): v for k, v in tree_leaves(plain)}


def read_groups(arguments: Sequence[str]) -> Groups:
    """Return the groups that these arguments mean.

    `folder` is a run, or the runs below it, one group per configuration; `name=folder,folder` is
    one group, whatever its runs are.
    """
    out = Groups()
    for argument in arguments:
        members = _read(argument)
        out.notes += [f"{m.run.folder}: no metrics yet, left out" for m in members if not m.records]
        members = [m for m in members if m.records]
        if not members:
            raise LabError(f"{argument}: its runs hold no metrics yet")
        kinds = [members] if "=" in argument else _split(members)
        labels = _labels(_name(argument, arguments), kinds)
        out.groups += [Group(n, tuple(m)) for n, m in zip(labels, kinds, strict=True)]
    for group in out.groups:
        out.notes += _twice(group)
        if len(_split(group.members)) > 1:
            out.notes.append(f"{group.name}: its runs have different configurations")
    names = [g.name for g in out.groups]
    if again := next((n for n in names if names.count(n) > 1), None):
        raise LabError(f"two groups are called {again!r}: give names, as in name=folder")
    return out


def _read(argument: str) -> list[Member]:
    """Return the runs of an argument."""
    folders = argument.split("=", 1)[1].split(",") if "=" in argument else [argument]
    return [Member(r, read_config(r.folder), r.metrics()) for r in find_runs(folders)]


def _name(argument: str, among: Sequence[str]) -> str:
    """Return what a group is called: as the user says, else as much of its path as tells it."""
    if "=" in argument:
        return argument.split("=", 1)[0]
    parts = Path(argument).resolve().parts
    others = [Path(a).resolve().parts for a in among if "=" not in a and a != argument]
    size = 1
    while size < len(parts) and any(o[-size:] == parts[-size:] for o in others):
        size += 1
    return "/".join(parts[-size:])


def _split(members: Iterable[Member]) -> list[list[Member]]:
    """Return the members by configuration, in the order of their first."""
    kinds: dict[str, list[Member]] = {}
    for member in members:
        kinds.setdefault(repr(sorted(member.own.items())), []).append(member)
    return list(kinds.values())


def _labels(name: str, kinds: list[list[Member]]) -> list[str]:
    """Return a name for each configuration: what it alone has."""
    if len(kinds) == 1:
        return [name]
    rows = differences([k[0].own for k in kinds])
    if not rows or len(rows) > 3:
        return [f"{name} {i + 1}" for i in range(len(kinds))]
    return [
        f"{name} " + " ".join(f"{key.rpartition('.')[2]}={row[i]}" for key, row in rows.items())
        for i in range(len(kinds))
    ]


def differences(configs: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return the options that are not the same in all configurations, with each one's value."""
    keys = sorted({k for c in configs for k in c})
    rows = {key: [c.get(key, "-") for c in configs] for key in keys}
    return {key: row for key, row in rows.items() if any(v != row[0] for v in row)}


def _twice(group: Group) -> list[str]:
    """Return a note for each seed that a group has more than once on a task."""
    notes: list[str] = []
    for task, members in group.tasks.items():
        seeds = [m.seed for m in members]
        notes += [
            f"{group.name}: seed {seed} of {task} is there {seeds.count(seed)} times"
            for seed in sorted(set(seeds), key=str)
            if seeds.count(seed) > 1
        ]
    return notes


# -- metrics --------------------------------------------------------------------------------------


def find_metric(name: str, members: Sequence[Member]) -> str:
    """Return the full name of a metric that every run has; raise with the nearest name."""
    known = {k for m in members for r in m.records for k in r} - {"env_frames"}
    wanted = [n for n in SHORT.get(name, (name,)) if n in known]
    if not wanted:
        near = [k for k in known if k.endswith(f"_{name}")]
        raise LabError(unknown("metric", SHORT.get(name, (name,))[-1], near or known, "--metrics"))
    for candidate in wanted:
        if _common(candidate, members):
            return candidate
    without = [str(m.run.folder) for m in members if not len(m.curve(wanted[0])[0])]
    if without:
        raise LabError(f"--metrics: {wanted[0]!r} has no value in {', '.join(without)}")
    raise LabError(f"--metrics: {wanted[0]!r}: there is no frame that all runs have reached")


def _common(metric: str, members: Sequence[Member]) -> bool:
    """Tell whether there is a frame at which every run has a value."""
    curves = [m.curve(metric)[0] for m in members]
    end = (1 + TOLERANCE) * min(m.frames for m in members)
    return all(map(len, curves)) and max(c[0] for c in curves) <= end


# -- comparison -----------------------------------------------------------------------------------


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
