"""Images of a comparison: learning curves, performance profile, aggregates, improvement."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dreamlab.core.files import write_atomic
from dreamlab.results import stats
from dreamlab.results.compare import Comparison
from dreamlab.results.groups import Group
from dreamlab.results.published import Curves, Published, sources
from dreamlab.results.tables import NAMES

# Told apart by most color-blind readers (Okabe & Ito 2008), on white and on black.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
STYLES = ("-", "--", ":", "-.")
NO_DATE: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "png": {"Software": None}}


def look(index: int) -> dict[str, Any]:
    """Return the color and line of a group by its number."""
    return {
        "color": COLORS[index % len(COLORS)],
        "ls": STYLES[index // len(COLORS) % len(STYLES)],
    }


def _canvas(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, Any]:
    """Return a figure and its axes; no state of matplotlib's is touched."""
    from dreamlab.results.picture import Picture

    figure = Picture(figsize=size, dpi=130, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _legend(figure: Any, axes: Any, about: str = "") -> None:
    """Put the legend below the images, in as many columns as fit; each label once."""
    found: dict[str, Any] = {}
    for axis in axes.flat:
        handles, labels = axis.get_legend_handles_labels()
        found = dict(zip(labels, handles, strict=True)) | found
    longest = max(map(len, found))
    columns = max(1, min(len(found), int(figure.get_figwidth() * 11 // (longest + 6))))
    place = {"loc": "outside lower center", "ncols": columns, "frameon": False}
    legend = figure.legend(found.values(), found, title=about, title_fontsize=9, **place)
    legend.get_title().set_multialignment("center")


def _band(axis: Any, x: Any, interval: stats.Interval, label: str, style: dict[str, Any]) -> None:
    """Draw a curve and, where there is one, its interval."""
    marker = {"marker": "o", "ms": 4} if len(x) == 1 else {}
    axis.plot(x, interval.value, label=label, lw=1.6, **style, **marker)
    if np.isfinite(interval.low).all():
        axis.fill_between(x, interval.low, interval.high, color=style["color"], alpha=0.18, lw=0)


# -- learning curves ------------------------------------------------------------------------------


def learning_curves(
    comparison: Comparison, published: Curves | None = None, statistic: str = "iqm"
) -> Any:
    """Return a figure of the metric over env frames: an image per task, and one of all together.

    The last is there if there are several tasks and their scores are normalized.
    """
    tasks: list[str | None] = [*comparison.tasks]
    tasks += [None] if comparison.scales and len(tasks) > 1 else []
    figure, axes = _panels(len(tasks))
    for task, axis in zip(tasks, axes.flat, strict=False):
        for i, group in enumerate(comparison.groups):
            if task is None or task in group.tasks:
                band = comparison.curve(group, task, statistic)
                _band(axis, comparison.grid, band, _label(group), look(i))
        _draw_published(axis, (published or {}).get(task or "", {}))
        axis.set_xlim(0, 1.02 * comparison.grid[-1])  # as far as the runs go
        axis.set_title(task or "all tasks, normalized", fontsize=10)
        axis.xaxis.set_major_formatter(short_number)
        axis.locator_params(axis="x", nbins=5)
    for axis in axes[:, 0]:
        axis.set_ylabel(f"{comparison.metric}, {NAMES[statistic]}")
    for column in range(axes.shape[1]):
        shown = [axis for axis in axes[:, column] if axis.get_visible()]
        shown[-1].set_xlabel(comparison.axis)
    about = [*_bands(comparison), *([sources(published)] if published else [])]
    _legend(figure, axes, "\n".join(about))
    return figure


def _label(group: Group) -> str:
    return f"{group.name} ({group.each} seed{'' if group.each == '1' else 's'})"


def _panels(num: int) -> tuple[Any, Any]:
    """Return a figure with this many images; the more there are, the smaller they get."""
    columns = num if num <= 4 else next((c for c in (3, 4, 5) if num <= c * (c + 1)), 6)
    rows = -(-num // columns)
    width, height = (6.5, 3.9) if num == 1 else (4.2, 3.1) if columns <= 3 else (2.8, 2.3)
    figure, axes = _canvas(rows, columns, (width * columns, height * rows + 0.8))
    for axis in axes.flat[num:]:
        axis.set_visible(False)
    return figure, axes


def _bands(comparison: Comparison) -> list[str]:
    """Return what bands are, if there are any."""
    several = any(len(m) > 1 for g in comparison.groups for m in g.tasks.values())
    return ["bands are 95 % bootstrap intervals"] if several else []


def _draw_published(axis: Any, curves: Mapping[str, Published]) -> None:
    """Draw published curves beside those of runs."""
    for i, (label, curve) in enumerate(curves.items()):
        style: dict[str, Any] = {"color": "gray", "ls": STYLES[(i + 1) % len(STYLES)]}
        axis.plot(curve.frames, curve.mean, lw=1.2, marker=".", label=label, **style)
        low, high = curve.mean - curve.std, curve.mean + curve.std
        axis.fill_between(curve.frames, low, high, color="gray", alpha=0.15, lw=0)


def short_number(value: float, _: Any = None) -> str:
    """Return frames as people say them: 250k, 1.5M."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


# -- scores at the end ----------------------------------------------------------------------------


def performance_profile(comparison: Comparison) -> Any:
    """Return a figure of the fraction of runs above each score: exact, a step at every score."""
    scores = {g.name: list(comparison.pooled(g).values()) for g in comparison.groups}
    every = np.unique(np.concatenate([t for tasks in scores.values() for t in tasks]))
    margin = 0.04 * (np.ptp(every) or abs(every[0]) or 1.0)
    thresholds = np.array([every[0] - margin, *every, every[-1] + margin])
    figure, axes = _canvas(1, 1, (6.5, 4.7))
    for i, (group, tasks) in enumerate(zip(comparison.groups, scores.values(), strict=True)):
        _steps(axes[0, 0], thresholds, stats.profile(tasks, thresholds), _label(group), look(i))
    axes[0, 0].set(
        xlabel=f"x: {_at(comparison)}", ylabel="fraction of runs above x", ylim=(-0.03, 1.03)
    )
    _legend(figure, axes, *_bands(comparison))
    return figure


def _steps(axis: Any, x: Any, interval: stats.Interval, label: str, style: dict[str, Any]) -> None:
    """Draw a share that falls at scores and nowhere else, with its band."""
    axis.plot(x, interval.value, drawstyle="steps-post", label=label, lw=1.8, **style)
    if np.isfinite(interval.low).all():
        low, high, color = interval.low, interval.high, style["color"]
        axis.fill_between(x, low, high, step="post", color=color, alpha=0.15, lw=0)


def _at(comparison: Comparison) -> str:
    return f"{comparison.label} at {comparison.at:,} {comparison.axis}"


def aggregates(comparison: Comparison) -> Any:
    """Return a figure of every statistic with its interval, a row per group."""
    names = [g.name for g in comparison.groups]
    figure, axes = _canvas(1, len(stats.STATISTICS), (11.5, 1.3 + 0.36 * len(names)))
    for axis, statistic in zip(axes[0], stats.STATISTICS, strict=True):
        for i, name in enumerate(names):
            _bar(axis, i, comparison.summaries[name][statistic], look(i)["color"])
        _rows(axis, names if axis is axes[0, 0] else [""] * len(names))
        axis.set_title(NAMES[statistic], fontsize=10)
        axis.use_sticky_edges = False
        axis.margins(x=0.08)
        axis.locator_params(axis="x", nbins=5)
    figure.supxlabel(f"{_at(comparison)}; bars are 95 % intervals", fontsize=9)
    return figure


def improvement(comparison: Comparison) -> Any:
    """Return a figure of the probability that a run of one group is above one of another."""
    pairs = comparison.pairs
    names = [f"{p.a} > {p.b}" for p in pairs]
    width = max(6.5, 5 + 0.075 * max(map(len, names)))
    figure, axes = _canvas(1, 1, (width, 1.3 + 0.36 * len(pairs)))
    for i, pair in enumerate(pairs):
        _bar(axes[0, 0], i, pair.probability, COLORS[0])
    _rows(axes[0, 0], names)
    axes[0, 0].axvline(0.5, color="gray", lw=1, ls="--")
    axes[0, 0].set(xlim=(-0.03, 1.03))
    about = "probability that a run is above a run of the other group"
    figure.supxlabel(f"{about}\n{_at(comparison)}", fontsize=9)
    return figure


def _bar(axis: Any, row: int, interval: stats.Interval, color: str) -> None:
    """Draw an interval as a bar and the estimate as a line across it, seen however short it is."""
    if np.isfinite(interval.low):
        width = interval.high - interval.low
        axis.barh(row, width, left=interval.low, height=0.5, color=color, alpha=0.4, lw=0)
    axis.plot([interval.value] * 2, [row - 0.3, row + 0.3], color=color, lw=2.5)


def _rows(axis: Any, names: Sequence[str]) -> None:
    """Name the rows from top to bottom."""
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.5, -0.5)
    axis.tick_params(axis="y", length=0)
    axis.grid(False, axis="y")


# -- files ----------------------------------------------------------------------------------------


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
    """Write figures as PNG and SVG, named by metric and kind."""
    paths: list[Path] = []
    for name, figure in figures.items():
        for kind in ("png", "svg"):
            path = folder / f"{metric.replace('/', '_')}_{name}.{kind}"
            data = render(figure, kind)
            write_atomic(path, lambda file, data=data: file.write(data))
            paths.append(path)
    return paths
