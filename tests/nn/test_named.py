"""Modules by names that torch does not allow."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from dreamlab.nn.named import NamedModules

REFUSED = ("keys", "items", "values", "pop", "type", "training", "forward", "a.b", "_modules", "")


def linears(*names: str) -> dict[str, nn.Module]:
    return {name: nn.Linear(2, 1) for name in names}


@pytest.mark.parametrize("name", REFUSED)
def test_torch_itself_refuses_the_name(name):
    with pytest.raises(KeyError):
        nn.ModuleDict(linears(name))


def test_every_name_finds_its_module():
    given = linears("image", "obs_keys", "obs_a_b", *REFUSED)
    named = NamedModules(given)
    assert dict(named.items()) == given
    assert [*named] == [*named.keys()] == [*given]
    assert len(named) == len(given)
    assert [*named.values()] == [*given.values()]
    assert all(named[name] is module for name, module in given.items())
    assert len(named.state_dict()) == 2 * len(given)
    assert not named.eval().training


def test_weights_of_a_module_dict_find_their_place():
    old = nn.ModuleDict(linears("image", "camera_1", "get", "held", "names"))
    new = NamedModules(linears("image", "camera_1", "get", "held", "names"))
    new.load_state_dict(old.state_dict())
    assert torch.equal(new["get"].weight, old["get"].weight)


def test_a_copy_holds_modules_of_its_own():
    named = NamedModules(linears("image", "pop"))
    other = copy.deepcopy(named)
    assert other["pop"] is not named["pop"]
    assert torch.equal(other["pop"].weight, named["pop"].weight)


def test_it_tells_the_names_that_are_saved():
    made = NamedModules({"plain": nn.Linear(1, 1), "a.b": nn.Linear(1, 1)})
    assert {k.rpartition(".")[0] for k in made.state_dict()} == set(made.state_names())
    assert made.state_names() == ["plain", "obs_a_b"]
