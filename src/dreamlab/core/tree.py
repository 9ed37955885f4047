"""Functions over trees: nested dicts, lists and tuples with arrays or tensors as leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch


def tree_map(fn: Callable[[Any], Any], tree: Any) -> Any:
    """Return a tree of the same form with `fn` applied to every leaf."""
    if isinstance(tree, dict):
        return {k: tree_map(fn, v) for k, v in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(tree_map(fn, v) for v in tree)
    return fn(tree)


def tree_leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every leaf with its path, depth first, in the order of the containers."""
    if isinstance(tree, dict):
        items = tree.items()
    elif isinstance(tree, list | tuple):
        items = enumerate(tree)
    else:
        yield prefix, tree
        return
    for key, value in items:
        yield from tree_leaves(value, f"{prefix}/{key}" if prefix else str(key))


def to_plain(tree: Any) -> Any:
    """Return `tree` with numpy values as tensors and numbers: `torch.load` then needs no pickle."""
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
