"""Writes what an algorithm shows of its inside: films, curves and numbers, on a schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from dreamlab.core.limits import Range
from dreamlab.core.types import Array, Curves, Report
from dreamlab.engine.every import EveryConfig
from dreamlab.engine.video import Film, write_video


@dataclass(frozen=True)
class ReportConfig(EveryConfig):
    """How often to look inside; with 0 at the end only."""

    length: Annotated[int, Range(2)] = 33
    """Steps of an open-loop sequence: one burn-in step, half of the rest observed, half
    predicted."""
    fps: Annotated[int, Range(1, 1_000)] = 15


Paint = Callable[[Array], Array]
"""Convert an observation to an image [h, w, 3]."""
GREEN, RED = (0, 200, 0), (220, 0, 0)


def write_report(
    report: Report,
    folder: Path,
    stamp: str,
    fps: int,
    paint: Paint | None = None,
    write_film: Film = write_video,
) -> list[Path]:
    """Write films and curves under `folder`, named by what they show and when.

    Where observations can be painted, their curves become a film as well.
    """
    paths: list[Path] = []
    films = dict(report.films)
    if paint is not None and "openloop/state" in report.curves:
        films["openloop/state"] = painted(report.curves["openloop/state"], paint)
    for name, film in films.items():
        path = folder / f"{_safe(name)}_{stamp}.mp4"
        paths.append(write_film(path, list(film), fps))
    for name, curves in report.curves.items():
        paths.append(draw(curves, folder / f"{_safe(name)}_{stamp}.png", name))
    return paths


def painted(curves: Curves, paint: Paint) -> Array:
    """Return frames: truth, dream and their difference side by side, border green, then red."""
    frames: list[Array] = []
    for t, (truth, dream) in enumerate(zip(curves.truth, curves.dream, strict=True)):
        real, guess = paint(truth), paint(dream)
        error = ((guess.astype(np.int16) - real + 255) // 2).astype(np.uint8)
        frame = np.concatenate([real, guess, error], 1)
        color = GREEN if t < curves.context else RED
        frame[:6], frame[-6:], frame[:, :6], frame[:, -6:] = color, color, color, color
        frames.append(frame)
    return np.stack(frames)


def _safe(name: str) -> str:
    return name.replace("/", "_")


def draw(curves: Curves, path: Path, title: str, largest: int = 6) -> Path:
    """Draw truth and dream over time, one small picture per number (the first `largest`)."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    num = min(curves.truth.shape[1], largest)
    figure, axes = plt.subplots(num, 1, figsize=(7, 1.5 * num + 0.8), dpi=110, squeeze=False)
    for i, axis in enumerate(axes[:, 0]):
        axis.plot(curves.truth[:, i], color="black", lw=1.5, label="truth")
        axis.plot(curves.dream[:, i], color="tab:red", lw=1.5, ls="--", label="dream")
        axis.axvspan(0, curves.context - 1, color="tab:green", alpha=0.12, lw=0)
        axis.set_ylabel(str(i))
        axis.grid(alpha=0.3)
    axes[0, 0].set_title(
        f"{title}: observed (green), then predicted open-loop from the true actions", fontsize=9
    )
    axes[0, 0].legend(loc="upper right", fontsize=8)
    axes[-1, 0].set_xlabel("step")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
    return path
