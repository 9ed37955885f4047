"""What `gpu_learning.py` writes down: our curves over the published ones, a table, raw numbers.

    python benchmarks/gpu_learning_record.py    rewrite table and page from the recorded numbers

A published point is the mean of the training episodes inside the stretch that ends there, so ours
is taken over a stretch of the same length; between two points the published curve is a line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import yaml
from recorded import replaced

from dreamlab.config import compose, load_config, to_yaml
from dreamlab.core.files import write_atomic, write_json, write_text
from dreamlab.core.readers import FileError, read_json
from dreamlab.core.text import print
from dreamlab.results.figures import look, render, short_number
from dreamlab.results.groups import Member
from dreamlab.results.published import SOURCES, Published, find_published
from dreamlab.runs.options import flatten
from dreamlab.runs.readers import read_config_node, read_metrics
from dreamlab.runs.run import Run

NAME = "gpu_learning"
STRETCH = 50_000
"""Env frames that a score is the mean of, where nothing is published."""
EVAL_STRETCH = 20_000
"""The same for evaluations, where those are published."""
NEARLY = 0.9
"""Share of the first published stretch from which on there is something to compare with."""
INTRO = f"""\
Made by `python benchmarks/gpu_learning.py FOLDER --minutes M`. A score is the mean return of the
training episodes in the stretch that ends at these env frames, as long as one of the published
curve; `published` is that curve at the same frames, mean and deviation over its seeds
({SOURCES["dreamerv3"]}). TD-MPC2's curves are evaluations ({SOURCES["tdmpc2"]}): ours are the
mean of those in {EVAL_STRETCH:,} frames up to the last one, whose env frames are given, however far
training went on. `inside`: the mean of our seeds is within one deviation. Which experiment claims
which protocol: docs/gpu.md. Raw numbers: {NAME}.json.
"""


@dataclass(frozen=True)
class Curve:
    """Training episodes of one run: how many ended before each record, and their mean return."""

    seed: int
    frames: np.ndarray
    returns: np.ndarray
    episodes: np.ndarray
    """How many a return is the mean of."""
    reached: int
    evaluated: bool = False
    """The returns are those of evaluations, not of training episodes."""

    @property
    def end(self) -> int:
        """Return the env frames of the last score: those of an evaluation, if it is one."""
        return int(self.frames[-1]) if self.evaluated and self.frames.size else self.reached

    def score(self, at: int, stretch: float) -> float | None:
        """Return the mean return of the episodes that ended in the stretch before a moment."""
        there = (self.frames > at - stretch) & (self.frames <= at)
        if not self.episodes[there].sum():
            return None
        return float(np.average(self.returns[there], weights=self.episodes[there]))

    def scores(self, stretch: float) -> tuple[list[int], list[float]]:
        """Return the same at every record since the first stretch was (nearly) whole."""
        at = [f for f in self.frames.tolist() if f >= NEARLY * stretch]
        points = [(f, s) for f in at if (s := self.score(f, stretch)) is not None]
        return [f for f, _ in points], [s for _, s in points]


@dataclass(frozen=True)
class Result:
    """The runs of one experiment on one task, and what was published for it."""

    task: str
    name: str
    members: tuple[Member, ...]
    curves: tuple[Curve, ...]
    published: Published | None
    evals: tuple[tuple[Any, Any], ...] = ()
    """Env frames and returns of evaluations, by run."""
    training: tuple[tuple[Any, Any], ...] = ()
    """Env frames and returns of training episodes, by run."""

    @property
    def stretch(self) -> float:
        if self.published is None:
            return STRETCH
        return EVAL_STRETCH if is_evaluated(self.published) else float(self.published.frames[0])


def is_evaluated(published: Published | None) -> bool:
    """Tell whether a published curve is of evaluations, not of training episodes."""
    return published is not None and published.source == "tdmpc2"


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    task: str
    name: str
    frames: int
    scores: dict[int, float]
    """By seed."""
    mean: float | None
    std: float | None

    @property
    def verdict(self) -> str:
        """`yes`, or on which side of the published band the mean of our seeds is."""
        if self.mean is None or self.std is None or not self.scores:
            return "-"
        off = float(np.mean([*self.scores.values()])) - self.mean
        return "yes" if abs(off) <= self.std else "above" if off > 0 else "below"


def curve_of(member: Member, evaluated: bool = False) -> Curve:
    """Return the training episodes of a run, or its evaluations."""
    reached = member.frames if member.records else 0
    if evaluated:
        frames, returns = member.curve("eval/return")
        ones = np.ones(len(frames), np.int64)
        return Curve(int(member.seed), frames, returns, ones, reached, evaluated=True)
    frames, returns = member.curve("episode/return")
    counts = {0: 0}
    for record in member.records:
        counts[int(record["env_frames"])] = int(record.get("episodes", 0))
    moments = sorted(counts)
    before = dict(zip(moments[1:], moments, strict=False))
    ended = [max(counts[f] - counts[before[f]], 1) for f in frames.tolist()]
    return Curve(int(member.seed), frames, returns, np.array(ended, np.int64), reached)


def read_results(folder: Path) -> list[Result]:
    """Return what runs there are, `TASK/NAME/seed_N` below a folder, by task and name."""
    found: dict[tuple[str, str], list[Member]] = {}
    for path in sorted(folder.glob("*/*/seed_*/config.yaml")):
        task, name, _ = path.relative_to(folder).parts[:3]
        member = read_member(path.parent)
        if member is not None:
            found.setdefault((task, name), []).append(member)
    return [_result(task, name, tuple(m)) for (task, name), m in found.items()]


def _result(task: str, name: str, members: tuple[Member, ...]) -> Result:
    published = find_published(members[0], None)  # that of its algorithm
    curves = tuple(curve_of(m, is_evaluated(published)) for m in members)
    evals = tuple(m.curve("eval/return") for m in members)
    training = tuple(m.curve("episode/return") for m in members)
    return Result(task, name, members, curves, published, evals, training)


def read_member(folder: Path) -> Member | None:
    """Return a run; None if it has measured nothing yet or cannot be read."""
    try:
        records = read_metrics(folder).records
        config = flatten(read_config_node(folder))
        return Member(Run(folder), config, records) if records else None
    except FileError as error:
        print(f"left out: {error}")
        return None


def rows_of(result: Result) -> list[Row]:
    """Return a line where all seeds were, and one for those that were a stretch further."""
    ordered = sorted(result.curves, key=lambda c: c.end)
    rows: list[Row] = []
    for i, slowest in enumerate(ordered):
        if rows and slowest.end < rows[-1].frames + result.stretch:
            continue
        rows.append(_row(result, sorted(ordered[i:], key=lambda c: c.seed), slowest.end))
    return rows


def _row(result: Result, curves: Sequence[Curve], at: int) -> Row:
    scores = {c.seed: c.score(at, result.stretch) for c in curves}
    known = {seed: score for seed, score in scores.items() if score is not None}
    p = result.published
    if p is None or at < NEARLY * p.frames[0]:
        return Row(result.task, result.name, at, known, None, None)
    mean, std = (float(np.interp(at, p.frames, y)) for y in (p.mean, p.std))
    return Row(result.task, result.name, at, known, mean, std)


def table(rows: Sequence[Row]) -> str:
    """Return lines of Markdown."""
    head = ("task", "frames", "ours (seeds)", "published mean and std", "inside")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for r in rows:
        ours = "-"
        if r.scores:
            each = ", ".join(f"{s}: {score:.0f}" for s, score in r.scores.items())
            ours = f"{np.mean([*r.scores.values()]):.0f} ({each})"
        theirs = "-" if r.mean is None else f"{r.mean:.0f} ± {r.std:.0f}"
        cells = (f"{r.task}, {r.name}", f"{r.frames:,}", ours, theirs, r.verdict)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(task: str, results: Sequence[Result]) -> bytes:
    """Return a picture of every run on a task over the published curve."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    axes = figure.subplots()
    for i, result in enumerate(results):
        for n, curve in enumerate(result.curves):
            label = f"{result.name}, seeds: {len(result.curves)}" if n == 0 else None
            axes.plot(*curve.scores(result.stretch), lw=1.8, label=label, **look(i))
        for frames, returns in result.training:
            axes.plot(frames, returns, lw=0.7, alpha=0.35, **look(i))
        for frames, values in result.evals:
            axes.plot(frames, values, "o", ms=4, color=look(i)["color"])
    curves = {r.published.label: r.published for r in results if r.published}
    for label, p in curves.items():
        marks = "kx--" if is_evaluated(p) else "k.-"
        axes.plot(p.frames, p.mean, marks, lw=1, label=label)
        axes.fill_between(p.frames, p.mean - p.std, p.mean + p.std, color="k", alpha=0.12, lw=0)
    furthest = max(c.reached for r in results for c in r.curves)
    furthest = max([furthest, *(int(p.frames[0]) for p in curves.values())])
    axes.set_xlim(0, 1.05 * max(furthest, 1))
    axes.xaxis.set_major_formatter(short_number)
    about = "thick: mean of the stretch before, as published; thin: training; dots: evaluations"
    axes.set(xlabel="env frames", ylabel="return")
    axes.set_title(f"{task}\n{about}", fontsize=8)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return render(figure, "png")


