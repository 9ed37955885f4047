"""Estimators of returns: by hand, against each other, and at the ends of episodes."""

from __future__ import annotations

import pytest
import torch

from dreamlab.core.config import Part
from dreamlab.ops import estimators
from dreamlab.ops.estimators import Path, ReturnEstimator

REWARD = torch.tensor([[9.0, 1.0, 2.0, 4.0]])  # the first belongs to the step before
VALUE = torch.tensor([[1.0, 2.0, 4.0, 8.0]])
ONES = torch.ones(1, 4)


def made(name: str, **options) -> ReturnEstimator:
    return Part.load(name, options, "dreamlab.ops.estimators", ReturnEstimator).build()


def flags(*places: int, length: int = 4) -> torch.Tensor:
    out = torch.zeros(1, length, dtype=torch.bool)
    out[0, list(places)] = True
    return out


def path(cont=ONES, is_last=None, gamma=0.5) -> Path:
    return Path(REWARD, cont, VALUE, gamma, is_last)


def test_one_step_by_hand():
    for one in (made("n_step", n=1), made("lambda_return", lam=0.0), made("gae", lam=0.0)):
        assert one.returns(path()).tolist() == [[1 + 1, 2 + 2, 4 + 4]]
        assert one.advantages(path()).tolist() == [[2 - 1, 4 - 2, 8 - 4]]


def test_two_steps_by_hand():
    assert made("n_step", n=2).returns(path()).tolist() == [[1 + 1 + 1, 2 + 2 + 2, 4 + 4]]


def test_all_steps_by_hand():
    whole = [[1 + 1 + 1 + 1, 2 + 2 + 2, 4 + 4]]
    for every in (made("monte_carlo"), made("n_step", n=99), made("gae", lam=1.0)):
        assert every.returns(path()).tolist() == whole


@pytest.mark.parametrize("is_last", [None, flags(1), flags(2), flags(0, 2)])
@pytest.mark.parametrize("cont", [ONES, torch.tensor([[1.0, 1.0, 0.0, 1.0]]), 0.7 * ONES])
def test_the_advantage_of_gae_is_the_lambda_return_less_the_value(cont, is_last):
    ours, theirs = made("gae", lam=0.8), made("lambda_return", lam=0.8)
    given = path(cont, is_last)
    torch.testing.assert_close(ours.advantages(given), theirs.advantages(given))
    real = given.same[:, :-1] > 0
    torch.testing.assert_close(ours.returns(given)[real], theirs.returns(given)[real])


NAMES = [
    ("gae", {"lam": 0.9}),
    ("lambda_return", {"lam": 0.9}),
    ("monte_carlo", {}),
    ("n_step", {"n": 3}),
]


@pytest.mark.parametrize(("name", "options"), NAMES)
@pytest.mark.parametrize("life", [True, False])
def test_nothing_comes_from_beyond_an_end(name, options, life):
    """The end of an episode, and that of a life, after which the game goes on."""
    torch.manual_seed(0)
    reward, value, cont = torch.randn(1, 6), torch.randn(1, 6), torch.ones(1, 6)
    cont[:, 2] = 0
    last = flags(length=6) if life else flags(2, length=6)
    one = made(name, **options)
    before = one.returns(Path(reward, cont, value, 0.9, last))[:, :2].clone()
    reward[:, 3:] = value[:, 2:] = 1e6
    assert torch.equal(one.returns(Path(reward, cont, value, 0.9, last))[:, :2], before)


@pytest.mark.parametrize(("name", "options"), NAMES)
def test_what_is_cut_off_is_worth_its_value(name, options):
    one = made(name, **options)
    assert one.returns(path(is_last=flags(1)))[0, 0] == 1 + 0.5 * 2
    assert one.advantages(path(is_last=flags(1)))[0, 1] == 0


@pytest.mark.parametrize(("name", "options"), NAMES)
def test_gradients_flow_through_a_dream(name, options):
    inputs = [torch.rand(2, 4, requires_grad=True) for _ in range(3)]
    made(name, **options).returns(Path(*inputs)).sum().backward()
    assert all(x.grad is not None and x.grad[:, 1:].abs().sum() > 0 for x in inputs)


def test_every_one_is_tried_here():
    assert {name for name, _ in NAMES} == set(estimators.PARTS)
