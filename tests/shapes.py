"""Shapes enforced: while tests run, what signatures say of tensors is checked.

An import hook as jaxtyping's own, but for three things: only annotations of tensors are checked
(pyright sees to the rest), a function without any is left alone (which makes it cheap), and what is
being compiled, exported or traced runs as it is written.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import FunctionType, ModuleType
from typing import Any, get_args, get_type_hints

import jaxtyping
import torch
from beartype import beartype
from jaxtyping import AbstractArray, jaxtyped

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
    enforced: Callable[..., Any] | None = None

    @wraps(target)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal enforced
        if torch.compiler.is_compiling() or torch.jit.is_tracing():
            return target(*args, **kwargs)
        if enforced is None:  # not earlier: now everything that the annotations name exists
            enforced = enforce(target)
        return enforced(*args, **kwargs)

    return call


def enforce(fn: Any) -> Callable[..., Any]:
    """Return the function with beartype looking at those annotations that describe tensors."""
    copy = FunctionType(fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    copy.__kwdefaults__, copy.__qualname__, copy.__module__ = (
        fn.__kwdefaults__, fn.__qualname__, fn.__module__,
    )  # fmt: skip
    hints = get_type_hints(fn, include_extras=True)
    copy.__annotations__ = {k: v if has_shape(v) else Any for k, v in hints.items()}
    return jaxtyped(beartype(copy), typechecker=None)


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
