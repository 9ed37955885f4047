"""Every planner: the optimum it finds, what it is given, and what it leaves to chance."""

from __future__ import annotations

import pytest
import torch

from dreamlab.core.config import Part
from dreamlab.core.errors import ConfigError
from dreamlab.ops import planning
from dreamlab.ops.planning import CEM, MPPI, CEMConfig, MPPIConfig, Planner, best, draw, shifted

SIZES = {
    "cem": {"iterations": 15, "samples": 300, "elites": 30},
    "mppi": {"iterations": 15, "samples": 300, "elites": 30, "temperature": 20.0, "std": 1.0},
    "cma_es": {"iterations": 60, "samples": 40, "elites": 20},
    "random_shooting": {"iterations": 4, "samples": 20_000},
}
CLOSE = {"cem": 0.05, "mppi": 0.1, "cma_es": 0.05, "random_shooting": 0.25}


def planner(name: str, **options) -> Planner:
    horizon = {"horizon": 2 if name == "random_shooting" else 5}
    part = Part.load(name, {**horizon, **SIZES[name], **options}, "dreamlab.ops.planning", Planner)
    return part.build()


def goals(like: Planner, b: int = 3, a: int = 2) -> torch.Tensor:
    return torch.rand(b, like.config.horizon, a) * 1.6 - 0.8


def near(goal: torch.Tensor, shape: torch.Tensor | float = 1.0):
    """Return a score whose one optimum is the goal."""
    return lambda plans: -(shape * (plans - goal[:, None]).square()).sum((-1, -2))


@pytest.mark.parametrize("name", sorted(planning.PARTS))
def test_it_finds_the_optimum_of_every_problem(name):
    torch.manual_seed(0)
    made = planner(name)
    goal = goals(made)
    found = made.search(near(goal), torch.zeros_like(goal))
    torch.testing.assert_close(found.mean, goal, atol=CLOSE[name], rtol=0)


def test_cma_es_follows_a_narrow_valley():
    torch.manual_seed(0)
    made = planner("cma_es", iterations=150)
    goal = goals(made)
    turn = torch.linalg.qr(torch.randn(10, 10)).Q
    steep = 10 ** torch.linspace(0, 4, 10)

    def score(plans):
        return -(steep * ((plans - goal[:, None]).flatten(2) @ turn).square()).sum(-1)

    found = made.search(score, torch.zeros_like(goal))
    torch.testing.assert_close(found.mean, goal, atol=0.02, rtol=0)
    spread = torch.linalg.eigvalsh(found.cov)
    assert (spread[:, -1] / spread[:, 0]).min() > 1_000  # the valley is in the covariance


