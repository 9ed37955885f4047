"""Text that others may have written, on its way to a terminal or into a file's name."""

from __future__ import annotations

import builtins
import re
import sys
from typing import Any

from dreamlab.core.errors import ConfigError

LAYOUT = "\n\t"
WORD = re.compile(r"\w[\w.+-]{0,99}")
TAG = re.compile(r"[\w.:/+-]{1,100}")


def visible(text: str, keep: str = LAYOUT) -> str:
    r"""Return text whose control characters are shown (`\x1b`) and not obeyed by a terminal.

    So are marks that turn the direction of writing, and bytes of a file's name that are no text.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else _escaped(c) for c in text)


def one_line(text: str) -> str:
    """Return text as one visible line: a name with a line break does not become two rows."""
    return visible(text, keep="")


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def print(
    *values: Any, sep: str = " ", end: str = "\n", file: Any = None, flush: bool = False
) -> None:
    """Print as the builtin does, with control characters shown instead of obeyed."""
    out = sys.stdout if file is None else file
    builtins.print(visible(sep.join(map(str, values))), end=end, file=out, flush=flush)


def check_word(name: str, where: str) -> str:
    """Return a name that can be part of a file's; raise with one that could be, otherwise."""
    if WORD.fullmatch(name):
        return name
    better = re.sub(r"[^\w.+-]+", "_", name).lstrip(".+-_")[:100] or "run"
    raise ConfigError(
        f"{where}: {name!r} cannot be a name: use letters, digits and . + - _, "
        f"at most 100, e.g. {better!r}"
    )


def check_tag(name: str, where: str) -> str:
    """Return a tag, or raise saying what one is made of."""
    if TAG.fullmatch(name):
        return name
    raise ConfigError(f"{where}: {name!r} cannot be a tag: use letters, digits and . : / + - _")
