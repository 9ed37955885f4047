"""Writes what an algorithm shows of its inside: videos, curves and numbers, on a schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np

from dreamlab.core.captions import Captions, captioned, step_head
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
BORDER_PIXELS = 6
LARGEST = 6
"""Of more entries an image shows the first."""


@dataclass(frozen=True)
class Known:
    """What is known of a task's observations: how to paint them, how their entries are called."""

    paint: Paint | None = None
    names: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])


def write_report(
    report: Report,
    folder: Path,
    stamp: str,
    fps: int,
    known: Known,
    write_film: Film = write_video,
) -> list[Path]:
    """Write videos and curves under `folder`, named by what they show and when.

    Where observations can be painted, their curves become a video as well.
    """
    paths: list[Path] = []
    films = dict(report.films)
    if known.paint is not None and "openloop/state" in report.curves:
        films["openloop/state"] = painted(report.curves["openloop/state"], known.paint)
    for name, film in films.items():
        path = folder / f"{_safe(name)}_{stamp}.mp4"
        paths.append(write_film(path, list(film), fps))
    for name, curves in report.curves.items():
        path = folder / f"{_safe(name)}_{stamp}.png"
        paths.append(draw(curves, path, name, entries(name, curves, known.names)))
    return paths


def painted(curves: Curves, paint: Paint) -> Array:
    """Return labelled frames: truth, dream and their difference, border green, then red."""
    frames: list[Array] = []
    heads = [step_head(t, curves.context, len(curves.truth)) for t in range(len(curves.truth))]
    for t, (truth, dream) in enumerate(zip(curves.truth, curves.dream, strict=True)):
        real, guess = paint(truth), paint(dream)
        error = ((guess.astype(np.int16) - real + 255) // 2).astype(np.uint8)
        frame = np.concatenate([real, guess, error], 1)
        b, color = BORDER_PIXELS, heads[t][1]
        frame[:b], frame[-b:], frame[:, :b], frame[:, -b:] = color, color, color, color
        frames.append(frame)
    return captioned(np.stack(frames), Captions(heads, columns=("truth", "dream", "error")))


def _safe(name: str) -> str:
    return name.replace("/", "_")


def entries(name: str, curves: Curves, known: Mapping[str, Sequence[str]]) -> list[str]:
    """Return what to call each number of a curve: its name if it is known, else key and index."""
    key, num = name.removeprefix("openloop/"), curves.truth.shape[1]
    names = known.get(key, ())
    if len(names) == num:
        return list(names)
    return [key] if num == 1 else [f"{key}[{i}]" for i in range(num)]


def draw(
    curves: Curves, path: Path, title: str, names: Sequence[str], largest: int = LARGEST
) -> Path:
    """Draw truth and dream over time, one small image per number (the first `largest`)."""
    from matplotlib.figure import Figure  # without pyplot: the user's backend stays as it is

    num = min(curves.truth.shape[1], largest)
    figure = Figure(figsize=(7, 1.5 * num + 0.8), dpi=110, layout="tight")
    axes = figure.subplots(num, 1, squeeze=False)
    for i, axis in enumerate(axes[:, 0]):
        axis.plot(curves.truth[:, i], color="black", lw=1.5, label="truth")
        axis.plot(curves.dream[:, i], color="tab:red", lw=1.5, ls="--", label="dream")
        axis.axvspan(0, curves.context - 1, color="tab:green", alpha=0.12, lw=0)
        axis.set_ylabel(names[i].replace(" ", "\n", 1), fontsize=8)
        axis.grid(alpha=0.3)
    shown = "" if num == len(names) else f", the first {num} of {len(names)} entries"
    about = "context (green), then imagined with the true actions"
    axes[0, 0].set_title(f"{title}: {about}{shown}", fontsize=9)
    axes[0, 0].legend(loc="upper right", fontsize=8)
    axes[-1, 0].set_xlabel("step")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path
