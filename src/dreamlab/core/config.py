"""Turns configuration nodes into frozen dataclasses, strictly: an unknown key is an error."""

from __future__ import annotations

import importlib
import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from dreamlab.core.errors import ConfigError, unknown
from dreamlab.core.limits import Limit, shown

T = TypeVar("T")
PACKAGE = f"{__name__.partition('.')[0]}."
_OURS_ONLY: ContextVar[bool] = ContextVar("ours_only", default=False)


@contextmanager
def ours_only() -> Iterator[None]:
    """While open, a name of a class outside of this package is refused before it is imported."""
    token = _OURS_ONLY.set(True)
    try:
        yield
    finally:
        _OURS_ONLY.reset(token)


@dataclass(frozen=True)
class Part:
    """A swappable component: the class a `_target_` names, and the options it will be built with.

    In YAML a part is its name (`encoder: cnn`), or its options with or without a `_target_`
    (`encoder: {_target_: my_package.MyEncoder, depth: 32}`). Short names are looked up in the
    `PARTS` table of the package `home`; anything with a dot is imported. Only a class of the wanted
    `kind` is accepted: one derived from it or, if it is a protocol, one with its methods.
    """

    target: str
    options: dict[str, Any] = field(default_factory=dict)
    home: str = "dreamlab.nn"
    kind: type | None = None
    """None: a `torch.nn.Module`."""

    def cls(self, where: str = "part") -> Any:
        """Return the class, or raise naming the nearest one that exists."""
        found = locate(self.target, where, self.home)
        check_kind(found, self.kind, self.target, where)
        return found

    def but(self, **options: Any) -> Part:
        """Return the same part with some options changed."""
        return replace(self, options={**self.options, **options})

    def build(self, *args: Any) -> Any:
        """Return the component; sizes that depend on other parts come as arguments."""
        cls = self.cls()
        if is_dataclass(config := getattr(cls, "Config", None)):
            return cls(load(config, self.options, self.target), *args)  # type: ignore[arg-type]
        return cls(*args, **arguments(cls, self.options, self.target))


def part(target: str, home: str = "dreamlab.nn", kind: type | None = None, **options: Any) -> Any:
    """Declare a dataclass field that holds a part of a kind, with its default."""
    return field(default_factory=lambda: Part(target, options, home, kind))


def optional_part(home: str = "dreamlab.nn", kind: type | None = None) -> Any:
    """Declare a dataclass field that holds a part of a kind or, by default, None."""
    return field(default=None, metadata={"base": Part("", {}, home, kind)})


def locate(name: str, where: str, home: str = "") -> Any:
    """Return what `name` means: a short name from `home`, or `package.module.Class`."""
    table = getattr(importlib.import_module(home), "PARTS", {}) if home else {}
    path = table.get(name, name)
    words = path.replace(":", ".").split(".")
    if len(words) == 1:
        raise ConfigError(unknown("part", name, table, where))
    if not all(w.isidentifier() for w in words):
        raise ConfigError(f"{where}: {name!r} is no name of a class: package.module.Class is one")
    module_name, attr = ".".join(words[:-1]), words[-1]
    if _OURS_ONLY.get() and not module_name.startswith(PACKAGE):
        raise ConfigError(f"{where}: {name!r} is not part of dreamlab")
    module = _import(module_name, where)
    if not hasattr(module, attr):
        names = [n for n, v in vars(module).items() if inspect.isclass(v)]
        raise ConfigError(unknown(f"class in {module_name}", attr, names, where))
    return getattr(module, attr)


