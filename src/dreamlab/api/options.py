"""Keyword arguments as words of the command line: `lr=1e-3` is `workflow.optimizer.lr=0.001`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from dreamlab.config import FIRST, LabConfig, compose, dump, load_config
from dreamlab.config_files import GROUPS
from dreamlab.core.errors import ConfigError
from dreamlab.core.words import text_of

WHOLE = {f.name for f in fields(LabConfig)} | set(GROUPS)
"""Names that are a whole key by themselves."""
ALIASES = {"run_dir": "run.dir"}


def to_words(base: Sequence[str], options: Mapping[str, Any]) -> list[str]:
    """Return the words of a command line: those given, and one for each keyword argument.

    A key with dots and the name of a section stand for themselves. Any other name must be that of
    one option only; which it is depends on the words before.
    """
    given = {ALIASES.get(k, k): v for k, v in options.items()}
    plain = {k: v for k, v in given.items() if "." in k or k in WHOLE}
    words = [*base, *(word(k, v) for k, v in plain.items())]
    short = {k: v for k, v in given.items() if k not in plain}
    if not short:
        return words
    known = list(paths(dump(load_config(compose(words)))))
    for name, value in short.items():
        if not ends_with(name, known):
            _check_foreign([*words, word(name, value)])
    return [*words, *(word(full_name(k, known), v) for k, v in short.items())]


def _check_foreign(words: Sequence[str]) -> None:
    """Raise if the last word is an option of another program, with what it is called here."""
    try:
        load_config(compose(words))
    except ConfigError as error:
        if getattr(error, "instead", None) is not None:
            raise


def word(key: str, value: Any) -> str:
    """Return one option as it is typed."""
    if key == "seed" and isinstance(value, list | tuple | range):
        raise ConfigError("seed: one run has one seed: call train once for each")
    return f"{key}={text_of(plain(value))}"


def plain(value: Any) -> Any:
    """Return a value as YAML knows it: no arrays, no paths."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | range):
        return [plain(v) for v in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ConfigError(f"an option is a number, text, a list or a dict, not {type(value).__name__}")


def full_name(name: str, known: Sequence[str]) -> str:
    """Return the one option that ends with this name; raise with the candidates or the nearest."""
    found = ends_with(name, known)
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(
            f"{name}: {len(found)} options have this name: {', '.join(found)}. "
            f'Write the one you mean, as in **{{"{found[0]}": ...}}'
        )
    ends = {k.rpartition(".")[2]: k for k in reversed(known)}
    near = get_close_matches(name, ends, n=1)
    hint = f" Did you mean {near[0]!r} ({ends[near[0]]})?" if near else ""
    raise ConfigError(
        f"there is no option {name!r}.{hint} `dreamlab train EXPERIMENT --cfg job` prints all."
    )


def ends_with(name: str, known: Sequence[str]) -> list[str]:
    """Return the options whose last part is this name, of the most interesting section first."""
    found = [k for k in known if k.rpartition(".")[2] == name]
    order = {section: i for i, section in enumerate(FIRST)}
    return sorted(found, key=lambda k: order.get(k.partition(".")[0], len(order)))


def paths(node: Any, path: str = "") -> Iterator[str]:
    """Yield the dotted name of every option below a node, sections included."""
    if isinstance(node, list | tuple):
        node = dict(enumerate(node)) if any(isinstance(v, Mapping) for v in node) else {}
    for key, value in node.items() if isinstance(node, Mapping) else ():
        inner = f"{path}.{key}" if path else str(key)
        yield inner
        yield from paths(value, inner)