@pytest.mark.parametrize("name", sorted(planning.PARTS))
def test_with_noise_given_nothing_is_left_to_chance(name):
    made = planner(name)
    goal, noise = goals(made), made.fixed_noise(2)
    before = torch.get_rng_state()
    once, again = (made.search(near(goal), torch.zeros_like(goal), noise=noise) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(once.mean, again.mean)
    assert torch.equal(once.elites, again.elites)
    assert torch.equal(noise, made.fixed_noise(2))


@pytest.mark.parametrize("name", sorted(planning.PARTS))
def test_the_same_seed_finds_the_same_plan(name):
    made = planner(name)
    goal = goals(made)
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(made.search(near(goal), torch.zeros_like(goal)).mean)
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@pytest.mark.parametrize("name", sorted(planning.PARTS))
def test_candidates_stay_in_range_and_are_as_many_as_was_said(name):
    made = planner(
        name, samples=50, std=9.0, **({} if name == "random_shooting" else {"elites": 5})
    )
    mean, seen = made.zeros(torch.empty(3, 2)), []

    def score(plans):
        seen.append(plans)
        return plans.sum((-1, -2))

    proposed = torch.full((3, 7, *mean.shape[1:]), 0.5)
    made.search(score, mean, proposed=proposed)
    assert {x.shape[:2] for x in seen} == {(3, 50)}
    assert all(x.abs().max() <= 1 for x in seen)
    assert len(seen) == made.config.iterations
    assert all((x == 0.5).all((-1, -2)).sum(1).eq(7).all() for x in seen)


@pytest.mark.parametrize("name", sorted(planning.PARTS))
def test_a_proposed_plan_that_is_best_is_an_elite(name):
    torch.manual_seed(0)
    made = planner(name, iterations=1)
    goal = goals(made)
    found = made.search(near(goal), torch.zeros_like(goal), proposed=goal[:, None])
    assert (found.elites == goal[:, None]).all((-1, -2)).any(1).all()
    assert (found.score.amax(1) == 0).all()


@pytest.mark.parametrize("name", sorted(planning.PARTS))
def test_a_search_begins_where_it_is_told_to(name):
    torch.manual_seed(0)
    made = planner(name, iterations=1)
    mean = goals(made)
    found = made.search(near(mean), mean, std=torch.full_like(mean, 1e-3))
    torch.testing.assert_close(found.mean, mean, atol=1e-2, rtol=0)
    assert not torch.equal(found.mean, mean)


@pytest.mark.parametrize("name", sorted(planning.PARTS))
def test_elites_come_with_their_scores_and_weights(name):
    torch.manual_seed(0)
    made = planner(name)
    goal = goals(made)
    found = made.search(near(goal), torch.zeros_like(goal))
    torch.testing.assert_close(near(goal)(found.elites), found.score)
    torch.testing.assert_close(found.weight.sum(1), torch.ones(3))
    mean = (found.weight[..., None, None] * found.elites).sum(1)
    torch.testing.assert_close(found.mean, mean, atol=1e-5, rtol=0)
    assert found.std.shape == found.mean.shape


def test_cem_draws_next_from_the_mean_and_deviation_of_the_best():
    cem = CEM(CEMConfig(horizon=1, samples=4, elites=2))
    plan = cem.start(torch.zeros(1, 1, 1), torch.ones(1, 1, 1))
    candidates = torch.tensor([[1.0, 2.0, 3.0, 9.0]]).view(1, 4, 1, 1)
    plan = cem.tell(plan, candidates, torch.tensor([[0.0, 5.0, 6.0, -1.0]]))
    assert plan.mean.item() == 2.5
    assert plan.std.item() == pytest.approx((0.25 + 1e-6) ** 0.5)


def test_mppi_weighs_the_best_by_how_good_they_are():
    mppi = MPPI(MPPIConfig(horizon=1, samples=4, elites=2, temperature=0.5, min_std=0.01))
    plan = mppi.start(torch.zeros(1, 1, 1), torch.ones(1, 1, 1))
    candidates = torch.tensor([[0.1, 0.2, 0.6, 0.9]]).view(1, 4, 1, 1)
    plan = mppi.tell(plan, candidates, torch.tensor([[0.0, 4.0, 6.0, -1.0]]))
    odds = torch.tensor(1.0).exp().item()  # exp(0.5 * (6 - 4))
    share = odds / (1 + odds)
    mean = 0.2 + 0.4 * share
    assert plan.mean.item() == pytest.approx(mean)
    assert plan.std.item() == pytest.approx(0.4 * (share * (1 - share)) ** 0.5)


def test_the_deviation_of_mppi_has_its_limits():
    mppi = MPPI(MPPIConfig(horizon=1, samples=4, elites=2, min_std=0.3, max_std=0.4))
    plan = mppi.start(torch.zeros(1, 1, 1), torch.ones(1, 1, 1))
    score = torch.tensor([[0.0, 0.0, -1.0, -1.0]])
    for apart, std in ((0.0, 0.3), (2.0, 0.4)):
        candidates = torch.tensor([[-0.5, 0.5, 0.0, 0.0]]).view(1, 4, 1, 1) * apart
        assert mppi.tell(plan, candidates, score).std.item() == pytest.approx(std)


def test_random_shooting_covers_the_whole_range_evenly():
    torch.manual_seed(0)
    made = Part.load("random_shooting", {}, "dreamlab.ops.planning", Planner).build()
    mean = made.zeros(torch.empty(1, 1))
    drawn = made.ask(
        made.start(mean, torch.full_like(mean, made.config.std)), torch.randn(1, 9_999, 12, 1)
    )
    share = torch.histc(drawn, 10, -1, 1) / drawn.numel()
    torch.testing.assert_close(share, torch.full((10,), 0.1), atol=0.01, rtol=0)


def test_the_rest_of_a_plan_begins_the_next_search():
    plan = torch.arange(1.0, 7.0).view(1, 3, 2)
    assert shifted(plan).tolist() == [[[3, 4], [5, 6], [0, 0]]]


def test_the_best_come_first_if_that_is_asked_for():
    candidates = torch.arange(4.0).view(1, 4, 1, 1)
    elites, score = best(candidates, torch.tensor([[2.0, 9.0, 5.0, 1.0]]), 2, order=True)
    assert elites.flatten().tolist() == [1.0, 2.0]
    assert score.tolist() == [[9.0, 5.0]]


def test_candidates_are_clipped():
    assert (
        draw(torch.zeros(1, 3, 2), torch.full((1, 3, 2), 9.0), torch.randn(1, 50, 3, 2)).max() == 1
    )


@pytest.mark.parametrize("name", sorted(planning.PARTS))
def test_more_elites_than_candidates_are_refused(name):
    with pytest.raises(ConfigError, match="elites=11 must not exceed samples=10"):
        Part.load(name, {"samples": 10, "elites": 11}, "dreamlab.ops.planning", Planner).build()


def test_limits_that_cross_are_refused():
    with pytest.raises(ValueError, match="min_std"):
        MPPIConfig(min_std=3.0)
