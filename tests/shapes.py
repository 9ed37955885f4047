"""Shapes enforced: while tests run, what signatures say of tensors is checked.

An import hook as jaxtyping's own, with beartype, but for four things: only annotations of tensors
are checked (pyright sees to the rest); a function without any is left alone; shapes and types that
were right once are not looked at again (both make it cheap); and what is being compiled, exported
or traced runs as it is written.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any, get_args, get_origin, get_type_hints

import jaxtyping
import torch
from beartype.door import die_if_unbearable
from jaxtyping import AbstractArray, jaxtyped
from torch import Tensor

ROOMS = ("ops", "nn", "components", "workflows")
"""Not accel: a wrapped Triton kernel cannot be compiled."""
MARK = "__with_shapes_checked__"


def is_shape(node: ast.AST) -> bool:
    """Tell whether this is `Float[...]`, or another of jaxtyping's types, in a program's text."""
    named = isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)
    return named and hasattr(jaxtyping, node.value.id)


def signature(node: ast.FunctionDef | ast.ClassDef) -> list[ast.expr]:
    """Return the annotations of what a function takes and returns, or of a dataclass's fields."""
    if isinstance(node, ast.ClassDef):
        return [x.annotation for x in node.body if isinstance(x, ast.AnnAssign)]
    a = node.args
    args = [*a.posonlyargs, *a.args, a.vararg, *a.kwonlyargs, a.kwarg]
    found = [x.annotation for x in args if x is not None] + [node.returns]
    return [x for x in found if x is not None]


def is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(d) for d in node.decorator_list)


def bare_tensors(text: str) -> list[str]:
    """Return line and name of all whose signature has a tensor without a shape."""
    nodes = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    kept = [n for n in nodes if isinstance(n, ast.FunctionDef) or is_dataclass(n)]
    return [f"{n.lineno} {n.name}" for n in kept if any(map(_has_bare, signature(n)))]


def _has_bare(hint: ast.AST) -> bool:
    if isinstance(hint, ast.Name):
        return hint.id == "Tensor"
    return not is_shape(hint) and any(map(_has_bare, ast.iter_child_nodes(hint)))


def checked(target: Any) -> Any:
    """Return a function, or a dataclass, whose tensors are checked at every call."""
    if isinstance(target, type):
        target.__init__ = checked(target.__init__)
        return target

    @wraps(target)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or torch.jit.is_tracing():
            return target(*args, **kwargs)
        contract = contract_of(target)
        key = shapes_of((args, kwargs))
        contract.check(key, args, kwargs)
        out = target(*args, **kwargs)
        contract.check((key, shapes_of(out)), args, kwargs, {"return": out})
        return out

    return call


class Contract:
    """What a function says of its tensors. What was found right once is not looked at again."""

    def __init__(self, fn: Any) -> None:
        hints = get_type_hints(fn, include_extras=True)
        self.hints = {k: v for k, v in hints.items() if has_shape(v)}
        self.name, self.signature = fn.__qualname__, inspect.signature(fn)
        self.seen: set[Any] = set()

    def check(
        self, key: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Mapping[str, Any] = {}
    ) -> None:
        """Raise unless arguments, and what was returned, are as annotated and agree in sizes."""
        if key in self.seen:
            return

        def look(*args: Any, **kwargs: Any) -> None:
            bound = self.signature.bind(*args, **kwargs)
            given = {**bound.arguments, **out}
            for name in (name for name in self.hints if name in given):
                for value, hint in leaves(given[name], self.hints[name]):
                    die_if_unbearable(value, hint, exception_prefix=f"In {self.name}, {name}: ")

        look.__signature__ = self.signature  # for sizes that name an argument, as "{horizon}"
        jaxtyped(look, typechecker=None)(*args, **kwargs)
        self.seen.add(key)


@cache
def contract_of(fn: Any) -> Contract:
    """Return what a function says; asked when it runs, as what its annotations name exists then."""
    return Contract(fn)


def shapes_of(value: Any) -> Any:
    """Return all that a check depends on: shapes and types of tensors, whole numbers."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    if isinstance(value, list | tuple):
        return tuple([shapes_of(x) for x in value])
    if isinstance(value, dict):
        return tuple([(k, shapes_of(x)) for k, x in value.items()])
    return value if isinstance(value, int) else type(value)


def leaves(value: Any, hint: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every entry of a collection with its annotation: beartype looks at one of them."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is dict and isinstance(value, dict):
        pairs = [(x, args[1]) for x in value.values()]
    elif _of_any_length(origin, args) and isinstance(value, list | tuple):
        pairs = [(x, args[0]) for x in value]
    elif origin is tuple and isinstance(value, tuple) and len(value) == len(args):
        pairs = list(zip(value, args, strict=True))
    else:
        pairs = []
        if has_shape(hint):
            yield value, hint
    for pair in pairs:
        yield from leaves(*pair)


def _of_any_length(origin: Any, args: tuple[Any, ...]) -> bool:
    return origin in (list, Sequence) or (origin is tuple and args[1:] == (...,))


def has_shape(hint: Any) -> bool:
    """Tell whether an annotation describes a tensor somewhere."""
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return True
    return any(has_shape(x) for x in get_args(hint))


class Marker(ast.NodeTransformer):
    """Decorates what describes tensors; functions inside of functions are left alone."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        if any(is_shape(x) for hint in signature(node) for x in ast.walk(hint)):
            node.decorator_list.append(ast.Name(MARK, ast.Load()))  # innermost: sees the signature
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        self.generic_visit(node)
        shapes = any(is_shape(x) for hint in signature(node) for x in ast.walk(hint))
        if shapes and is_dataclass(node):
            node.decorator_list.insert(0, ast.Name(MARK, ast.Load()))
        return node


class Loader(SourceFileLoader):
    """Loads a module with its functions marked."""

    def path_stats(self, path: str) -> Any:
        raise OSError("what is marked is not cached")

    def source_to_code(self, data: Any, path: Any, **options: Any) -> Any:
        tree = ast.fix_missing_locations(Marker().visit(ast.parse(data, path)))
        return compile(tree, path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)[MARK] = checked
        super().exec_module(module)


class Finder(MetaPathFinder):
    """Finds the modules of the rooms."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, rest = fullname.partition(".")
        if package != "dreamlab" or rest.partition(".")[0] not in ROOMS:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = Loader(fullname, spec.origin)
        return spec


def enforce_shapes() -> None:
    """Check the tensors of every module of the rooms that is imported from now on."""
    loaded = [m for m in sys.modules if m.startswith(tuple(f"dreamlab.{r}" for r in ROOMS))]
    assert not loaded, f"imported too early to be checked: {loaded}"
    sys.meta_path.insert(0, Finder())
