"""Helpers of the commands that find and show runs.

Exit codes: 0 on success, 1 if nothing was found, 2 for a usage error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import ParamSpec

from dreamlab.core.errors import LabError
from dreamlab.core.text import print
from dreamlab.runs import index as indexed
from dreamlab.runs.query import NothingFoundError

P = ParamSpec("P")


def finds_runs(function: Callable[P, int]) -> Callable[P, int]:
    """Wrap a command: return 1 if no run is found, raise LabError on disk errors."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            return function(*args, **kwargs)
        except NothingFoundError as error:
            print(error, file=sys.stderr)
            return 1
        except BrokenPipeError:  # handled by `main`
            raise
        except OSError as error:
            raise LabError(str(error)) from None

    return run


def read_runs(root: Path, paths: Sequence[str] = (), make: bool = False) -> indexed.Listing:
    """Return the runs below a folder; on a terminal, show progress if it takes long."""
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