def raw(result: Result) -> list[dict[str, Any]]:
    """Return everything that is known of each run: curves, code, machine, versions, options."""
    out: list[dict[str, Any]] = []
    for member, curve in zip(result.members, result.curves, strict=True):
        about = member.run.manifest
        evals, training = (
            [x.tolist() for x in member.curve(f"{kind}/return")] for kind in ("eval", "episode")
        )
        given = [a for a in about.get("command", []) if not a.startswith("run.dir=")]
        out.append({
            "task": result.task, "name": result.name, "seed": curve.seed,
            "status": about.get("status"), "reached": curve.reached,
            "frames": curve.frames.tolist(), "returns": curve.returns.tolist(),
            "episodes": curve.episodes.tolist(), "eval_frames": evals[0], "evals": evals[1],
            "train_frames": training[0], "train_returns": training[1],
            "wall_s": member.records[-1].get("time/wall_s"),
            "frames_per_s": member.records[-1].get("time/frames_per_s"),
            "commit": about.get("git", {}).get("commit"), "hardware": about.get("hardware"),
            "versions": about.get("versions"), "options": given,
        })  # fmt: skip
    return out


def write_record(folder: Path) -> str:
    """Write table, figures and raw numbers of all runs into `folder/record`; return the table."""
    results = read_results(folder)
    place = folder / "record"
    place.mkdir(parents=True, exist_ok=True)
    draw_all(place, results)
    return _write(place, results, [one for result in results for one in raw(result)])


