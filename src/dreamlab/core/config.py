"""Strict loading of config nodes into frozen dataclasses: an unknown key is an error."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from dreamlab.core.errors import ConfigError, UnknownOptionError, unknown
from dreamlab.core.limits import Limit, shown
from dreamlab.core.locate import check_kind, locate

T = TypeVar("T")


@dataclass(frozen=True)
class Part:
    """A swappable component: the class named by `_target_`, and its config.

    In YAML a part is its name (`encoder: cnn`), or its options with or without a `_target_`
    (`encoder: {_target_: my_package.MyEncoder, depth: 32}`). Short names are looked up in the
    `PARTS` table of the package `home`; dotted names are imported. Only a class of the required
    `kind` is accepted: a subclass or, for a protocol, a class with its methods.
    """

    target: str
    config: Any
    """The loaded `Config` of the class, or keyword arguments if it has none."""
    home: str = "dreamlab.nn"
    kind: type | None = None
    """None requires a `torch.nn.Module`."""

    @classmethod
    def load(
        cls, target: str, options: Mapping[str, Any] | None = None, home: str = "dreamlab.nn",
        kind: type | None = None, where: str = "", base: Any = None,
    ) -> Part:  # fmt: skip
        """Load a part from its name and options; missing options are taken from `base`."""
        where = where or target
        found = Part(target, None, home, kind).cls(where)
        return Part(target, _options(found, options or {}, where, base), home, kind)

    def cls(self, where: str = "part") -> Any:
        """Return the class, or raise an error that suggests the nearest existing name."""
        found = locate(self.target, where, self.home)
        check_kind(found, self.kind, self.target, where)
        return found

    def but(self, **options: Any) -> Part:
        """Return a copy of this part with some options changed."""
        return replace(self, config=_options(self.cls(), options, self.target, self.config))

    def build(self, *args: Any) -> Any:
        """Build the component; sizes that depend on other parts are passed as arguments."""
        cls = self.cls()
        return cls(self.config, *args) if is_dataclass(self.config) else cls(*args, **self.config)


def _options(cls: Any, options: Mapping[str, Any], where: str, base: Any) -> Any:
    """Return the validated options for building this class."""
    if is_dataclass(schema := getattr(cls, "Config", None)):
        return load(schema, options, where, base)  # type: ignore[arg-type]
    return {**(base or {}), **arguments(cls, options, where)}


def part(target: str, home: str = "dreamlab.nn", kind: type | None = None, **options: Any) -> Any:
    """Declare a dataclass field for a part of a kind, with its default."""
    return field(default_factory=lambda: Part.load(target, options, home, kind))


def optional_part(home: str = "dreamlab.nn", kind: type | None = None) -> Any:
    """Declare a dataclass field for an optional part of a kind, None by default."""
    return field(default=None, metadata={"base": Part("", None, home, kind)})


def load(cls: type[T], node: Mapping[str, Any], where: str, base: T | None = None) -> T:
    """Load a `cls` from `node`; `where` is the config path shown in errors.

    Missing options are taken from the chosen preset, else from `base`, else from the defaults. A
    config's `presets` map each value of an option to the options it implies.
    """
    known = {f.name: f for f in fields(cls) if f.init}  # type: ignore[arg-type]
    values = {} if base is None else {k: getattr(base, k) for k in known}
    for options in (*_presets(cls, node, known, base), node):
        values |= _fields(cls, options, where, values)
    for name, f in known.items():
        if name not in values and f.default is MISSING and f.default_factory is MISSING:
            raise ConfigError(f"{where}.{name}: is required and was not given")
    try:
        return cls(**values)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def _presets(
    cls: type, node: Mapping[str, Any], known: Mapping[str, Field[Any]], base: Any
) -> Iterator[Mapping[str, Any]]:
    """Yield the options of the chosen presets, except those already applied to `base`."""
    for name, table in getattr(cls, "presets", {}).items():
        chosen = node.get(name, None if base is not None else known[name].default)
        if isinstance(chosen, str) and chosen in table:
            yield table[chosen]


def check_presets(config: Any) -> None:
    """Raise ValueError if a chosen preset has no effect on a config."""
    for name, table in type(config).presets.items():
        wanted = table.get(getattr(config, name), {})
        if wanted and not any(_has(getattr(config, k), v) for k, v in wanted.items()):
            raise ValueError(
                f"{name}={getattr(config, name)} has no effect: it is overridden by another "
                f"option; set {name}=null"
            )


def _has(value: Any, wanted: Any) -> bool:
    """Return whether a value, or any option in it, matches a preset."""
    if not isinstance(wanted, Mapping):
        return dump(value) == dump(wanted)
    options = value.config if isinstance(value, Part) else value
    options = options if isinstance(options, Mapping) else vars(options)
    return any(k in options and _has(options[k], v) for k, v in wanted.items())


def _fields(
    cls: type, node: Mapping[str, Any], where: str, below: Mapping[str, Any]
) -> dict[str, Any]:
    """Convert the given options to their types, each merged over the value in `below`."""
    hints = get_type_hints(cls, include_extras=True)
    known = {f.name: f for f in fields(cls) if f.init}
    values: dict[str, Any] = {}
    for key, value in node.items():
        path = f"{where}.{key}" if where else str(key)
        if key not in known:
            inside = _inside(str(key), {k: _below(f, below) for k, f in known.items()})
            names = inside or known
            text = unknown(f"{cls.__name__} option", str(key), names, path)
            raise UnknownOptionError(text, path)
        values[key] = convert(value, hints[key], path, _below(known[key], below))
    return values


def _below(f: Field[Any], below: Mapping[str, Any]) -> Any:
    """Return the value of an option that is not given."""
    under = below[f.name] if f.name in below else _default(f)
    return f.metadata.get("base") if under is None else under


def _inside(key: str, values: Mapping[str, Any]) -> list[str]:
    """Return the paths, within parts and nested configs, of options with this name."""
    configs = {k: getattr(v, "config", v) for k, v in values.items()}
    nested = {k: v for k, v in configs.items() if is_dataclass(v) and not isinstance(v, type)}
    return [f"{k}.{key}" for k, v in nested.items() if key in {f.name for f in fields(v)}]


def defaults(cls: type) -> dict[str, Any]:
    """Return the default of each option of a config that has one."""
    return {f.name: v for f in fields(cls) if f.init and (v := _default(f)) is not None}


def _default(f: Field[Any]) -> Any:
    if f.default_factory is not MISSING:
        return f.default_factory()
    return None if f.default is MISSING else f.default


def convert(value: Any, hint: Any, path: str, base: Any = None) -> Any:
    """Convert `value` to the type `hint`; an int is accepted as a float.

    Missing options of a dataclass or a part are taken from `base`.
    """
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _within(convert(value, args[0], path, base), args[1:], path)
    if hint is Any or isinstance(hint, TypeVar):
        return value
    if origin in (Union, types.UnionType):
        return _convert_union(value, args, path, base)
    if origin is Literal:
        if value not in args:
            raise ConfigError(unknown("choice", str(value), map(str, args), path))
        return value
    if hint is Part:
        return _convert_part(value, path, base)
    if is_dataclass(hint):
        return _convert_dataclass(value, hint, path, base)
    if origin in (tuple, list):
        return _convert_sequence(value, origin, args, path)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{path}: expected a mapping, got {shown(value)}")
        return {str(k): convert(v, args[1], f"{path}.{k}") for k, v in value.items()}
    return _convert_scalar(value, hint, path)


def _within(value: Any, limits: Sequence[Any], path: str) -> Any:
    """Return the value if it satisfies every limit in its annotation."""
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


def _convert_union(value: Any, args: tuple[Any, ...], path: str, base: Any) -> Any:
    if value is None and type(None) in args:
        return None
    errors: list[ConfigError] = []
    for arg in (a for a in args if a is not type(None)):
        try:
            return convert(value, arg, path, base)
        except ConfigError as error:
            errors.append(error)
    raise errors[0]


def _convert_dataclass(value: Any, hint: Any, path: str, base: Any) -> Any:
    if is_dataclass(value) and isinstance(value, hint):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{path}: expected a mapping of {hint.__name__} options, got {shown(value)}"
        )
    return load(hint, value, path, base if type(base) is hint else None)


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


def _convert_part(value: Any, path: str, base: Any) -> Part:
    if isinstance(value, Part):
        return value
    base = base if isinstance(base, Part) else Part("", None)
    if isinstance(value, str):
        value = {"_target_": value}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path}: expected a component's name or options, got {shown(value)}")
    options = {k: v for k, v in value.items() if k != "_target_"}
    target = value.get("_target_", base.target)
    if not isinstance(target, str):
        raise ConfigError(f"{path}._target_: expected the name of a class, got {target!r}")
    if not target:
        raise ConfigError(f"{path}: _target_ is missing, and there is no default")
    found = replace(base, target=target).cls(path)
    under = base.config if base.target and _same_options(found, base) else None
    return Part.load(target, options, base.home, base.kind, path, under)


def _same_options(cls: Any, base: Part) -> bool:
    """Return whether the options of `base` apply to this class: the same or a compatible one."""
    return cls is base.cls() or getattr(cls, "Config", None) is type(base.config)


def arguments(
    function: Callable[..., Any],
    options: Mapping[str, Any],
    path: str,
    kind: str = "",
    given: Sequence[str] = (),
) -> dict[str, Any]:
    """Convert options to the parameter types of `function`; raise on unknown ones.

    `given` are parameters passed by the caller; `kind` is the word for an option in errors.
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
            where = f"{path}.{key}"
            raise UnknownOptionError(unknown(kind, str(key), names, where), where)
    return out


def _parameters(function: Callable[..., Any], path: str) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (ValueError, TypeError):  # a builtin, or not a function
        raise ConfigError(f"{path}: {shown(function)} has no inspectable signature") from None


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the parameter types of a function or constructor, if they can be resolved."""
    called: Any = function.__init__ if isinstance(function, type) else function
    try:
        return get_type_hints(called, include_extras=True)
    except NameError:  # a name imported under TYPE_CHECKING only
        return {}


def dump(config: Any) -> Any:
    """Convert a config, including defaults, to plain data for YAML."""
    if isinstance(config, Part):
        return {"_target_": config.target, **dump(config.config)}
    if is_dataclass(config) and not isinstance(config, type):
        return {f.name: dump(getattr(config, f.name)) for f in fields(config) if f.init}
    if isinstance(config, Mapping):
        return {k: dump(v) for k, v in config.items()}
    if isinstance(config, list | tuple):
        return [dump(v) for v in config]
    return config


__all__ = [
    "Part", "arguments", "check_presets", "convert", "defaults", "dump", "load", "optional_part",
    "part",
]  # fmt: skip
