"""Turns configuration nodes into frozen dataclasses, strictly: an unknown key is an error."""

from __future__ import annotations

import importlib
import inspect
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from dreamlab.core.errors import ConfigError, unknown

T = TypeVar("T")


@dataclass(frozen=True)
class Part:
    """A swappable component: the class a `_target_` names, and the options it will be built with.

    In YAML a part is its name (`encoder: cnn`), or its options with or without a `_target_`
    (`encoder: {_target_: my_package.MyEncoder, depth: 32}`). Short names are looked up in the
    `PARTS` table of the package `home`; anything with a dot is imported.
    """

    target: str
    options: dict[str, Any] = field(default_factory=dict)
    home: str = "dreamlab.nn"

    def cls(self, where: str = "part") -> Any:
        """Return the class, or raise naming the nearest one that exists."""
        return locate(self.target, where, self.home)

    def but(self, **options: Any) -> Part:
        """Return the same part with some options changed."""
        return replace(self, options={**self.options, **options})

    def build(self, *args: Any) -> Any:
        """Return the component; sizes that depend on other parts come as arguments."""
        cls = self.cls()
        if is_dataclass(config := getattr(cls, "Config", None)):
            return cls(load(config, self.options, self.target), *args)  # type: ignore[arg-type]
        return cls(*args, **self.options)


def part(target: str, home: str = "dreamlab.nn", **options: Any) -> Any:
    """Declare a dataclass field that holds a part, with its default."""
    return field(default_factory=lambda: Part(target, options, home))


def optional_part(home: str = "dreamlab.nn") -> Any:
    """Declare a dataclass field that holds a part or, by default, None."""
    return field(default=None, metadata={"home": home})


def locate(name: str, where: str, home: str = "") -> Any:
    """Return what `name` means: a short name from `home`, or `package.module.Class`."""
    table = getattr(importlib.import_module(home), "PARTS", {}) if home else {}
    path = table.get(name, name)
    if "." not in path:
        raise ConfigError(unknown("part", name, table, where))
    module_name, attr = path.replace(":", ".").rsplit(".", 1)
    module = _import(module_name, where)
    if not hasattr(module, attr):
        names = [n for n, v in vars(module).items() if inspect.isclass(v)]
        raise ConfigError(unknown(f"class in {module_name}", attr, names, where))
    return getattr(module, attr)


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
    hints = get_type_hints(cls)
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
            raise ConfigError(f"{path}: expected a mapping, got {value!r}")
        return {str(k): convert(v, args[1], f"{path}.{k}") for k, v in value.items()}
    return _convert_scalar(value, hint, path)


def _convert_scalar(value: Any, hint: Any, path: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)  # YAML reads 1e6 as a float
    if hint is float and isinstance(value, str):
        return _float_of_text(value, path)  # YAML reads 1e-4 (no dot) as text
    wrong_bool = isinstance(value, bool) and hint in (int, float)
    if isinstance(hint, type) and (wrong_bool or not isinstance(value, hint)):
        raise ConfigError(f"{path}: expected {hint.__name__}, got {value!r}")
    return value


def _float_of_text(value: str, path: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ConfigError(f"{path}: expected float, got {value!r}") from None


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
        raise ConfigError(f"{path}: expected a mapping of {hint.__name__} options, got {value!r}")
    return load(hint, value, path)


def _convert_sequence(value: Any, origin: Any, args: tuple[Any, ...], path: str) -> Any:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ConfigError(f"{path}: expected a list, got {value!r}")
    if origin is tuple and args and args[-1] is not Ellipsis:
        if len(args) != len(value):
            raise ConfigError(f"{path}: expected {len(args)} values, got {list(value)!r}")
        return tuple(
            convert(v, a, f"{path}[{i}]") for i, (v, a) in enumerate(zip(value, args, strict=True))
        )
    return origin(convert(v, args[0], f"{path}[{i}]") for i, v in enumerate(value))


def _convert_part(value: Any, path: str, default: Any) -> Part:
    if isinstance(value, Part):
        return value
    factory = getattr(default, "default_factory", MISSING)
    metadata = getattr(default, "metadata", {})
    base = Part("", home=metadata.get("home", Part.home)) if factory is MISSING else factory()
    if isinstance(value, str):
        value = {"_target_": value}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path}: expected a part's name or options, got {value!r}")
    options = {k: v for k, v in value.items() if k != "_target_"}
    target = value.get("_target_", base.target)
    if not target:
        raise ConfigError(f"{path}: _target_ is missing: there is no default that it could mean")
    merged = options if target != base.target else {**base.options, **options}
    result = Part(target, merged, base.home)
    check_options(result.cls(path), merged, path)
    return result


def check_options(cls: Any, options: Mapping[str, Any], path: str) -> None:
    """Raise if `cls` would not accept these options."""
    if is_dataclass(config := getattr(cls, "Config", None)):
        load(config, options, path)  # type: ignore[arg-type]
        return
    parameters = inspect.signature(cls).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    names = [p.name for p in parameters]
    for key in options:
        if key not in names:
            raise ConfigError(unknown(f"{cls.__name__} option", key, names, f"{path}.{key}"))


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


__all__ = ["Part", "check_options", "convert", "dump", "load", "locate", "optional_part", "part"]
