"""Which published curve belongs to a run, and whether the run keeps up with it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dreamlab.core.errors import LabError, unknown
from dreamlab.runs.compare import Comparison
from dreamlab.runs.groups import Group, Member
from dreamlab.runs.published import published_rows
from dreamlab.runs.stats import Array

DEFAULT = "dreamerv3"


@dataclass(frozen=True)
class Published:
    """One method's curve on one task: mean and deviation over seeds, by env frames."""

    suite: str
    task: str
    method: str
    frames: Array
    mean: Array
    std: Array

    @property
    def label(self) -> str:
        return f"{self.method} (published)"

    def floor(self, at: int) -> float:
        """Return the mean less one deviation at a frame of the curve."""
        assert self.frames[0] <= at <= self.frames[-1], (self.frames, at)
        return float(np.interp(at, self.frames, self.mean - self.std))


def places(member: Member) -> list[tuple[str, str]]:
    """Return the suites and tasks of the table that a run's environment may be, best first."""
    suite, task = str(member.config.get("env.suite", "")), member.task
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
    return Published(rows[0]["suite"], rows[0]["task"], chosen, *columns)


def _named_like(member: Member, known: list[str]) -> str:
    target = str(member.config.get("workflow._target_", ""))
    name = target.rpartition(".")[2].lower()
    near = [m for m in known if name and m.partition("_")[0] == name]
    return (near or [m for m in known if m == DEFAULT] or known)[0]


def against(groups: tuple[Group, ...], what: str) -> dict[str, dict[str, Published]]:
    """Return the published curves of each task, by label; `what` is `published[:METHOD]`."""
    kind, _, method = what.partition(":")
    if kind != "published":
        raise LabError(unknown("curve to draw", kind, ["published"], "--against"))
    found: dict[str, dict[str, Published]] = {}
    for group in groups:
        for task, members in group.tasks.items():
            if curve := find_published(members[0], method or None):
                found.setdefault(task, {})[curve.label] = curve
    if not found:
        tasks = sorted({t for g in groups for t in g.tasks})
        raise LabError(f"--against: nothing is published here for {', '.join(tasks)}")
    return found


def below(comparison: Comparison, what: str) -> list[str]:
    """Return a warning for each run that is more than one deviation below the published mean.

    They are compared at the comparison's frame, or where the published curve ends before it.
    """
    warnings: list[str] = []
    method = what.partition(":")[2] or None
    for group in comparison.groups:
        for task, members in group.tasks.items():
            curve = find_published(members[0], method)
            at = min(comparison.at, int(curve.frames[-1])) if curve else comparison.at
            if curve is None or at < max(curve.frames[0], comparison.grid[0]):
                where = f"{task} before {comparison.at:,} env frames" if curve else task
                warnings.append(f"{group.name}: nothing is published for {where}")
                continue
            floor, scores = curve.floor(at), comparison.scores(group, np.array([at]))[task][0]
            warnings += [
                f"{m.run.folder}: {comparison.metric} {score:.4g} at {at:,} env frames is below "
                f"the published band of {curve.method} (mean - std = {floor:.4g})"
                for m, score in zip(members, scores, strict=True)
                if score < floor
            ]
    return warnings
