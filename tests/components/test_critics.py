"""Readouts, ensembles and Q-functions: each against its formula written out by hand."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import NormalDist

import pytest
import torch

from dreamlab.components.critics import HOME, PARTS
from dreamlab.components.critics.ensemble import aggregate, draw_members
from dreamlab.components.critics.q_function import QConfig, QFunction
from dreamlab.components.critics.readout import Readout
from dreamlab.core.config import Part, load
from dreamlab.core.errors import ConfigError
from dreamlab.core.types import ArraySpec, Spec

CPU = torch.device("cpu")
SPEC = Spec({"state": ArraySpec((3,))}, ArraySpec((2,), low=-1.0, high=1.0))


def readout(name: str, **options) -> Readout:
    return Part.load(name, options, HOME, Readout).build()


def learnt(head: Readout, x: torch.Tensor) -> torch.Tensor:
    """Return the outputs that a descent of the loss leads to."""
    out = torch.zeros(*x.shape, head.outputs, requires_grad=True)
    opt = torch.optim.LBFGS([out], max_iter=150, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        opt.zero_grad()
        total = head.loss(out, x).sum()
        total.backward()
        return total

    opt.step(loss)
    return out.detach()


# -- one interface --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PARTS)
def test_what_minimises_the_loss_decodes_to_the_target(name):
    head, x = readout(name), torch.tensor([-7.3, -0.02, 0.0, 3.14, 8.0])
    torch.testing.assert_close(head.decode(learnt(head, x)), x, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("name", PARTS)
def test_every_kind_takes_any_leading_axes(name):
    head = readout(name)
    out, x = torch.randn(4, 5, head.outputs), torch.randn(4, 5)
    assert head.decode(out).shape == head.loss(out, x).shape == (4, 5)
    target = head.ahead(out, x, torch.full_like(x, 0.9))
    assert head.distance(out, target).shape == (4, 5)
    assert head.priority(out, target, head.distance(out, target)).shape == (4, 5)
    torch.testing.assert_close(head.loss(out, x)[1], head.loss(out[1], x[1]))


@pytest.mark.parametrize("name", PARTS)
def test_a_target_gets_no_gradient(name):
    head, x = readout(name), torch.randn(3, requires_grad=True)
    head.loss(torch.randn(3, head.outputs, requires_grad=True), x).sum().backward()
    assert x.grad is None


@pytest.mark.parametrize("name", PARTS)
def test_what_follows_has_the_mean_of_the_bellman_equation(name):
    # numbers bootstrap on the decoded value, distributions on all of it; the mean is the same
    head = readout(name)
    out = torch.randn(6, head.outputs)
    reward, factor = torch.rand(6) - 0.5, torch.tensor([0.9, 0.9, 0.0, 0.5, 0.9, 0.0])
    target = head.ahead(out, reward, factor)
    expected = reward + factor * head.decode(out)
    if target.shape[-1] == head.outputs and name not in ("mse", "huber", "quantile"):
        mean = head.decode(target.clamp(min=1e-30).log())
    else:
        mean = target.mean(-1)
    torch.testing.assert_close(mean, expected, atol=2e-3, rtol=1e-3)


# -- each kind ------------------------------------------------------------------------------------


def test_hl_gauss_is_a_normal_cut_into_bins():
    head, width = readout("hl_gauss", low=-2.0, high=3.0, bins=5, sigma=0.75), 1.0
    got = head.encode(torch.tensor([0.3, -2.0]))
    for y, row in zip((0.3, -2.0), got, strict=True):
        normal = NormalDist(y, 0.75 * width)
        edges = [normal.cdf(-2.0 + i) for i in range(6)]
        whole = edges[-1] - edges[0]
        expected = [(b - a) / whole for a, b in pairwise(edges)]
        torch.testing.assert_close(row, torch.tensor(expected), atol=1e-6, rtol=1e-5)


def test_hl_gauss_takes_what_is_beyond_for_the_end():
    head = readout("hl_gauss", low=-1.0, high=1.0, bins=8)
    torch.testing.assert_close(head.encode(torch.tensor([9.0])), head.encode(torch.tensor([1.0])))


def test_c51_on_an_atom_belongs_to_it_alone():
    head = readout("c51", low=-2.0, high=2.0, atoms=5)
    got = head.encode(torch.tensor([-2.0, 1.0, 2.0, 0.25]))
    expected = torch.tensor(
        [[1.0, 0, 0, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1], [0, 0, 0.75, 0.25, 0]]
    )
    torch.testing.assert_close(got, expected)


def test_quantile_loss_is_that_of_the_paper():
    head = readout("quantile", quantiles=3, kappa=0.5)
    out, target = torch.randn(2, 3), torch.randn(2, 4)
    got = head.distance(out, target)
    for b in range(2):
        total = 0.0
        for i in range(3):
            tau = (2 * i + 1) / 6
            for j in range(4):
                u = float(target[b, j] - out[b, i])
                huber = 0.5 * u * u if abs(u) <= 0.5 else 0.5 * (abs(u) - 0.25)
                total += abs(tau - (u < 0)) * huber / 0.5 / 4
        assert math.isclose(float(got[b]), total, rel_tol=1e-4)


def test_quantiles_find_the_quantiles_of_a_sample():
    head = readout("quantile", quantiles=4, kappa=1e-3)
    sample = torch.arange(64.0)[None] / 64
    out = torch.zeros(1, 4, requires_grad=True)
    opt = torch.optim.Adam([out], lr=0.02)
    for _ in range(800):
        opt.zero_grad()
        head.distance(out, sample).sum().backward()
        opt.step()
    expected = torch.tensor([[0.125, 0.375, 0.625, 0.875]])
    torch.testing.assert_close(out.detach(), expected, atol=0.04, rtol=0)


def test_a_range_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="must be below high"):
        readout("hl_gauss", low=1.0, high=1.0)


# -- ensembles ------------------------------------------------------------------------------------


def test_a_subset_without_replacement_has_no_member_twice():
    torch.manual_seed(0)
    drawn = [draw_members(5, 3, False, CPU).tolist() for _ in range(200)]
    assert all(len(set(d)) == 3 for d in drawn)
    assert {m for d in drawn for m in d} == set(range(5))
    twice = [draw_members(5, 3, True, CPU).tolist() for _ in range(200)]
    assert any(len(set(d)) < 3 for d in twice)


def test_the_least_of_the_means_not_the_mean_of_the_least():
    values = torch.tensor([[1.0, 5.0], [3.0, 2.0]])
    assert aggregate(values, "min").tolist() == [1.0, 2.0]
    assert aggregate(values, "mean").tolist() == [2.0, 3.5]


def q_function(spec: Spec = SPEC, horizon: int = 1, **options) -> QFunction:
    torch.manual_seed(0)
    return QFunction(load(QConfig, {"hidden": (8, 8), **options}, "q"), spec, horizon)


def test_a_target_asks_one_subset_for_the_whole_batch():
    q = q_function(num_critics=6, subset=2)
    z, action = torch.randn(40, 3), torch.rand(40, 2)
    every = q.values(z, action)
    torch.manual_seed(3)
    got = q.bootstrap(z, action)
    pairs = [(i, j) for i in range(6) for j in range(i)]
    fits = [torch.equal(torch.minimum(every[i], every[j]), got) for i, j in pairs]
    assert sum(fits) == 1


def test_a_subset_larger_than_the_ensemble_is_refused():
    with pytest.raises(ConfigError, match="more than the 2 critics"):
        load(QConfig, {"subset": 3}, "workflow.critic")


@pytest.mark.parametrize("name", PARTS)
def test_a_q_function_reads_states_images_and_chunks(name):
    obs = {"image": ArraySpec((16, 16, 3), "uint8"), "state": ArraySpec((3,))}
    spec = Spec(obs, ArraySpec((2,), low=-1.0, high=1.0))
    q = q_function(spec, horizon=4, readout=name)
    seen = {
        "image": torch.randint(0, 255, (5, 16, 16, 3), dtype=torch.uint8),
        "state": torch.randn(5, 3),
    }
    z, chunk = q.features(seen), torch.rand(5, 4, 2)
    loss = q.loss(q(z, chunk), torch.randn(5))
    assert loss.shape == (2, 5)
    loss.sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in q.encoder.parameters())
    many = chunk[:, None].expand(-1, 7, -1, -1)
    torch.testing.assert_close(q.ranked(z, many)[:, 3], q.values(z, chunk).mean(0))


def test_values_teach_the_action_and_no_weight():
    q, action = q_function(), torch.rand(4, 2, requires_grad=True)
    q.values(torch.randn(4, 3), action).sum().backward()
    assert action.grad is not None
    assert all(p.grad is None for p in q.parameters())


@pytest.mark.parametrize(
    ("action", "fault"),
    [
        (ArraySpec((), "int64", classes=3), "discrete"),
        (ArraySpec((1,), low=-2.0, high=2.0), "scale_actions"),
    ],
)
def test_actions_that_do_not_fit_are_refused(action, fault):
    with pytest.raises(ConfigError, match=fault):
        q_function(Spec({"state": ArraySpec((3,))}, action))
