"""Trees of tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from dreamlab.core.tree import tree_split


class Pair(NamedTuple):
    x: torch.Tensor
    y: Any


@dataclass(frozen=True)
class Box:
    x: torch.Tensor
    size: int


def test_split_takes_tensors_out_and_puts_others_in():
    one = torch.ones(2)
    state = {"a": (one, "name"), "b": Pair(one * 2, None), "c": [Box(one * 3, 4)]}
    tensors, rebuild, form = tree_split(state)
    assert [float(t[0]) for t in tensors] == [1, 2, 3]
    other = rebuild([t * 10 for t in tensors])
    assert isinstance(other["b"], Pair)
    assert float(other["b"].x[0]) == 20
    assert other["a"][1] == "name"
    assert float(other["c"][0].x[0]) == 30
    assert other["c"][0].size == 4
    assert tree_split(other)[2] == form
    assert tree_split({**state, "a": (one, "another")})[2] != form
    assert tree_split({**state, "a": (torch.ones(3), "name")})[2] != form