def draw_all(place: Path, results: Sequence[Result]) -> None:
    """Write a picture for each task."""
    for task in dict.fromkeys(row.task for result in results for row in rows_of(result)):
        picture = draw(task, [r for r in results if r.task == task])
        write_atomic(place / f"{NAME}_{task}.png", lambda file, data=picture: file.write(data))


def rewrite(place: Path) -> str:
    """Write table and page anew from the raw numbers that are recorded; return the table."""
    runs = read_json(place / f"{NAME}.json")["results"]
    return _write(place, recorded(runs), runs)


def recorded(runs: Sequence[dict[str, Any]]) -> list[Result]:
    """Return what was measured, from raw numbers."""
    named: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for one in runs:
        named.setdefault((one["task"], one["name"]), []).append(one)
    return [_recorded(*key, those) for key, those in named.items()]


def _recorded(task: str, name: str, runs: Sequence[dict[str, Any]]) -> Result:
    """Return what was measured of one experiment on one task."""
    config = yaml.safe_load(to_yaml(load_config(compose(runs[0]["options"][2:]))))
    published = find_published(Member(cast("Run", None), flatten(config), []), None)
    curves = tuple(
        Curve(
            one["seed"], *(np.array(one[k]) for k in ("frames", "returns", "episodes")),
            one["reached"], is_evaluated(published),
        )
        for one in runs
    )  # fmt: skip
    evals = tuple((one["eval_frames"], one["evals"]) for one in runs)
    names = (
        ("train_frames", "train_returns") if "train_frames" in runs[0] else ("frames", "returns")
    )
    training = tuple((one[names[0]], one[names[1]]) for one in runs)
    return Result(task, name, (), curves, published, evals, training)


def _write(place: Path, results: Sequence[Result], runs: Sequence[dict[str, Any]]) -> str:
    """Write the numbers and the page."""
    rows = [row for result in results for row in rows_of(result)]
    write_json(place / f"{NAME}.json", {
        "table": [{**vars(r), "inside": r.verdict} for r in rows], "results": runs,
    })  # fmt: skip
    tasks = dict.fromkeys(r.task for r in rows)
    figures = "\n".join(f"![{task}]({NAME}_{task}.png)" for task in tasks)
    lines = table(rows)
    text = f"# Learning beside the published curves\n\n{INTRO}\n{_machines(runs)}\n\n{lines}\n"
    write_text(place / f"{NAME}.md", f"{text}\n{figures}\n" if figures else text)
    return lines


def _machines(runs: Sequence[dict[str, Any]]) -> str:
    """Return on what, and from which code, the runs were made."""
    seen: dict[str, None] = {}
    for one in runs:
        machine = one["hardware"] or {}
        where = ", ".join(machine.get("gpus") or []) or machine.get("cpu", "")
        torch, commit = (one["versions"] or {}).get("torch", ""), (one["commit"] or "")[:10]
        seen[f"{where}, torch {torch}, commit {commit or 'unknown'}"] = None
    return "; ".join(seen) + "." if seen else "No run has measured anything yet."


def publish(folder: Path, results: Path) -> list[Path]:
    """Put the record of a folder where the pages link, beside the runs that were recorded before.

    A run of the same task, name and seed replaces the one recorded.
    """
    new = read_json(folder / "record" / f"{NAME}.json")["results"]
    path = results / f"{NAME}.json"
    earlier = read_json(path)["results"] if path.exists() else []
    runs = replaced(earlier, new, ("task", "name", "seed"))
    found = recorded(runs)
    draw_all(results, found)
    _write(results, found, runs)
    return sorted(p for p in results.iterdir() if re.fullmatch(rf"{NAME}(_\w+)?\.\w+", p.name))


if __name__ == "__main__":
    print(rewrite(Path(__file__).parent / "results"))
