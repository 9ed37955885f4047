"""Pictures of a comparison, and the published curves that belong into them."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dreamlab.core.errors import LabError, unknown
from dreamlab.core.files import write_atomic
from dreamlab.runs import stats
from dreamlab.runs.compare import Comparison, Group, Member
from dreamlab.runs.published import published_rows
from dreamlab.runs.stats import Array

# Told apart by most colour-blind readers (Okabe & Ito 2008), on white and on black.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
STYLES = ("-", "--", ":", "-.")
THRESHOLDS = 101
NO_DATE: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "png": {"Software": None}}

DEFAULT = "dreamerv3"
"""The published method where none is named like the run's algorithm."""


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


# -- pictures -------------------------------------------------------------------------------------

Curves = Mapping[str, Mapping[str, Published]]
"""Published curves by task and label."""


def look(index: int) -> dict[str, Any]:
    """Return the colour and line of a group by its number."""
    return {
        "color": COLORS[index % len(COLORS)],
        "ls": STYLES[index // len(COLORS) % len(STYLES)],
    }


def _canvas(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, Any]:
    """Return a figure and its axes; no state of matplotlib's is touched."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=130, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _legend(figure: Any, axis: Any, entries: int) -> None:
    """Put the legend below the pictures, in as many columns as fit."""
    handles, labels = axis.get_legend_handles_labels()
    longest = max(map(len, labels))
    columns = max(1, min(entries, int(figure.get_figwidth() * 11 // (longest + 6))))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False)


def _band(axis: Any, x: Any, interval: stats.Interval, label: str, style: dict[str, Any]) -> None:
    """Draw a curve and, where there is one, its interval."""
    marker = {"marker": "o", "ms": 4} if len(x) == 1 else {}
    axis.plot(x, interval.value, label=label, lw=1.6, **style, **marker)
    if np.isfinite(interval.low).all():
        axis.fill_between(x, interval.low, interval.high, color=style["color"], alpha=0.18, lw=0)


def learning_curves(
    comparison: Comparison, published: Curves | None = None, statistic: str = "iqm"
) -> Any:
    """Return a figure of the metric over env frames, one picture per task."""
    tasks = sorted({t for g in comparison.groups for t in g.tasks})
    columns = min(3, len(tasks))
    rows = -(-len(tasks) // columns)
    figure, axes = _canvas(rows, columns, (6.5 if columns == 1 else 4.2 * columns, 3.2 * rows + 1))
    for axis in axes.flat[len(tasks) :]:
        axis.set_visible(False)
    for task, axis in zip(tasks, axes.flat, strict=False):
        for i, group in enumerate(comparison.groups):
            if task in group.tasks:
                label = f"{group.name} ({len(group.tasks[task])} seeds)"
                label = label if len(tasks) == 1 else group.name
                band = comparison.curve(group, task, statistic)
                _band(axis, comparison.grid, band, label, look(i))
        _draw_published(axis, (published or {}).get(task, {}), int(comparison.grid[-1]))
        axis.set_title(task, fontsize=10)
        axis.set_xlabel("env frames")
        axis.xaxis.set_major_formatter(short_number)
    for axis in axes[:, 0]:
        axis.set_ylabel(f"{comparison.metric}, {_WORDS[statistic]}")
    first = max(axes.flat[: len(tasks)], key=lambda a: len(a.get_lines()))
    _legend(figure, first, len(first.get_lines()))
    return figure


def _draw_published(axis: Any, curves: Mapping[str, Published], end: int) -> None:
    """Draw the published curves as far as the runs go."""
    for i, (label, curve) in enumerate(curves.items()):
        style: dict[str, Any] = {"color": "gray", "ls": STYLES[(i + 1) % len(STYLES)]}
        axis.plot(curve.frames, curve.mean, lw=1.2, marker=".", label=label, **style)
        low, high = curve.mean - curve.std, curve.mean + curve.std
        axis.fill_between(curve.frames, low, high, color="gray", alpha=0.15, lw=0)
        axis.set_xlim(-0.02 * end, 1.02 * end)


_WORDS = {"iqm": "IQM", "mean": "mean", "median": "median"}


def short_number(value: float, _: Any = None) -> str:
    """Return frames as people say them: 250k, 1.5M."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def performance_profile(comparison: Comparison) -> Any:
    """Return a figure of the share of runs above each score."""
    scores = {g.name: list(comparison.scores(g).values()) for g in comparison.groups}
    every = np.concatenate([t for tasks in scores.values() for t in tasks])
    margin = 0.02 * (np.ptp(every) or abs(every[0]) or 1.0)
    thresholds = np.linspace(every.min() - margin, every.max() + margin, THRESHOLDS)
    figure, axes = _canvas(1, 1, (6.5, 4.2))
    for i, (name, tasks) in enumerate(scores.items()):
        _band(axes[0, 0], thresholds, stats.profile(tasks, thresholds), name, look(i))
    axes[0, 0].set(
        xlabel=f"x: {comparison.metric} at {comparison.at:,} env frames",
        ylabel="share of runs above x",
        ylim=(-0.03, 1.03),
    )
    _legend(figure, axes[0, 0], len(scores))
    return figure


def aggregates(comparison: Comparison) -> Any:
    """Return a figure of every statistic with its interval, a row per group."""
    names = [g.name for g in comparison.groups]
    figure, axes = _canvas(1, len(stats.STATISTICS), (9.5, 1.4 + 0.42 * len(names)))
    for axis, statistic in zip(axes[0], stats.STATISTICS, strict=True):
        for i, name in enumerate(names):
            _dot(axis, i, comparison.summaries[name][statistic], look(i)["color"])
        _rows(axis, names if axis is axes[0, 0] else [""] * len(names))
        axis.set_title(_WORDS[statistic], fontsize=10)
        axis.margins(x=0.15)
    figure.supxlabel(f"{comparison.metric} at {comparison.at:,} env frames", fontsize=10)
    return figure


def improvement(comparison: Comparison) -> Any:
    """Return a figure of the probability that a run of one group is above one of another."""
    pairs = comparison.pairs
    figure, axes = _canvas(1, 1, (6.5, 1.4 + 0.42 * len(pairs)))
    for i, pair in enumerate(pairs):
        _dot(axes[0, 0], i, pair.probability, COLORS[0])
    _rows(axes[0, 0], [f"P({p.a} > {p.b})" for p in pairs])
    axes[0, 0].axvline(0.5, color="gray", lw=1, ls="--")
    axes[0, 0].set(xlim=(-0.03, 1.03), xlabel=comparison.metric)
    return figure


def _dot(axis: Any, row: int, interval: stats.Interval, color: str) -> None:
    """Draw an estimate as a dot on a thick line."""
    if np.isfinite(interval.low):
        ends, style = [interval.low, interval.high], {"solid_capstyle": "butt"}  # no longer than it
        axis.plot(ends, [row, row], color=color, lw=7, alpha=0.35, **style)
    axis.plot(interval.value, row, "o", color=color, ms=5)


def _rows(axis: Any, names: Sequence[str]) -> None:
    """Name the rows from top to bottom."""
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.tick_params(axis="y", length=0)
    axis.grid(False, axis="y")


def draw_all(comparison: Comparison, published: Curves | None = None) -> dict[str, Any]:
    """Return every figure of a comparison by its name."""
    found: dict[str, Callable[[], Any]] = {
        "curves": lambda: learning_curves(comparison, published),
        "mean_curves": lambda: learning_curves(comparison, published, "mean"),
        "profile": lambda: performance_profile(comparison),
        "aggregates": lambda: aggregates(comparison),
    }
    if comparison.pairs:
        found["improvement"] = lambda: improvement(comparison)
    return {name: make() for name, make in found.items()}


def render(figure: Any, kind: str) -> bytes:
    """Return a figure as a PNG or SVG file's bytes, the same bytes every time."""
    import matplotlib as mpl

    file = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "dreamlab", "svg.fonttype": "none"}):
        figure.savefig(file, format=kind, transparent=kind == "svg", metadata=NO_DATE[kind])
    return file.getvalue()


def save_all(figures: Mapping[str, Any], folder: Path, metric: str) -> list[Path]:
    """Write figures as PNG and SVG under names that tell metric and kind."""
    paths: list[Path] = []
    for name, figure in figures.items():
        for kind in ("png", "svg"):
            path = folder / f"{metric.replace('/', '_')}_{name}.{kind}"
            data = render(figure, kind)
            write_atomic(path, lambda file, data=data: file.write(data))
            paths.append(path)
    return paths
