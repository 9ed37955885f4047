"""Untrusted text on its way to a terminal."""

from __future__ import annotations

import builtins
import sys
import unicodedata
from typing import Any


def visible(text: str, keep: str = "\n\t") -> str:
    r"""Return text whose control characters are shown (`\x1b`) and not obeyed by a terminal.

    So are marks that turn the direction of writing, and bytes of a file's name that are no text.
    """
    lines = text.split("\n")
    shown = [line if line.isprintable() else _shown(line, keep) for line in lines]
    return ("\n" if "\n" in keep else r"\n").join(shown)


def one_line(text: str) -> str:
    """Return text as one visible line, so that a name with a line break stays in one row."""
    return visible(text, keep="")


def _shown(line: str, keep: str) -> str:
    fine = (c.isprintable() or c in keep or unicodedata.category(c) == "Zs" for c in line)
    return "".join(
        c if ok else c.encode("unicode_escape").decode() for c, ok in zip(line, fine, strict=True)
    )


def print(
    *values: Any, sep: str = " ", end: str = "\n", file: Any = None, flush: bool = False
) -> None:
    """Print like the builtin, with control characters escaped."""
    out = sys.stdout if file is None else file
    builtins.print(visible(sep.join(map(str, values))), end=end, file=out, flush=flush)
