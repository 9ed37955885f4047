"""The verbs that find and look at runs: list, show, tag, logs, diff, index.

Exit codes: 0 if all went well, 1 if nothing was found, 2 for a mistake in what was typed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

from dreamlab.commands.arguments import Parser, natural, positive_int
from dreamlab.commands.printing import json_text, warn
from dreamlab.core.errors import LabError
from dreamlab.core.text import one_line, print, visible
from dreamlab.runs import describe
from dreamlab.runs import index as indexed
from dreamlab.runs.event_log import Line, Story
from dreamlab.runs.find import ROOT
from dreamlab.runs.query import (
    COLUMNS,
    Answer,
    NothingFoundError,
    ask,
    find_run,
    matches,
    parse_filter,
)
from dreamlab.runs.run import Run
from dreamlab.runs.run_row import GOING, live_status, read_row

Verb = Callable[[Sequence[str]], int]


def _verb(function: Verb) -> Verb:
    """Return a verb that ends with 1 if there is no such run, and with 2 if the disk refuses."""

    @wraps(function)
    def run(args: Sequence[str]) -> int:
        try:
            return function(args)
        except NothingFoundError as error:
            print(error, file=sys.stderr)
            return 1
        except BrokenPipeError:  # nobody reads on: that is for `main`
            raise
        except OSError as error:
            raise LabError(str(error)) from None

    return run


def _parser(verb: str, *, run: bool = True) -> Parser:
    parser = Parser(prog=f"dreamlab {verb}")
    parser.add_argument("--json", action="store_true", help="for programs instead of people")
    if run:
        parser.add_argument(
            "--root", type=Path, default=ROOT, help=f"where ids and names are looked up ({ROOT})"
        )
    return parser


def _print_json(data: Any) -> None:
    print(json_text(data))


def _read(root: Path, paths: Sequence[str] = (), make: bool = False) -> indexed.Listing:
    """Return the runs below a folder; on a terminal, say how far that is if it takes a while."""
    shown = False

    def tell(done: int, total: int) -> None:
        nonlocal shown
        if done and sys.stderr.isatty():
            sys.stderr.write(f"\rreading {done:,} of {total:,} runs")
            sys.stderr.flush()
            shown = True

    listing = indexed.read(root, paths, tell, make=make)
    if shown:
        sys.stderr.write("\r\033[K")
    return listing


@_verb
def list(args: Sequence[str]) -> int:
    """List the runs below some folders."""
    parser = _parser("list", run=False)
    parser.add_argument("roots", nargs="*", type=Path, metavar="ROOT")
    parser.add_argument(
        "--filter", action="append", default=[], metavar="KEY=VALUE", help="= != > >= < <= ~"
    )
    parser.add_argument("--sort", default="", metavar="KEY", help="numbers from the highest")
    parser.add_argument("--reverse", action="store_true")
    parser.add_argument("--limit", type=positive_int, metavar="N")
    options = parser.parse_args(args)
    filters = [parse_filter(f) for f in options.filter]
    roots = options.roots or [ROOT]
    answer = ask(roots, filters, options.sort, options.reverse, _read)
    warn(answer.notes)
    rows = answer.rows[: options.limit]
    if options.json:
        _print_json([describe.public(r) for r in rows])
    elif rows:
        keys = [*(f.key for f in filters), options.sort]
        print(describe.table(rows, [k for k in keys if k in rows[0] and k not in COLUMNS]))
    else:
        places = ", ".join(map(str, roots))
        print(f"no run in {places}{' fulfils these filters' if filters else ''}", file=sys.stderr)
    return 0 if rows else 1


@_verb
def show(args: Sequence[str]) -> int:
    """Tell everything about one run."""
    parser = _parser("show")
    parser.add_argument("run", metavar="RUN", help="a folder, an id or its beginning, or a name")
    parser.add_argument("--diff", action="store_true", help="only the stored git diff")
    options = parser.parse_args(args)
    answer: Answer = matches(options.run, options.root)
    warn(answer.notes)
    if options.diff:
        manifest = Run(Path(answer.rows[0]["folder"])).manifest
        diff = str((manifest.get("git") or {}).get("diff", ""))
        # a patch is applied as it is; who reads it on a terminal is spared its control characters
        sys.stdout.write(visible(diff) if sys.stdout.isatty() else diff)
        return 0
    found = [describe.everything(row) for row in answer.rows]
    if options.json:
        _print_json(found[0] if len(found) == 1 else found)
    else:
        print("\n\n".join(describe.page(one) for one in found))
    return 0


@_verb
def tag(args: Sequence[str]) -> int:
    """Give a run tags, or take them away; without any, print those it has."""
    parser = _parser("tag")
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("add", nargs="*", metavar="TAG")
    parser.add_argument("--remove", nargs="+", default=[], metavar="TAG")
    options = parser.parse_args(args)
    run = Run(find_run(options.run, options.root))
    asked = options.add or options.remove
    tags = run.tag(options.add, options.remove) if asked else run.tags()
    if options.json:
        _print_json({"id": run.manifest.get("id"), "folder": str(run.folder), "tags": tags})
    else:
        print(one_line(f"{run.folder}: {', '.join(tags) or 'no tags'}"))
    return 0


@_verb
def logs(args: Sequence[str]) -> int:
    """Print a run's events and metrics."""
    parser = _parser("logs")
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--follow", action="store_true", help="go on until the run ends")
    parser.add_argument("--last", type=natural, metavar="N", help="only the last N lines")
    options = parser.parse_args(args)
    folder = find_run(options.run, options.root)

    def tell(line: Line) -> None:
        text = json_text(line.plain(), None) if options.json else line.text()
        print(text, flush=options.follow)

    def goes_on() -> bool:
        return live_status(read_row(folder)[0], folder, time.time()) in GOING

    events = Story(folder)
    told = events.so_far()
    for line in told if options.last is None else told[len(told) - options.last :]:
        tell(line)
    try:
        for line in events.to_come(goes_on) if options.follow else ():
            tell(line)
    except KeyboardInterrupt:
        return 0
    finally:
        warn(events.damage)
    return 0 if told or options.follow else 1


@_verb
def diff(args: Sequence[str]) -> int:
    """Tell how two runs differ."""
    parser = _parser("diff")
    parser.add_argument("a", metavar="A")
    parser.add_argument("b", metavar="B")
    options = parser.parse_args(args)
    a, b = (find_run(name, options.root) for name in (options.a, options.b))
    found = describe.changes_between(a, b)
    if options.json:
        _print_json({"a": str(a), "b": str(b), **found})
    else:
        print("\n".join(describe.compared(found)))
    return 0


@_verb
def index(args: Sequence[str]) -> int:
    """Bring the index of a folder up to date, or make it anew."""
    parser = _parser("index", run=False)
    parser.add_argument("root", nargs="?", type=Path, default=ROOT, metavar="ROOT")
    parser.add_argument("--rebuild", action="store_true", help="forget the index and read all runs")
    options = parser.parse_args(args)
    if not options.root.is_dir():
        raise NothingFoundError(f"{options.root}: there is no such folder")
    if options.rebuild and not indexed.remove(options.root):
        raise LabError(
            f"{options.root / indexed.FILE} cannot be removed: it is in use, read-only, "
            "or no index of runs"
        )
    listing = _read(options.root, make=True)
    warn(listing.notes)
    found = {"root": str(options.root), "runs": len(listing.rows), "read": listing.read}
    if options.json:
        _print_json(found)
    else:
        print(f"{options.root}: {found['runs']} runs, {found['read']} of them read anew")
    return 0 if listing.rows else 1
