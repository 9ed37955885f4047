"""Statistics of seeds: by hand on small numbers, against rliable on larger ones."""

from __future__ import annotations

import time

import numpy as np
import pytest
from rliable import library, metrics

from dreamlab.results import stats

RNG = np.random.default_rng(7)
RUNS, TASKS = 10, 4
MATRIX = {
    "a": RNG.normal([1, 2, 3, 4], [1, 2, 3, 4], (RUNS, TASKS)),
    "b": RNG.normal([2, 2, 4, 6], [1, 1, 2, 3], (RUNS, TASKS)),
}
SCORES = {k: list(v.T) for k, v in MATRIX.items()}
RELIABLE = {
    "iqm": metrics.aggregate_iqm,
    "mean": metrics.aggregate_mean,
    "median": metrics.aggregate_median,
}


def test_the_interquartile_mean_leaves_out_a_quarter_at_each_end():
    assert stats.iqm([np.array([100.0, 2.0, 3.0, -50.0])]) == 2.5
    assert stats.iqm([np.array([1.0, 2.0, 6.0])]) == 3.0  # too few to leave any out
    assert stats.iqm([np.array([100.0, 2.0]), np.array([3.0, -50.0])]) == 2.5  # over all tasks


def test_tasks_count_the_same_however_many_runs_they_have():
    scores = [np.array([1.0, 1.0, 1.0, 1.0]), np.array([3.0])]
    assert stats.mean(scores) == 2.0


def test_the_median_is_over_tasks_and_over_runs_if_there_is_one_task():
    assert stats.median([np.array([1.0, 2.0, 9.0])]) == 2.0
    three = [np.array([0.0, 2.0]), np.array([5.0, 5.0]), np.array([90.0, 110.0])]
    assert stats.median(three) == 5.0


@pytest.mark.parametrize("group", ["a", "b"])
@pytest.mark.parametrize("name", list(stats.STATISTICS))
def test_estimates_equal_those_of_rliable(group, name):
    ours = stats.STATISTICS[name](SCORES[group])
    assert ours == pytest.approx(RELIABLE[name](MATRIX[group]), rel=1e-12)


@pytest.mark.parametrize("name", list(stats.STATISTICS))
def test_intervals_agree_with_those_of_rliable(name):
    """Both draw at random: the bounds differ by less than a twentieth of the interval."""
    _, bounds = library.get_interval_estimates(
        {"a": MATRIX["a"]}, lambda x: np.array([RELIABLE[name](x)]), reps=10_000
    )
    ours = stats.intervals(SCORES["a"], {name: stats.STATISTICS[name]}, num=10_000)[name]
    low, high = bounds["a"].ravel()
    assert ours.low == pytest.approx(low, abs=0.05 * (high - low))
    assert ours.high == pytest.approx(high, abs=0.05 * (high - low))


@pytest.mark.slow
def test_the_probability_of_improvement_is_that_of_rliable():
    pair = {"a,b": (MATRIX["a"], MATRIX["b"])}
    estimates, bounds = library.get_interval_estimates(
        pair, metrics.probability_of_improvement, reps=2_000
    )
    ours = stats.probability_of_improvement(SCORES["a"], SCORES["b"])
    assert ours.value == pytest.approx(estimates["a,b"], rel=1e-12)
    np.testing.assert_allclose([ours.low, ours.high], bounds["a,b"].ravel(), atol=0.02)


def test_the_profile_is_that_of_rliable():
    thresholds = np.linspace(-4, 10, 15)
    expected, bounds = library.create_performance_profile(
        {"a": MATRIX["a"]}, thresholds, reps=5_000
    )
    ours = stats.profile(SCORES["a"], thresholds)
    np.testing.assert_allclose(ours.value, expected["a"], rtol=1e-12)
    np.testing.assert_allclose([ours.low, ours.high], bounds["a"], atol=0.03)


def test_a_tie_is_half_an_improvement():
    same = [np.array([1.0, 2.0, 3.0])]
    assert stats.probability_of_improvement(same, same).value == 0.5
    higher = [np.array([4.0, 5.0, 6.0])]
    assert stats.probability_of_improvement(higher, same).low == 1.0
    assert stats.probability_of_improvement(same, higher).high == 0.0


def test_a_task_is_drawn_within_itself():
    """Two tasks far apart whose runs agree: nothing to draw, so the interval is a point."""
    scores = [np.full(5, 0.0), np.full(5, 100.0)]
    found = stats.intervals(scores, {"mean": stats.mean})["mean"]
    assert (found.low, found.value, found.high) == (50.0, 50.0, 50.0)


def test_the_same_scores_give_the_same_interval_every_time():
    first, second = (stats.intervals(SCORES["a"], stats.STATISTICS) for _ in range(2))
    assert first == second


def test_one_run_has_no_interval():
    found = stats.intervals([np.array([5.0])], stats.STATISTICS)["iqm"]
    assert found.value == 5.0
    assert np.isnan([found.low, found.high]).all()


def test_a_curve_is_the_same_statistic_at_every_point():
    curve = np.stack([MATRIX["a"][:, 0], MATRIX["a"][:, 1]])  # two points, ten runs
    found = stats.intervals([curve], {"iqm": stats.iqm})["iqm"]
    for point in range(2):
        alone = stats.intervals([curve[point]], {"iqm": stats.iqm})["iqm"]
        assert found.value[point] == alone.value
        assert (found.low[point], found.high[point]) == (alone.low, alone.high)


def test_two_thousand_draws_of_ten_seeds_take_well_under_a_second():
    start = time.process_time()
    stats.intervals(SCORES["a"], stats.STATISTICS)
    stats.probability_of_improvement(SCORES["a"], SCORES["b"])
    assert time.process_time() - start < 0.5
