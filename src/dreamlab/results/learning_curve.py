"""Images of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dreamlab.core.clock import CLOCK, axis_name, moment_of, unit_of
from dreamlab.core.errors import LabError, unknown
from dreamlab.core.files import disk_errors, write_atomic

USUAL = {"episode/return": "training episodes", "eval/return": "evaluation"}


def learning_curve(records: list[dict[str, Any]], path: Path, title: str) -> Path | None:
    """Draw training and evaluation returns over the clock; None if there is nothing to draw."""
    figure = draw_metrics(records, title)
    if figure is None:
        return None
    with disk_errors("Training is not affected; only this figure could not be drawn."):
        return save_figure(figure, path)


def draw_metrics(records: list[dict[str, Any]], title: str, metrics: Sequence[str] = ()) -> Any:
    """Return a figure of metrics over the clock, of the returns if none are named.

    None if there are no returns; raise if a metric that was named has no value.
    """
    from dreamlab.results.picture import Picture

    series = {name: points_of(records, name) for name in metrics or USUAL}
    if empty := [name for name in metrics if not series[name]]:
        known = {k for r in records for k in r} - {"env_frames", CLOCK}
        raise LabError(unknown("metric", empty[0], known, "metrics"))
    if not any(series.values()):
        return None
    figure = Picture(figsize=(7, 4), dpi=120, layout="tight")
    axes = figure.subplots()
    for name, points in series.items():
        if points:
            lone = name.startswith("eval/")
            style: dict[str, Any] = {
                "lw": 0 if lone else 1.5,
                "marker": "o" if lone or len(points) < 3 else None,
            }
            axes.plot(*zip(*points, strict=True), label=USUAL.get(name, name), **style)
    ylabel = metrics[0] if len(metrics) == 1 else "" if metrics else "return"
    axes.set(xlabel=axis_name(unit_of(records[-1])), ylabel=ylabel, title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def points_of(records: list[dict[str, Any]], name: str) -> list[tuple[int, float]]:
    """Return the moments and values of a metric."""
    return [(moment_of(r), r[name]) for r in records if isinstance(r.get(name), int | float)]


def save_figure(figure: Any, path: Path) -> Path:
    """Write a figure in the format of its name, PNG if that has none."""
    kind = path.suffix.lstrip(".") or "png"
    write_atomic(path, lambda file: figure.savefig(file, format=kind))
    return path
