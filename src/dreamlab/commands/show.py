"""`dreamlab show`: show a run."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from dreamlab.commands.arguments import as_json, root, run_name, verb
from dreamlab.commands.catalogue import finds_runs
from dreamlab.commands.printing import json_text, warn
from dreamlab.core.text import print, visible
from dreamlab.runs import describe
from dreamlab.runs.query import Answer, matches
from dreamlab.runs.run import Run


@verb(
    "show",
    "dreamlab show experiments/first",
    "dreamlab show 3f2a --diff | git apply",
)
@run_name()
@click.option("--diff", is_flag=True, help="Print only the stored git diff.")
@root
@as_json
@finds_runs
def command(run: str, diff: bool, root: Path, as_json: bool) -> int:
    """Show a run: results, options, code, machine, and the command that resumes it."""
    answer: Answer = matches(run, root)
    warn(answer.notes)
    if diff:
        manifest = Run(Path(answer.rows[0]["folder"])).manifest
        patch = str((manifest.get("git") or {}).get("diff", ""))
        # a patch is written unchanged to a file or pipe, and escaped on a terminal
        sys.stdout.write(visible(patch) if sys.stdout.isatty() else patch)
        return 0
    found = [describe.everything(row) for row in answer.rows]
    if as_json:
        print(json_text(found[0] if len(found) == 1 else found))
    else:
        print("\n\n".join(describe.page(one) for one in found))
    return 0
