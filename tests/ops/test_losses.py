"""Losses against numbers computed by hand."""

from __future__ import annotations

import torch
from torch.nn import functional

from dreamlab.ops.losses import huber, project_categorical

SUPPORT = torch.tensor([-1.0, 0.0, 1.0, 2.0])


def test_huber_is_a_square_near_zero_and_a_line_beyond():
    got = huber(torch.tensor([-3.0, -1.0, 0.0, 0.5, 2.0]))
    assert got.tolist() == [2.5, 0.5, 0.0, 0.125, 1.5]


def test_huber_with_another_corner_is_torchs():
    error = torch.linspace(-4, 4, 33)
    want = functional.huber_loss(error, torch.zeros(33), reduction="none", delta=2.0)
    torch.testing.assert_close(huber(error, 2.0), want)


def project(*atoms: float) -> list[float]:
    """Return where equal probabilities on these atoms go."""
    target = torch.tensor([atoms])
    got = project_categorical(SUPPORT, target, torch.full((1, 4), 0.25))
    return got[0].tolist()


def test_atoms_on_the_support_stay_where_they_are():
    assert project(-1.0, 0.0, 1.0, 2.0) == [0.25] * 4
    assert project(2.0, 2.0, -1.0, 0.0) == [0.25, 0.25, 0, 0.5]


def test_an_atom_between_two_is_shared_by_nearness():
    assert project(0.25, 0.25, 0.25, 0.25) == [0, 0.75, 0.25, 0]


def test_atoms_beyond_the_ends_go_to_the_ends():
    assert project(-7.0, -7.0, -7.0, 9.0) == [0.75, 0, 0, 0.25]


def test_probability_and_mean_are_kept():
    torch.manual_seed(0)
    probs = torch.rand(5, 4).softmax(-1)
    target = torch.rand(5, 4) * 3 - 1
    got = project_categorical(SUPPORT, target, probs)
    torch.testing.assert_close(got.sum(-1), torch.ones(5))
    torch.testing.assert_close(got @ SUPPORT, (probs * target).sum(-1))


def test_the_clipped_surrogate_equals_its_formula_and_its_gradient():
    from dreamlab.ops.losses import clipped_surrogate

    change = torch.linspace(-1, 1, 41).requires_grad_()
    advantage = torch.where(torch.arange(41) % 2 == 0, 1.5, -0.5)
    ratio = change.exp()
    plain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
    ours = clipped_surrogate(change, advantage, 0.2)
    torch.testing.assert_close(ours, plain)
    (expected,) = torch.autograd.grad(plain.sum(), change)
    (got,) = torch.autograd.grad(ours.sum(), change)
    torch.testing.assert_close(got, expected)
    assert (got == 0).any()
    assert (got != 0).any()
