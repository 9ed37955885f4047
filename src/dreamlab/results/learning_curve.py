"""Pictures of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dreamlab.core.clock import axis_name, moment_of, unit_of
from dreamlab.core.files import disk_errors, write_atomic


def learning_curve(records: list[dict[str, Any]], path: Path, title: str) -> Path | None:
    """Draw training and evaluation returns over the clock; None if there is nothing to draw."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    series = {
        name: [(moment_of(r), r[key]) for r in records if isinstance(r.get(key), int | float)]
        for name, key in (("training episodes", "episode/return"), ("evaluation", "eval/return"))
    }
    if not any(series.values()):
        return None
    figure, axes = plt.subplots(figsize=(7, 4), dpi=120)
    for (name, points), style in zip(
        series.items(), ({"lw": 1.5}, {"lw": 0, "marker": "o"}), strict=True
    ):
        if points:
            axes.plot(*zip(*points, strict=True), label=name, **style)  # type: ignore[arg-type]
    axes.set(xlabel=axis_name(unit_of(records[-1])), ylabel="return", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    with disk_errors("Training is not affected; only this figure could not be drawn."):
        write_atomic(path, lambda file: figure.savefig(file, format="png"))
    plt.close(figure)
    return path
