"""What may be called what: names that become parts of files' names, and tags."""

from __future__ import annotations

import re

from dreamlab.core.errors import ConfigError

WORD = re.compile(r"\w[\w.+-]{0,99}")
TAG = re.compile(r"[\w.:/+-]{1,100}")


def check_word(name: str, where: str) -> str:
    """Return a name that can be part of a file's; raise with one that could be, otherwise."""
    if WORD.fullmatch(name):
        return name
    better = re.sub(r"[^\w.+-]+", "_", name).lstrip(".+-_")[:100] or "run"
    raise ConfigError(
        f"{where}: {name!r} is not a valid name: use letters, digits and . + - _, "
        f"at most 100, e.g. {better!r}"
    )


def check_tag(name: str, where: str) -> str:
    """Return a tag, or raise saying what one is made of."""
    if TAG.fullmatch(name):
        return name
    raise ConfigError(f"{where}: {name!r} is not a valid tag: use letters, digits and . : / + - _")
