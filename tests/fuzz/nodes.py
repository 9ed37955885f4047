"""Valid configurations, and ways to spoil them."""

from __future__ import annotations

import copy
import math
import types
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from random import Random
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from dreamlab.config import compose, load_config
from dreamlab.core.config import Part, dump
from dreamlab.core.limits import Range

EXPERIMENTS = (
    "ppo_cartpole", "dqn_rainbow_cartpole", "sac_pendulum", "dreamer_cartpole", "dreamer_debug",
    "dreamer_v1_cartpole_swingup", "dreamer_v2_cartpole", "planet_cartpole_swingup",
    "plan2explore_cartpole_swingup", "r2_dreamer_pixels",
)  # fmt: skip
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Option:
    """One value of a configuration: where it is, and what it must be."""

    path: Path
    hint: Any

    @property
    def kinds(self) -> tuple[Any, ...]:
        """Return the types that the value may have."""
        inner = _bare(self.hint)
        return get_args(inner) if get_origin(inner) in (Union, types.UnionType) else (inner,)

    @property
    def numbers(self) -> list[tuple[type, Range]]:
        """Return the numbers that the value may be."""
        parts = [self.hint]
        if get_origin(self.hint) in (Union, types.UnionType):
            parts = list(get_args(self.hint))
        made = [(get_args(p)[0], get_args(p)[1]) for p in parts if get_origin(p) is Annotated]
        return [(kind, limit) for kind, limit in made if isinstance(limit, Range)]

    @property
    def name(self) -> str:
        return ".".join(map(str, self.path))


def _bare(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _inside(hint: Any) -> list[Any]:
    """Return a type and, of an optional one, what it may be."""
    hint = _bare(hint)
    return list(get_args(hint)) if get_origin(hint) in (Union, types.UnionType) else [hint]


@cache
def plain(name: str) -> dict[str, Any]:
    """Return an experiment with every default written out."""
    return dump(load_config(compose([f"+experiment={name}"])))


@cache
def options(name: str) -> list[Option]:
    """Return every option of an experiment."""
    return list(_walk(load_config(compose([f"+experiment={name}"])), ()))


def _walk(config: Any, path: Path) -> Iterator[Option]:
    if isinstance(config, Part):
        yield from _walk(config.config, path)
    elif is_dataclass(config):
        hints = get_type_hints(type(config), include_extras=True)
        for field in (f for f in fields(config) if f.init):
            yield Option((*path, field.name), hints[field.name])
            yield from _walk(getattr(config, field.name), (*path, field.name))
    elif isinstance(config, dict):
        for key, value in config.items():
            yield from _walk(value, (*path, key))
    elif isinstance(config, tuple) and config and is_dataclass(config[0]):
        for i, value in enumerate(config):
            yield from _walk(value, (*path, i))


def changed(node: Any, path: Path, value: Any) -> Any:
    """Return the node with another value at the end of the path."""
    out = copy.deepcopy(node)
    at = out
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return out


def at(node: Any, path: Path) -> Any:
    """Return what is at the end of the path."""
    for key in path:
        node = node[key]
    return node


# -- values that an option must refuse ------------------------------------------------------------

ODD = ["\u2603", "", "nan", "ten", [], [[]], {}, {"a": 1}, [None], None, True, 1.5, -1, 10**30,
       math.nan, math.inf, -math.inf, 1e300, "0x", "1,2", "\u0661\u0662x"]  # fmt: skip


def is_wrong(option: Option, value: Any) -> bool:
    """Tell whether an option must refuse a value, by its declared type alone."""
    return not any(_fits(kind, value) for kind in _inside(option.hint)) or _is_out(option, value)


def _is_out(option: Option, value: Any) -> bool:
    """Tell whether a number of the right type is outside every range that is stated."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not option.numbers:
        return False
    return not any(_holds(kind, limit, value) for kind, limit in option.numbers)


def _holds(kind: type, limit: Range, value: float) -> bool:
    if not math.isfinite(value) or (kind is int and value != int(value)):
        return False
    low = value > limit.low if limit.open_low else value >= limit.low
    high = value < limit.high if limit.open_high else value <= limit.high
    return low and high and abs(value) < 1e30


def _fits(hint: Any, value: Any) -> bool:
    hint, origin = _bare(hint), get_origin(_bare(hint))
    if hint is Any:
        return True
    if hint is type(None):
        return value is None
    if origin is Literal:
        return value in get_args(hint)
    if hint in (int, float):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if hint is int:
            return is_number and math.isfinite(value) and value == int(value)
        return is_number or (isinstance(value, str) and value == "nan")
    if hint in (bool, str):
        return isinstance(value, hint)
    if hint is Part:
        return isinstance(value, str | dict)
    if origin is dict or is_dataclass(hint):
        return isinstance(value, dict)
    return isinstance(value, list | tuple)


def misspelt(rng: Random, word: str) -> str:
    """Return a word with one letter lost, doubled or turned into another."""
    i = rng.randrange(len(word))
    return rng.choice([word[:i] + word[i + 1 :], word[:i] + word[i] + word[i:], word[:i] + "_x"])
