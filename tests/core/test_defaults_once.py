"""Every default is written in one place: along no path of construction does it stand twice."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from typing import Any

import pytest
from torch import nn

from dreamlab.config import LabConfig
from dreamlab.core.config import Part, part
from dreamlab.nn.layers import NetConfig
from tests.contract.found import PAIRS
from tests.options import modules, parts

BUILDING = ("dreamlab.nn", "dreamlab.components", "dreamlab.workflows", "dreamlab.data")


def default(f: Field[Any]) -> Any:
    return f.default_factory() if f.default_factory is not MISSING else f.default


def nested(config: Any) -> Iterator[Any]:
    """Yield the configs of a config: nested ones, and those of its parts."""
    for f in fields(config):
        value = default(f)
        inner = value.config if isinstance(value, Part) else value
        if is_dataclass(inner):
            yield inner


def roots() -> list[type]:
    """Return the configs from which all others are reached."""
    workflows = {cls.Config for cls, _ in PAIRS}
    named = {cls.Config for cls in parts() if hasattr(cls, "Config")}
    return sorted({LabConfig, *workflows, *named}, key=lambda c: c.__name__)


def written_twice(cls: type, above: dict[str, Any] | None = None) -> list[str]:
    """Return the options of a config that one below it has too, with the same default."""
    own = {f.name: default(f) for f in fields(cls) if default(f) is not MISSING}
    plain = {k: v for k, v in own.items() if isinstance(v, int | float | str) and v != 0}
    found = [k for k, v in plain.items() if (above or {}).get(k, MISSING) == v]
    for inner in nested(cls):
        found += written_twice(type(inner), {**(above or {}), **plain})
    return found


def inherited_again(cls: type) -> list[str]:
    """Return the options that a config declares again with the default that it inherits."""
    found = []
    for base in cls.__bases__:
        old = {f.name: default(f) for f in fields(base)} if is_dataclass(base) else {}
        new = {f.name: default(f) for f in fields(cls) if f.name in vars(cls)["__annotations__"]}
        found += [k for k, v in new.items() if k in old and v == old[k]]
    return found


def built() -> list[type]:
    """Return every class that is built from a config, or by one that is."""
    found = {c for m in modules() for c in vars(m).values() if inspect.isclass(c)}
    ours = [c for c in found if c.__module__.startswith(BUILDING)]
    return sorted(
        (c for c in ours if issubclass(c, nn.Module) or hasattr(c, "Config")),
        key=lambda c: (c.__module__, c.__name__),
    )


def repeated_arguments(cls: type, options: dict[str, list[Any]]) -> list[str]:
    """Return a constructor's arguments whose default is that of an option of the same name."""
    parameters = inspect.signature(cls.__init__).parameters.values()
    given = {p.name: p.default for p in parameters if p.default is not p.empty}
    return [k for k, v in given.items() if hasattr(cls, "Config") or v in options.get(k, [])]


def options_of_networks() -> dict[str, list[Any]]:
    """Return the options, of whatever config, from which networks are built, and their defaults."""
    found: dict[str, list[Any]] = {}
    for cls in (c for m in modules() for c in vars(m).values() if is_dataclass(c)):
        if cls.__module__.startswith(BUILDING) and cls.__name__.endswith("Config"):
            for f in fields(cls):
                found.setdefault(f.name, []).append(default(f))
    return found


@pytest.mark.parametrize("cls", roots(), ids=lambda c: c.__name__)
def test_no_option_has_its_default_again_in_a_part_of_it(cls):
    assert written_twice(cls) == []


@pytest.mark.parametrize("cls", roots(), ids=lambda c: c.__name__)
def test_no_option_is_declared_again_with_the_default_it_inherits(cls):
    assert inherited_again(cls) == []


def test_no_constructor_has_a_default_of_its_own_for_an_option():
    options = options_of_networks()
    found = {f"{c.__module__}.{c.__name__}": repeated_arguments(c, options) for c in built()}
    assert {k: v for k, v in found.items() if v} == {}


# -- the checks themselves ------------------------------------------------------------------------


@dataclass(frozen=True)
class Wide(NetConfig):
    units: int = 1024


@dataclass(frozen=True)
class Outer:
    num_bins: int = 255
    critic: Part = part("two_hot", "dreamlab.components", object)
    inner: NetConfig = field(default_factory=NetConfig)


class Head(nn.Module):
    def __init__(self, in_dim: int, num_bins: int = 255) -> None:
        super().__init__()


def test_what_stands_twice_is_found():
    assert written_twice(Outer) == ["num_bins"]
    assert inherited_again(Wide) == ["units"]
    assert repeated_arguments(Head, options_of_networks()) == ["num_bins"]
