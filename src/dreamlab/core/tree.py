"""Functions over trees: nested dicts, lists and tuples with arrays or tensors as leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch


def tree_map(fn: Callable[[Any], Any], tree: Any) -> Any:
    """Return a tree of the same structure with `fn` applied to every leaf."""
    if isinstance(tree, dict):
        return {k: tree_map(fn, v) for k, v in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(tree_map(fn, v) for v in tree)
    return fn(tree)


def tree_leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every leaf with its path, depth first, in container order."""
    if isinstance(tree, dict):
        items = tree.items()
    elif isinstance(tree, list | tuple):
        items = enumerate(tree)
    else:
        yield prefix, tree
        return
    for key, value in items:
        yield from tree_leaves(value, f"{prefix}/{key}" if prefix else str(key))


def tree_split(tree: Any) -> tuple[list[torch.Tensor], Callable[[list[Any]], Any], Any]:
    """Return the tensors of a tree, a function that rebuilds it with others, and its structure.

    Dataclasses count as containers. Two trees differ only in tensor values if their structures are
    equal.
    """
    if isinstance(tree, torch.Tensor):
        return [tree], lambda new: new[0], (tuple(tree.shape), tree.dtype)
    if isinstance(tree, dict):
        return _split(list(tree.values()), lambda parts: dict(zip(tree, parts, strict=True)), tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return _split(list(tree), lambda parts: type(tree)(*parts), type(tree))
    if isinstance(tree, list | tuple):
        return _split(list(tree), lambda parts: type(tree)(parts), type(tree))
    if is_dataclass(tree) and not isinstance(tree, type):
        names = [f.name for f in fields(tree)]
        values = [getattr(tree, n) for n in names]
        return _split(
            values, lambda parts: replace(tree, **dict(zip(names, parts, strict=True))), type(tree)
        )
    return [], lambda new: tree, tree


def _split(values: list[Any], build: Callable[[list[Any]], Any], kind: Any) -> Any:
    parts = [tree_split(v) for v in values]
    sizes = [len(tensors) for tensors, _, _ in parts]

    def rebuild(new: list[Any]) -> Any:
        rest, out = list(new), []
        for size, (_, one, _) in zip(sizes, parts, strict=True):
            out.append(one(rest[:size]))
            rest = rest[size:]
        return build(out)

    form = (tuple(kind) if isinstance(kind, dict) else kind, tuple(f for _, _, f in parts))
    return [t for tensors, _, _ in parts for t in tensors], rebuild, form


def to_plain(tree: Any) -> Any:
    """Convert numpy values to tensors and numbers, so that `torch.load` needs no pickle."""
    if isinstance(tree, dict):
        return {k: to_plain(v) for k, v in tree.items()}
    if isinstance(tree, list):
        return [to_plain(v) for v in tree]
    if isinstance(tree, tuple):
        return tuple(to_plain(v) for v in tree)
    if isinstance(tree, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(tree))
    if isinstance(tree, np.generic):
        return tree.item()
    if isinstance(tree, torch.Tensor):
        return tree.detach()
    if tree is None or isinstance(tree, bool | int | float | str | bytes):
        return tree
    raise TypeError(f"state of type {type(tree).__name__} cannot be saved without pickle")
