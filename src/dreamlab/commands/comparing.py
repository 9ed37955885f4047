"""Arguments shared by the commands on groups of runs: compare, export, report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from dreamlab.commands.arguments import POSITIVE_INT, Decorated, RunFolder, argument
from dreamlab.commands.printing import warn
from dreamlab.core.errors import LabError

if TYPE_CHECKING:
    from dreamlab.results.compare import Comparison
    from dreamlab.results.groups import Groups
    from dreamlab.results.published import Curves

GROUP = "a run, a folder of runs, or name=folder,folder"
PUBLISHED = "Draw published curves, and warn where runs fall below them."


@dataclass(frozen=True)
class Asked:
    """What is compared: groups of runs by metrics, at a number of env frames."""

    groups: tuple[str, ...]
    metrics: Sequence[str] | None
    """None: the return, and the success rate if every run reports it."""
    at: int | None
    normalize: str
    against: str | None = None

    def compare(self) -> tuple[Groups, dict[str, Comparison]]:
        """Return the groups, and a comparison for each metric as the user named it."""
        from dreamlab.results.compare import compare_all
        from dreamlab.results.groups import read_groups

        groups = read_groups(self.groups)
        warn(groups.damage)
        return groups, compare_all(groups, self.metrics, self.at, self.normalize)

    def published(self, comparisons: list[Comparison]) -> Curves | None:
        """Return the requested published curves."""
        from dreamlab.results import published

        return published.against(comparisons[0].groups, self.against) if self.against else None

    def below(self, comparisons: list[Comparison]) -> list[str]:
        """Return warnings about runs that fall below the published results."""
        from dreamlab.results import published

        if self.against is None:
            return []
        returns = [c for c in comparisons if c.is_return]
        if not returns:
            raise LabError(
                "--against: published curves exist only for the return; use --metrics return"
            )
        return [note for c in returns for note in published.below(c, self.against, self.at)]


class Names(click.ParamType):
    """Comma-separated names."""

    name = "a,b"

    def convert(self, value: Any, param: Any, ctx: Any) -> list[str]:
        return value.split(",") if isinstance(value, str) else value


def compared(function: Decorated) -> Decorated:
    """Add the arguments that the three commands share."""
    adds: list[Callable[[Decorated], Decorated]] = [
        argument("groups", GROUP, nargs=-1, required=True, type=RunFolder(str), metavar="GROUP..."),
        click.option(
            "--metrics", "--metric", "metrics", type=Names(), metavar="A,B",
            help="return, success, loss, or names as in metrics.jsonl; default: return, and "
                "success if every run has it.",
        ),
        click.option("--at", type=POSITIVE_INT, metavar="FRAMES", help="Env frames to compare at."),
        click.option(
            "--normalize", default="auto", metavar="RULE",
            help="How scores of several tasks are normalized: auto, none, atari, dmc or minmax.",
        ),
    ]  # fmt: skip
    for add in reversed(adds):
        function = add(function)
    return function


against = click.option("--against", metavar="published[:METHOD]", help=PUBLISHED)