def check_kind(found: Any, kind: type | None, name: str, where: str) -> None:
    """Raise if what a name means is no class of the wanted kind; nothing is called."""
    if kind is None:
        from torch import nn  # listing runs shall not wait for torch

        kind = nn.Module
    path = f"{kind.__module__}.{kind.__name__}".replace("torch.nn.modules.module", "torch.nn")
    if not isinstance(found, type):
        what = type(found).__name__
        raise ConfigError(f"{where}: {name} is a {what}, and a class is wanted: a {path}")
    if _OURS_ONLY.get() and not found.__module__.startswith(PACKAGE):
        raise ConfigError(f"{where}: {name!r} is not part of dreamlab")
    if getattr(kind, "_is_protocol", False):
        protocols = [c for c in kind.__mro__ if getattr(c, "_is_protocol", False)]
        known = {n: v for c in reversed(protocols) for n, v in vars(c).items()}
        wanted = [n for n, v in known.items() if n[0] != "_" and _is_behaviour(v)]
        lacks = [n for n in wanted if not hasattr(found, n)]
        remedy = f"a class like {path} is wanted, with {', '.join(lacks)}"
    else:
        lacks, remedy = not issubclass(found, kind), f"a class derived from {path} is wanted"
    if lacks:
        raise ConfigError(f"{where}: {name} is not a {kind.__name__}: {remedy}")
    if inspect.isabstract(found):
        raise ConfigError(f"{where}: {name} is abstract: name a class derived from it")


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


