"""Says what an option with an unknown name is called here, for the configuration that has it."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from dreamlab.core.config import dump
from dreamlab.core.errors import ConfigError, UnknownOptionError
from dreamlab.core.foreign_words import BY_NAME, Found, find, spoken
from dreamlab.core.words import text_of
from dreamlab.runs.options import flatten

Node = dict[str, Any]
MOST_UNKNOWN = 50
MOST_PLACES = 3


def answered(
    error: UnknownOptionError, node: Node, read: Callable[[Node], Any]
) -> UnknownOptionError:
    """Return the error with what to type instead, if another program or another place has it.

    `read` makes a configuration of a node: what it has without the unknown options is suggested.
    """
    misspelt = "Did you mean" in str(error) and error.path not in BY_NAME
    flat = None if misspelt else without_unknown(error, node, read)
    if flat is None:
        return error
    given = spoken(error.path, _get(node, _keys(error.path)))
    found = {name: hit for name, value in given.items() if (hit := find(name, value, flat))}
    if found:
        return _told(error, found)
    leaf = error.path.rpartition(".")[2]
    places = [k for k in flat if k.endswith(f".{leaf}")]
    if not places:
        return error
    among = " or ".join(map(repr, places[:MOST_PLACES]))
    text = f"{str(error).partition(chr(10))[0]} Did you mean {among}?"
    return UnknownOptionError(text, error.path)


def _told(error: UnknownOptionError, found: dict[str, Found]) -> UnknownOptionError:
    said = "\n".join(f"{name}: {hit.text}" for name, hit in found.items())
    instead = {k: v for hit in found.values() for k, v in hit.answer.items()}
    typed = f"\n  {' '.join(assignments(instead))}" if instead else ""
    out = UnknownOptionError(f"{said}{typed}", error.path)
    out.said, out.instead = said, instead
    return out


def without_unknown(
    error: UnknownOptionError, node: Node, read: Callable[[Node], Any]
) -> dict[str, Any] | None:
    """Return every option of the configuration without those that do not exist; None if it fails.

    That is what the node would be if nothing unknown had been typed.
    """
    node = deepcopy(node)
    for _ in range(MOST_UNKNOWN):
        if not _remove(node, _keys(error.path)):
            return None
        try:
            return flatten(dump(read(node)))
        except UnknownOptionError as another:
            error = another
        except ConfigError:
            return None
    return None


def assignments(options: dict[str, Any]) -> list[str]:
    """Return options as words of a command line."""
    return [f"{key}={text_of(value)}" for key, value in options.items()]


def _keys(path: str) -> list[str]:
    return re.findall(r"[^.\[\]]+", path)


def _get(node: Any, keys: list[str]) -> Any:
    for key in keys:
        node = node[int(key)] if isinstance(node, list | tuple) else node[key]
    return node


def _remove(node: Any, keys: list[str]) -> bool:
    """Take an option out of a tree; return whether it was there."""
    try:
        inside = _get(node, keys[:-1])
        del inside[keys[-1]]
    except (KeyError, IndexError, TypeError, ValueError):
        return False
    return True
