"""Arguments of `sweep` and `tune`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click
from click.shell_completion import CompletionItem

from dreamlab.commands.arguments import Decorated, Override, argument
from dreamlab.config_files import choices
from dreamlab.core.text import print


@dataclass(frozen=True)
class Asked:
    """Parsed arguments of `sweep` or `tune`."""

    file: str | None
    overrides: tuple[str, ...]
    dry_run: bool
    show: bool
    retry_failed: bool


class SweepFile(click.ParamType):
    """A YAML file, or the name of a bundled one."""

    name = "file"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        return value

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        found = [CompletionItem(n) for n in choices("sweep") if n.startswith(incomplete)]
        return found or [CompletionItem(incomplete, type="file")]


def many(function: Decorated) -> Decorated:
    """Add the arguments that both commands share."""
    adds: list[Callable[[Decorated], Decorated]] = [
        argument(
            "file", "a YAML file, or a name in configs/sweep; omit it to list them",
            required=False, type=SweepFile(), metavar="[FILE]",
        ),
        argument(
            "overrides", "options of the sweep or of all its jobs",
            nargs=-1, type=Override(), metavar="[KEY=VALUE]...",
        ),
        click.option("--dry-run", is_flag=True, help="List the jobs and exit."),
        click.option("--show", is_flag=True, help="Print the results so far and exit."),
        click.option("--retry-failed", is_flag=True, help="Retry failed jobs."),
    ]  # fmt: skip
    for add in reversed(adds):
        function = add(function)
    return function


def list_sweeps() -> int:
    """Print the available sweeps."""
    print("sweeps:", ", ".join(choices("sweep")))
    return 0
