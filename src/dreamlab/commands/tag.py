"""`dreamlab tag`: add or remove tags of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dreamlab.commands.arguments import Verb, argument, as_json, root, run_name
from dreamlab.commands.catalogue import finds_runs
from dreamlab.commands.printing import json_text
from dreamlab.core.text import one_line, print
from dreamlab.runs.query import find_run
from dreamlab.runs.run import Run

REMOVE = "--remove"


class Tag(Verb):
    """Parse `--remove a b` as `--remove a --remove b`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        out: list[str] = []
        taken = -1  # how many tags followed the last --remove
        for word in [*args, ""]:
            if taken == 0 and (not word or word.startswith("-")):
                raise click.BadOptionUsage(REMOVE, f"{REMOVE} needs a tag", ctx)
            if taken >= 0 and not word.startswith("-"):
                out += [REMOVE, word] if taken else [word]
                taken += 1
            else:
                out.append(word)
                taken = 0 if word == REMOVE else -1
        return super().parse_args(ctx, out[: -2 if taken > 0 else -1])


@click.command(
    "tag",
    cls=Tag,
    examples=(
        "dreamlab tag experiments/first baseline keep",
        "dreamlab tag 3f2a --remove keep",
    ),
)
@run_name()
@argument("add", "tags to add", nargs=-1, metavar="[TAG]...")
@click.option(REMOVE, multiple=True, metavar="TAG...", help="Tags to remove.")
@root
@as_json
@finds_runs
def command(add: tuple[str, ...], remove: tuple[str, ...], as_json: bool, **where: Any) -> int:
    """Add or remove tags of a run; without arguments, print its tags.

    `dreamlab cleanup` never touches runs tagged `keep`.
    """
    given: Path = find_run(where["run"], where["root"])
    run = Run(given)
    tags = run.tag([*add], [*remove]) if add or remove else run.tags()
    if as_json:
        about = {"id": run.manifest.get("id"), "folder": str(run.folder), "tags": tags}
        print(json_text(about))
    else:
        print(one_line(f"{run.folder}: {', '.join(tags) or 'no tags'}"))
    return 0
