"""Runs combined by configuration: what differs in nothing but seed and task is one group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dreamlab.core.clock import Unit, moment_of, unit_of
from dreamlab.core.errors import LabError
from dreamlab.core.text import one_line
from dreamlab.results.stats import Array
from dreamlab.runs.find import find_runs
from dreamlab.runs.options import counts, differences, flatten
from dreamlab.runs.readers import read_config_node, read_metrics
from dreamlab.runs.run import Run

WITHIN = ("seed", "env.id", "start.run")
"""Options that may differ within a group: seeds, and tasks as strata."""


@dataclass(frozen=True)
class Member:
    """One run of a group, read from its folder."""

    run: Run
    config: dict[str, Any]
    """Options by dotted name."""
    records: list[dict[str, Any]]
    _curves: dict[str, tuple[Array, Array]] = field(
        default_factory=dict[str, tuple[Array, Array]], repr=False, compare=False
    )

    @property
    def suite(self) -> str:
        return one_line(str(self.config.get("env.suite", "")))

    @property
    def task(self) -> str:
        return one_line(str(self.config.get("env.id", "")))

    @property
    def seed(self) -> Any:
        return self.config.get("seed")

    @property
    def frames(self) -> int:
        """How far the run is on its clock."""
        return moment_of(self.records[-1])

    @property
    def unit(self) -> Unit:
        """What its clock counts."""
        return unit_of(self.records[-1])

    @property
    def own(self) -> dict[str, Any]:
        """The options that make its group."""
        return {k: v for k, v in self.config.items() if counts(k, *WITHIN)}

    def curve(self, metric: str) -> tuple[Array, Array]:
        """Return moments and values of a metric; non-finite values is left out."""
        if metric not in self._curves:
            self._curves[metric] = self._read(metric)
        return self._curves[metric]

    def _read(self, metric: str) -> tuple[Array, Array]:
        points = [
            (moment_of(r), r[metric])
            for r in self.records
            if isinstance(r.get(metric), int | float)
        ]
        frames, values = zip(*points, strict=True) if points else ((), ())
        return np.array(frames, np.int64), np.array(values, np.float64)


@dataclass(frozen=True)
class Group:
    """Runs that differ in seed and task only, or that the user combined."""

    name: str
    members: tuple[Member, ...]

    @cached_property
    def tasks(self) -> dict[str, list[Member]]:
        """The members by task, tasks in order of their names."""
        found: dict[str, list[Member]] = {t: [] for t in sorted({m.task for m in self.members})}
        for member in self.members:
            found[member.task].append(member)
        return found

    @property
    def each(self) -> str:
        """The number of seeds on a task: `3`, or `2-5` where tasks differ."""
        counts = sorted(len(m) for m in self.tasks.values())
        return str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]}-{counts[-1]}"

    def seeds(self) -> str:
        """Return the number of seeds per task in words."""
        return self.each if len(self.tasks) == 1 else f"{self.each} x {len(self.tasks)} tasks"


@dataclass
class Groups:
    """All that is compared, and what the reader should know about it."""

    groups: list[Group] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    """Unreadable lines of metrics."""

    @property
    def members(self) -> list[Member]:
        return [m for g in self.groups for m in g.members]


def read_groups(arguments: Sequence[str]) -> Groups:
    """Return the groups that these arguments mean.

    `folder` is a run, or the runs below it, one group per configuration; `name=folder,folder` is
    one group, whatever its runs are.
    """
    out = Groups()
    for argument in arguments:
        members = _read(argument, out.damage)
        out.notes += [f"{m.run.folder}: no metrics yet, ignored" for m in members if not m.records]
        members = [m for m in members if m.records]
        if not members:
            raise LabError(f"{argument}: its runs have no metrics yet")
        kinds = [members] if _given_name(argument) is not None else _split(members)
        labels = _labels(_name(argument, arguments), kinds)
        out.groups += [Group(one_line(n), tuple(m)) for n, m in zip(labels, kinds, strict=True)]
    for group in out.groups:
        out.notes += _twice(group)
        if any(len(_split(members)) > 1 for members in group.tasks.values()):
            out.notes.append(f"{group.name}: its runs have different configurations")
        elif len(_split(group.members)) > 1:
            out.notes.append(f"{group.name}: its configuration differs between tasks")
    names = [g.name for g in out.groups]
    if again := next((n for n in names if names.count(n) > 1), None):
        raise LabError(f"two groups are named {again!r}: name them as in name=folder")
    return out


def _read(argument: str, damage: list[str]) -> list[Member]:
    """Return the runs of an argument; add what is corrupted in them."""
    name = _given_name(argument)
    folders = [argument] if name is None else argument[len(name) + 1 :].split(",")
    members: list[Member] = []
    for run in find_runs(folders):
        lines = read_metrics(run.folder)
        damage += lines.told(run.folder / "metrics.jsonl")
        members.append(Member(run, flatten(read_config_node(run.folder)), lines.records))
    return members


def _given_name(argument: str) -> str | None:
    """Return the name before `=`; None if there is none, as in a folder that is called `lr=0.1`."""
    name, equals, _ = argument.partition("=")
    return name if equals and not Path(argument).exists() else None


def _name(argument: str, among: Sequence[str]) -> str:
    """Return a group's name: the user's, else the shortest unique part of its path."""
    if (name := _given_name(argument)) is not None:
        return name
    parts = Path(argument).resolve().parts
    others = [Path(a).resolve().parts for a in among if _given_name(a) is None and a != argument]
    size = 2 if parts[-1].startswith("seed_") else 1
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
    """Return a name for each configuration: its experiment's, or the options it differs in."""
    if len(kinds) == 1:
        return [name]
    rows = differences([k[0].own for k in kinds])
    names = [str(k[0].config.get("name")) for k in kinds]
    if len(set(names)) == len(names):
        return [f"{name}/{n}" for n in names]
    if not rows or len(rows) > 3:
        return [f"{name} {i + 1}" for i in range(len(kinds))]
    return [
        f"{name} " + " ".join(f"{key.rpartition('.')[2]}={row[i]}" for key, row in rows.items())
        for i in range(len(kinds))
    ]


def _twice(group: Group) -> list[str]:
    """Return a note for each seed that a group has more than once on a task."""
    notes: list[str] = []
    for task, members in group.tasks.items():
        seeds = [m.seed for m in members]
        notes += [
            f"{group.name}: seed {seed} of {task} occurs {seeds.count(seed)} times"
            for seed in sorted(set(seeds), key=str)
            if seeds.count(seed) > 1
        ]
    return notes
