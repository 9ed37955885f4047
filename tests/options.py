"""Every option of the package, found by looking: config dataclasses, parts, makers of suites."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import dreamlab
from dreamlab.core.limits import Range
from dreamlab.envs import dummy, suites


def _skip(name: str) -> bool:
    return "kernels" in name  # Triton's own language, which is not for a CPU


@cache
def modules() -> list[types.ModuleType]:
    """Return every module of the package."""
    found = pkgutil.walk_packages(dreamlab.__path__, "dreamlab.")
    return [importlib.import_module(m.name) for m in found if not _skip(m.name)]


@cache
def configs() -> list[type]:
    """Return every config dataclass, and those that it contains."""
    seen: dict[type, None] = {}
    left = [c for m in modules() for c in vars(m).values() if _is_config(c)]
    left += [cls.Config for cls in parts() if hasattr(cls, "Config")]
    while left:
        if (cls := left.pop()) not in seen:
            seen[cls] = None
            hints = get_type_hints(cls, include_extras=True)
            left += [c for h in hints.values() for c in _leaves(h) if is_dataclass(c)]
    return sorted(seen, key=lambda c: (c.__module__, c.__name__))


def _is_config(value: Any) -> bool:
    if not (inspect.isclass(value) and value.__module__.startswith("dreamlab.")):
        return False
    return is_dataclass(value) and value.__name__.endswith("Config")


def _class(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


@cache
def parts() -> list[type]:
    """Return every class that configuration can name by a short name."""
    tables = [t for m in modules() if isinstance(t := getattr(m, "PARTS", None), dict)]
    return [_class(path) for table in tables for path in table.values()]


def makers() -> list[Callable[..., Any]]:
    """Return every function and class whose options are checked against its signature."""
    plain = [cls for cls in parts() if not hasattr(cls, "Config")]
    return [*plain, *map(_class, suites.SUITES.values()), *dummy.DUMMIES.values()]


def _leaves(hint: Any) -> Iterator[Any]:
    """Yield the types within a type, limits left aside."""
    if get_origin(hint) is Annotated:
        yield from _leaves(get_args(hint)[0])
    elif get_origin(hint) in (Union, types.UnionType, tuple, list, dict):
        for arg in get_args(hint):
            yield from _leaves(arg)
    else:
        yield hint


@dataclass(frozen=True)
class Number:
    """One number that can be configured: `kind` and `limits` of the value at the end of `path`."""

    owner: Any
    name: str
    kind: type
    limits: Range | None
    wrap: Callable[[Any], Any]
    """Puts a number where it belongs: into a list of as many."""

    def __str__(self) -> str:
        return f"{self.owner.__module__}.{self.owner.__name__}.{self.name}"


def _numbers(hint: Any, limits: Range | None, wrap: Callable[[Any], Any]) -> Iterator[tuple]:
    """Yield the kind, limits and wrapping of each number in a type."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        own = next((a for a in args[1:] if isinstance(a, Range)), None)
        yield from _numbers(args[0], own, wrap)
    elif origin in (Union, types.UnionType):
        for arg in args:
            yield from _numbers(arg, limits, wrap)
    elif origin in (tuple, list):
        many = len(args) if args[-1] is not Ellipsis else 1
        yield from _numbers(args[0], limits, lambda x: wrap([x] * many))
    elif origin is dict:
        yield from _numbers(args[1], limits, lambda x: wrap({"key": x}))
    elif hint in (int, float):
        yield hint, limits, wrap


@cache
def numbers() -> list[Number]:
    """Return every number that can be configured."""
    out: list[Number] = []
    for owner in [*configs(), *makers()]:
        is_plain = inspect.isclass(owner) and not is_dataclass(owner)
        called = owner.__init__ if is_plain else owner
        hints = get_type_hints(called, include_extras=True)
        init = {f.name for f in fields(owner) if f.init} if is_dataclass(owner) else set(hints)
        for name in (n for n in hints if n in init and n != "return"):
            for kind, limits, wrap in _numbers(hints[name], None, lambda x: x):
                out.append(Number(owner, name, kind, limits, wrap))
    return out
