"""Statistics of a few seeds (Agarwal et al. 2021, NeurIPS, arXiv 2108.13264).

Scores are a list with one array per task; the last axis of an array is its runs, axes before it
(points of a curve, say) are kept. Tasks may have different numbers of runs. Intervals come from a
stratified bootstrap: runs are drawn again within each task, from a fixed seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Scores = Sequence[Array]
Statistic = Callable[[Scores], Array]

RESAMPLES = 2_000
CONFIDENCE = 0.95
BOOTSTRAP_SEED = 0
FEWEST_SEEDS = 3
"""With fewer seeds per task no winner is called."""


def iqm(scores: Scores) -> Array:
    """Return the interquartile mean over all runs of all tasks."""
    ordered = np.sort(np.concatenate(scores, -1), -1)
    cut = ordered.shape[-1] // 4
    return ordered[..., cut : ordered.shape[-1] - cut].mean(-1)


def mean(scores: Scores) -> Array:
    """Return the mean over tasks of the mean over runs."""
    return np.mean([task.mean(-1) for task in scores], 0)


def median(scores: Scores) -> Array:
    """Return the median over tasks of the mean over runs; over the runs if there is one task."""
    if len(scores) == 1:
        return np.median(scores[0], -1)
    return np.median([task.mean(-1) for task in scores], 0)


STATISTICS: dict[str, Statistic] = {"iqm": iqm, "mean": mean, "median": median}


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval; the bounds are nan where one run is all there is.

    Floats, or arrays with one number per point of a curve.
    """

    value: Any
    low: Any
    high: Any

    def overlaps(self, other: Interval) -> bool:
        """Return whether two intervals of numbers have a point in common."""
        return bool(self.low <= other.high and other.low <= self.high)


def fewest(scores: Scores) -> int:
    """Return the number of runs of the task that has the fewest."""
    return min(task.shape[-1] for task in scores)


def resample(scores: Scores, rng: np.random.Generator, num: int = RESAMPLES) -> list[Array]:
    """Return each task with a new second-to-last axis: `num` draws of its runs with replacement."""
    sizes = [task.shape[-1] for task in scores]
    return [
        task[..., rng.integers(size, size=(num, size))]
        for task, size in zip(scores, sizes, strict=True)
    ]


def intervals(
    scores: Scores, statistics: dict[str, Statistic], num: int = RESAMPLES
) -> dict[str, Interval]:
    """Return each statistic with the percentile interval of the same stratified bootstrap."""
    drawn = resample(scores, np.random.default_rng(BOOTSTRAP_SEED), num)
    known = fewest(scores) > 1
    return {
        name: Interval(statistic(scores), *_bounds(statistic(drawn), known))
        for name, statistic in statistics.items()
    }


def _bounds(drawn: Array, known: bool) -> tuple[Array, Array]:
    """Return the percentile bounds of what each draw gave, along the last axis."""
    rest = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(drawn, [rest, 100 - rest], axis=-1)
    return (low, high) if known else (np.full_like(low, np.nan), np.full_like(high, np.nan))


def probability_of_improvement(a: Scores, b: Scores, num: int = RESAMPLES) -> Interval:
    """Return how likely a run of `a` beats one of `b` on the same task; a tie counts half.

    Both hold the same tasks in the same order. Averaged over tasks; runs of both sides are drawn
    again independently.
    """
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    values: list[Array] = []
    drawn: list[Array] = []
    for x, y in zip(a, b, strict=True):
        wins = (x[:, None] > y) + 0.5 * (x[:, None] == y)
        values.append(wins.mean())
        share_x, share_y = _shares(len(x), rng, num), _shares(len(y), rng, num)
        drawn.append(((share_x @ wins) * share_y).sum(-1))
    known = min(fewest(a), fewest(b)) > 1
    return Interval(np.mean(values), *_bounds(np.mean(drawn, 0), known))


def _shares(size: int, rng: np.random.Generator, num: int) -> Array:
    """Return how large a part each of `size` runs is of each draw with replacement."""
    picked = rng.integers(size, size=(num, size)) + size * np.arange(num)[:, None]
    return np.bincount(picked.ravel(), minlength=num * size).reshape(num, size) / size


def profile(scores: Scores, thresholds: Array) -> Interval:
    """Return the fraction of runs above each threshold, averaged over tasks, with its band."""
    above = [(task > thresholds[:, None]).astype(float) for task in scores]
    return intervals(above, {"mean": mean})["mean"]
