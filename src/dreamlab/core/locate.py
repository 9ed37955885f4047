"""Resolve class names in a configuration, and reject classes of the wrong kind."""

from __future__ import annotations

import importlib
import inspect
import types
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from dreamlab.core.errors import ConfigError, unknown

PACKAGE = f"{__name__.partition('.')[0]}."
_OURS_ONLY: ContextVar[bool] = ContextVar("ours_only", default=False)


@contextmanager
def ours_only() -> Iterator[None]:
    """Inside the block, reject classes outside of this package before importing them."""
    token = _OURS_ONLY.set(True)
    try:
        yield
    finally:
        _OURS_ONLY.reset(token)


def locate(name: str, where: str, home: str = "") -> Any:
    """Resolve `name`: a short name from `home`, or `package.module.Class`."""
    table = getattr(importlib.import_module(home), "PARTS", {}) if home else {}
    path = table.get(name, name)
    words = path.replace(":", ".").split(".")
    if len(words) == 1:
        raise ConfigError(unknown("part", name, table, where))
    if not all(w.isidentifier() for w in words):
        raise ConfigError(f"{where}: {name!r} is not a class path: expected package.module.Class")
    module_name, attr = ".".join(words[:-1]), words[-1]
    if _OURS_ONLY.get() and not module_name.startswith(PACKAGE):
        raise ConfigError(f"{where}: {name!r} is not part of dreamlab")
    module = _import(module_name, where)
    if not hasattr(module, attr):
        names = [n for n, v in vars(module).items() if inspect.isclass(v)]
        raise ConfigError(unknown(f"class in {module_name}", attr, names, where))
    return getattr(module, attr)


def check_kind(found: Any, kind: type | None, name: str, where: str) -> None:
    """Raise unless `found` is a class of the required kind; nothing is called."""
    if kind is None:
        from torch import nn  # listing runs must not import torch

        kind = nn.Module
    path = f"{kind.__module__}.{kind.__name__}".replace("torch.nn.modules.module", "torch.nn")
    if not isinstance(found, type):
        what = type(found).__name__
        raise ConfigError(f"{where}: {name} is a {what}, but a class is required: a {path}")
    if _OURS_ONLY.get() and not found.__module__.startswith(PACKAGE):
        raise ConfigError(f"{where}: {name!r} is not part of dreamlab")
    if getattr(kind, "_is_protocol", False):
        bases = [b for b in kind.__mro__ if getattr(b, "_is_protocol", False)]
        methods = {n: v for b in reversed(bases) for n, v in vars(b).items() if n[0] != "_"}
        wanted = [n for n, v in methods.items() if _is_behaviour(v)]
        lacks = [n for n in wanted if not hasattr(found, n)]
        remedy = f"a class like {path} is required, with {', '.join(lacks)}"
    else:
        lacks, remedy = not issubclass(found, kind), f"a subclass of {path} is required"
    if lacks:
        raise ConfigError(f"{where}: {name} is not a {kind.__name__}: {remedy}")
    if inspect.isabstract(found):
        raise ConfigError(f"{where}: {name} is abstract: use a subclass of it")


def _is_behaviour(value: Any) -> bool:
    return inspect.isfunction(value) or isinstance(value, property)


def _import(name: str, where: str) -> types.ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        parent = name.rsplit(".", 1)[0] if "." in name else ""
        raise ConfigError(unknown("module", name, _siblings(parent), where)) from None


def _siblings(package: str) -> list[str]:
    import pkgutil

    try:
        paths = getattr(importlib.import_module(package), "__path__", []) if package else []
    except ModuleNotFoundError:
        return []
    return [f"{package}.{m.name}" for m in pkgutil.iter_modules(paths)]


__all__ = ["check_kind", "locate", "ours_only"]
