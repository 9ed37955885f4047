"""Validation of tags and of names that become parts of file names."""

from __future__ import annotations

import re

from dreamlab.core.errors import ConfigError

WORD = re.compile(r"\w[\w.+-]{0,99}")
TAG = re.compile(r"[\w.:/+-]{1,100}")


def check_word(name: str, where: str) -> str:
    """Return a name valid in a file name; otherwise raise and suggest one."""
    if WORD.fullmatch(name):
        return name
    better = re.sub(r"[^\w.+-]+", "_", name).lstrip(".+-_")[:100] or "run"
    raise ConfigError(
        f"{where}: {name!r} is not a valid name: use letters, digits and . + - _, "
        f"at most 100, e.g. {better!r}"
    )


def check_tag(name: str, where: str) -> str:
    """Return a valid tag; otherwise raise and list the allowed characters."""
    if TAG.fullmatch(name):
        return name
    raise ConfigError(f"{where}: {name!r} is not a valid tag: use letters, digits and . : / + - _")
