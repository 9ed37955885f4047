"""The two steps that improve actions: what they promise for any critic and any policy."""

from __future__ import annotations

import pytest
import torch

from dreamlab.components.action_optimizer import (
    ActionOptimizer,
    ActionOptimizerConfig,
    ascend,
    picked,
)
from dreamlab.core.config import load
from dreamlab.core.errors import ConfigError


def bumpy(actions: torch.Tensor) -> torch.Tensor:
    """Return a value with many hills, so that large steps overshoot."""
    x = actions.flatten(2)
    return torch.sin(9 * x).sum(-1) - x.square().sum(-1)


def optimizer(**options) -> ActionOptimizer:
    return ActionOptimizer(load(ActionOptimizerConfig, options, "optimizer"))


def drawn(b: int = 5, n: int = 12, h: int = 2, a: int = 3) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.rand(b, n, h, a) * 2 - 1


@pytest.mark.parametrize("size", [3e-4, 0.05, 3.0])
def test_local_steps_never_decrease_the_value(size):
    actions = drawn()
    found = ascend(actions, bumpy, 10, size)
    assert (found.value >= bumpy(actions)).all()
    assert (found.value > bumpy(actions)).any()
    torch.testing.assert_close(found.value, bumpy(found.action))
    assert found.action.abs().max() <= 1
    assert not found.action.requires_grad


def test_without_steps_and_all_kept_it_is_the_best_of_n():
    actions = drawn()
    best_of_n = picked(actions, bumpy(actions).argmax(1))
    ours = optimizer(samples=12, keep=12, steps=0)
    assert torch.equal(ours.choose(ours.improve(actions, bumpy)), best_of_n)
    fewer = optimizer(samples=12, keep=3, steps=0)
    assert torch.equal(fewer.choose(fewer.improve(actions, bumpy)), best_of_n)


def test_the_action_of_the_data_takes_the_place_of_the_worst_kept():
    actions, data = drawn(), torch.full((5, 2, 3), 0.5)
    ours = optimizer(samples=12, keep=4, steps=0)
    plain, mixed = ours.improve(actions, bumpy), ours.improve(actions, bumpy, data)
    assert torch.equal(mixed.action[:, -1], data)
    assert torch.equal(mixed.action[:, :-1], plain.action[:, :-1])
    assert (plain.value[:, :-1] >= plain.value[:, -1:]).all()


def test_the_steps_go_the_way_of_the_gradient():
    actions = torch.zeros(2, 1, 1, 2)
    slope = torch.tensor([1.0, -2.0])
    found = ascend(actions, lambda x: (x[:, :, 0] * slope).sum(-1), 3, 0.1)
    torch.testing.assert_close(found.action[:, 0, 0], (0.3 * slope).expand(2, 2))


def test_drawing_follows_the_softmax_of_the_values():
    ours = optimizer(samples=2, keep=2, steps=0, temperature=0.5)
    actions = torch.tensor([0.0, 0.5]).view(1, 2, 1, 1).expand(4000, -1, -1, -1)
    torch.manual_seed(0)
    found = ours.improve(actions, lambda x: x[..., 0, 0])
    share = (ours.choose(found, "sample") == 0.5).float().mean()
    assert abs(float(share) - torch.sigmoid(torch.tensor(1.0))) < 0.03
    assert (ours.choose(found) == 0.5).all()


def test_it_works_where_nothing_may_be_learnt():
    weight = torch.nn.Parameter(torch.ones(3))
    with torch.no_grad():
        found = optimizer(samples=12, keep=4).improve(drawn(), lambda x: bumpy(x) * weight.sum())
    assert not found.value.requires_grad
    assert weight.grad is None


def test_keeping_more_than_is_drawn_is_refused():
    with pytest.raises(ConfigError, match="more than samples=4"):
        optimizer(samples=4, keep=5)
