"""`dreamlab diff`: compare two runs."""

from __future__ import annotations

from pathlib import Path

from dreamlab.commands.arguments import as_json, root, run_name, verb
from dreamlab.commands.catalogue import finds_runs
from dreamlab.commands.printing import json_text
from dreamlab.core.text import print
from dreamlab.runs import describe
from dreamlab.runs.query import find_run


@verb(
    "diff",
    "dreamlab diff experiments/first experiments/second",
    "dreamlab diff 3f2a 91bc --json",
)
@run_name("a")
@run_name("b")
@root
@as_json
@finds_runs
def command(a: str, b: str, root: Path, as_json: bool) -> int:
    """Show how two runs differ: options, code, versions, machine, results."""
    one, other = find_run(a, root), find_run(b, root)
    found = describe.changes_between(one, other)
    if as_json:
        print(json_text({"a": str(one), "b": str(other), **found}))
    else:
        print("\n".join(describe.compared(found)))
    return 0
