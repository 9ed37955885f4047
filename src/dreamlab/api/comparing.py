"""Compare runs from Python: what `dreamlab compare` prints and draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dreamlab.api.runs import Run
from dreamlab.core.errors import LabError, require
from dreamlab.results import figures, published
from dreamlab.results.compare import Comparison, compare_all, remarks
from dreamlab.results.groups import Groups, read_groups
from dreamlab.results.tables import text

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

Source = str | Path | Run


@dataclass(frozen=True)
class Compared:
    """Groups of runs beside each other; print it for the table."""

    groups: Groups
    metrics: dict[str, Comparison]
    """A comparison for each metric, by its name."""
    curves: published.Curves | None = None
    """Published curves, where they were requested."""
    warnings: tuple[str, ...] = ()
    """Where runs fall below the published results."""

    @property
    def notes(self) -> list[str]:
        """What to know before believing the numbers."""
        return [*remarks(self.groups, list(self.metrics.values())), *self.groups.damage]

    @property
    def table(self) -> str:
        """The statistics of every group as text."""
        return "\n\n".join(text(c) for c in self.metrics.values())

    def __str__(self) -> str:
        said = [f"note: {n}" for n in self.notes] + [f"warning: {w}" for w in self.warnings]
        return "\n".join([self.table, *(["", *said] if said else [])])

    @property
    def figure(self) -> Figure:
        """Learning curves of the first metric with 95 % bootstrap intervals."""
        first = next(iter(self.metrics.values()))
        return figures.learning_curves(first, self.curves if first.is_return else None)

    def data(self) -> dict[str, Any]:
        """Return everything as plain data, as `dreamlab compare --json` prints it."""
        return {
            "metrics": {name: c.data() for name, c in self.metrics.items()},
            "notes": self.notes,
            "warnings": list(self.warnings),
        }

    def frame(self) -> DataFrame:
        """Return a pandas DataFrame of scores: a row for each metric, group, task and seed."""
        rows = [
            {"metric": c.metric, "at": c.at, "group": g.name, "task": t, "seed": m.seed, "score": s}
            for c in self.metrics.values()
            for g in c.groups
            for t, members in g.tasks.items()
            for m, s in zip(members, c.scores(g)[t].tolist(), strict=True)
        ]
        return require("pandas", "data").DataFrame(rows)

    def save(self, folder: str | Path) -> list[Path]:
        """Write every figure as PNG and SVG; return the files."""
        files: list[Path] = []
        for c in self.metrics.values():
            drawn = figures.draw_all(c, self.curves if c.is_return else None)
            files += figures.save_all(drawn, Path(folder), c.metric)
        return files


def compare(
    runs: Source | Sequence[Source] | Mapping[str, Source | Sequence[Source]],
    *,
    metrics: Sequence[str] | None = None,
    at: int | None = None,
    normalize: str = "auto",
    against: str | None = None,
) -> Compared:
    """Compare groups of runs: interquartile means with intervals, probability of improvement.

    A list holds runs or folders of runs: those that differ only in seed and task are one group. A
    dictionary names groups. `at` is the number of env frames to compare at, by default the most
    that all runs have; `metrics` are `return`, `success`, `loss` or names as in metrics.jsonl.
    `against="published"` draws published curves and says where runs stay below them.
    """
    groups = read_groups(_arguments(runs))
    found = compare_all(groups, metrics, at, normalize)
    if against is None:
        return Compared(groups, found)
    returns = [c for c in found.values() if c.is_return]
    if not returns:
        raise LabError(
            'against: published curves exist only for the return; use metrics=["return"]'
        )
    below = tuple(note for c in returns for note in published.below(c, against, at))
    return Compared(groups, found, published.against(tuple(groups.groups), against), below)


def _arguments(runs: Source | Sequence[Source] | Mapping[str, Any]) -> list[str]:
    """Return groups as they are written behind `dreamlab compare`."""
    if not isinstance(runs, Mapping):
        return list(dict.fromkeys(_folders(runs)))
    return [f"{name}={','.join(_folders(group))}" for name, group in runs.items()]


def _folders(runs: Source | Sequence[Source]) -> list[str]:
    among = [runs] if isinstance(runs, str | Path | Run) else list(runs)
    if not among:
        raise LabError("compare: there are no runs to compare")
    found = [str(r.folder if isinstance(r, Run) else r) for r in among]
    if wrong := next((f for f in found if "," in f), None):
        raise LabError(f"compare: {wrong!r}: a folder whose name has a comma cannot be compared")
    return found