def load(cls: type[T], node: Mapping[str, Any], where: str) -> T:
    """Return a `cls` filled from `node`; `where` is the config path shown in errors."""
    hints = get_type_hints(cls, include_extras=True)
    known = {f.name: f for f in fields(cls) if f.init}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in node.items():
        path = f"{where}.{key}" if where else str(key)
        if key not in known:
            raise ConfigError(unknown(f"{cls.__name__} option", str(key), known, path))
        values[key] = convert(value, hints[key], path, known[key])
    for name, f in known.items():
        if name not in values and f.default is MISSING and f.default_factory is MISSING:
            raise ConfigError(f"{where}.{name}: is required and was not given")
    try:
        return cls(**values)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def convert(value: Any, hint: Any, path: str, default: Any = None) -> Any:
    """Return `value` as what `hint` says it must be; an int passes for a float."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _within(convert(value, args[0], path, default), args[1:], path)
    if hint is Any or isinstance(hint, TypeVar):
        return value
    if origin in (Union, types.UnionType):
        return _convert_union(value, args, path, default)
    if origin is Literal:
        if value not in args:
            raise ConfigError(unknown("choice", str(value), map(str, args), path))
        return value
    if hint is Part:
        return _convert_part(value, path, default)
    if is_dataclass(hint):
        return _convert_dataclass(value, hint, path)
    if origin in (tuple, list):
        return _convert_sequence(value, origin, args, path)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{path}: expected a mapping, got {shown(value)}")
        return {str(k): convert(v, args[1], f"{path}.{k}") for k, v in value.items()}
    return _convert_scalar(value, hint, path)


def _within(value: Any, limits: Sequence[Any], path: str) -> Any:
    """Return the value if it obeys every limit written beside its type."""
    for limit in limits:
        if isinstance(limit, Limit):
            limit.check(value, path)
    return value


def _convert_scalar(value: Any, hint: Any, path: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return _float_of(value, path)
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)  # YAML reads 1e6 as a float
    if hint is float and isinstance(value, str):
        return _float_of(value, path)  # YAML reads 1e-4 (no dot) as text
    wrong_bool = isinstance(value, bool) and hint in (int, float)
    if isinstance(hint, type) and (wrong_bool or not isinstance(value, hint)):
        raise ConfigError(f"{path}: expected {hint.__name__}, got {shown(value)}")
    return value


def _float_of(value: str | int, path: str) -> float:
    try:
        return float(value)
    except (ValueError, OverflowError):
        raise ConfigError(f"{path}: expected float, got {shown(value)}") from None


def _convert_union(value: Any, args: tuple[Any, ...], path: str, default: Any) -> Any:
    if value is None and type(None) in args:
        return None
    errors: list[ConfigError] = []
    for arg in (a for a in args if a is not type(None)):
        try:
            return convert(value, arg, path, default)
        except ConfigError as error:
            errors.append(error)
    raise errors[0]


def _convert_dataclass(value: Any, hint: Any, path: str) -> Any:
    if is_dataclass(value) and isinstance(value, hint):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{path}: expected a mapping of {hint.__name__} options, got {shown(value)}"
        )
    return load(hint, value, path)


def _convert_sequence(value: Any, origin: Any, args: tuple[Any, ...], path: str) -> Any:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ConfigError(f"{path}: expected a list, got {shown(value)}")
    if origin is tuple and args and args[-1] is not Ellipsis:
        if len(args) != len(value):
            raise ConfigError(f"{path}: expected {len(args)} values, got {shown(list(value))}")
        return tuple(
            convert(v, a, f"{path}[{i}]") for i, (v, a) in enumerate(zip(value, args, strict=True))
        )
    return origin(convert(v, args[0], f"{path}[{i}]") for i, v in enumerate(value))


def _convert_part(value: Any, path: str, default: Any) -> Part:
    if isinstance(value, Part):
        return value
    factory = getattr(default, "default_factory", MISSING)
    metadata = getattr(default, "metadata", {})
    base = metadata.get("base", Part("")) if factory is MISSING else factory()
    if isinstance(value, str):
        value = {"_target_": value}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path}: expected a part's name or options, got {shown(value)}")
    options = {k: v for k, v in value.items() if k != "_target_"}
    target = value.get("_target_", base.target)
    if not isinstance(target, str):
        raise ConfigError(f"{path}._target_: expected the name of a class, got {target!r}")
    if not target:
        raise ConfigError(f"{path}: _target_ is missing: there is no default that it could mean")
    merged = options if target != base.target else {**base.options, **options}
    result = Part(target, merged, base.home, base.kind)
    check_options(result.cls(path), merged, path)
    return result


def check_options(cls: Any, options: Mapping[str, Any], path: str) -> None:
    """Raise if `cls` would not accept these options."""
    if is_dataclass(config := getattr(cls, "Config", None)):
        load(config, options, path)  # type: ignore[arg-type]
        return
    arguments(cls, options, path)


def arguments(
    function: Callable[..., Any],
    options: Mapping[str, Any],
    path: str,
    kind: str = "",
    given: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the options as the types that `function` declares; raise on what it does not take.

    `given` are parameters that come from elsewhere; `kind` is what errors call an option.
    """
    hints, parameters = _hints(function), _parameters(function, path)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    collected = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    names = [p.name for p in parameters.values() if p.kind not in collected and p.name not in given]
    out = dict(options)
    for key, value in options.items():
        if key in names:
            out[key] = convert(value, hints.get(key, Any), f"{path}.{key}")
        elif not takes_any or key in given:
            kind = kind or f"{function.__name__} option"
            raise ConfigError(unknown(kind, str(key), names, f"{path}.{key}"))
    return out


def _parameters(function: Callable[..., Any], path: str) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (ValueError, TypeError):  # something built in, or not even a function
        raise ConfigError(f"{path}: {shown(function)} does not tell its options") from None


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of a function's or a constructor's parameters, where they can be told."""
    called: Any = function.__init__ if isinstance(function, type) else function
    try:
        return get_type_hints(called, include_extras=True)
    except NameError:  # a name that only a type checker imports
        return {}


def dump(config: Any) -> Any:
    """Return a config as plain data, with every default written out, ready for YAML."""
    if isinstance(config, Part):
        cls = config.cls()
        options = config.options
        if is_dataclass(schema := getattr(cls, "Config", None)):
            options = dump(load(schema, options, config.target))  # type: ignore[arg-type]
        return {"_target_": config.target, **options}
    if is_dataclass(config) and not isinstance(config, type):
        return {f.name: dump(getattr(config, f.name)) for f in fields(config) if f.init}
    if isinstance(config, Mapping):
        return {k: dump(v) for k, v in config.items()}
    if isinstance(config, list | tuple):
        return [dump(v) for v in config]
    return config


__all__ = [
    "Part", "arguments", "check_options", "convert", "dump", "load", "locate", "optional_part",
    "part",
]  # fmt: skip
