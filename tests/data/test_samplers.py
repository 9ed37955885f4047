"""How often each start is drawn, counted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dreamlab.core.config import load
from dreamlab.core.errors import ConfigError
from dreamlab.data.samplers import (
    Mixture,
    MixtureConfig,
    Prioritised,
    PrioritisedConfig,
    Recency,
    RecencyConfig,
    SumTree,
    Uniform,
    UniformConfig,
    Window,
)
from tests.data.streams import drawn, feed, replay


def frequency(sampler, window: Window, draws: int = 4000, num: int = 16) -> np.ndarray:
    """Return how often each id of the window is drawn."""
    rng = np.random.default_rng(0)
    ids = np.concatenate([sampler.draw(window, num, rng)[0] for _ in range(draws)])
    counts = np.bincount(ids, minlength=window.newest)
    assert counts[: window.oldest].sum() == 0
    return counts[window.oldest :] / len(ids)


def full(sampler, num: int):
    sampler.insert(np.arange(num), np.ones(num, bool))
    return sampler


def test_uniform_draws_every_start_equally_often():
    seen = frequency(Uniform(UniformConfig(), 10), Window(5, 15))
    np.testing.assert_allclose(seen, np.full(10, 0.1), atol=0.006)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0])
def test_recency_follows_the_power_of_the_age(exponent: float):
    seen = frequency(Recency(RecencyConfig(exponent), 40), Window(20, 40))
    law = np.arange(1, 21.0)[::-1] ** -exponent  # the oldest has age 20, the newest 1
    np.testing.assert_allclose(seen, law / law.sum(), atol=0.006)


def test_recency_treats_environments_alike():
    seen = frequency(Recency(RecencyConfig(1.0), 40), Window(0, 12, num_envs=4))
    law = np.repeat([1 / 3, 1 / 2, 1.0], 4)
    np.testing.assert_allclose(seen, law / law.sum(), atol=0.006)


def test_prioritised_draws_in_proportion_to_a_power_of_the_priority():
    sampler = full(Prioritised(PrioritisedConfig(exponent=0.5), 8), 8)
    sampler.update(np.arange(8), np.arange(8.0) ** 2)
    seen = frequency(sampler, Window(0, 8))
    np.testing.assert_allclose(seen, np.arange(8) / 28, atol=0.004)


def test_importance_weights_undo_the_preference():
    config = PrioritisedConfig(exponent=1.0, beta=1.0, eps=1e-9)
    sampler = full(Prioritised(config, 4), 4)
    sampler.update(np.arange(4), np.array([1.0, 2.0, 3.0, 4.0]))
    ids, weight = sampler.draw(Window(0, 4), 4000, np.random.default_rng(0))
    assert weight is not None
    # (priority / 10 * 4) ** -1
    np.testing.assert_allclose(weight, np.array([2.5, 1.25, 2.5 / 3, 0.625])[ids], rtol=1e-6)
    np.testing.assert_allclose(np.bincount(ids, weight) / 4000, np.full(4, 0.25), atol=0.002)


def test_weights_in_a_batch_reach_at_most_one():
    buffer = replay(sampler={"_target_": "prioritised", "beta": 1.0, "exponent": 1.0}, batch=64)
    feed(buffer, 20)
    index = buffer.sample().index
    assert index is not None
    batch = buffer.sample()
    assert (batch.extras["weight"] == 1).all()  # nothing is known yet: all alike
    buffer.update(index[:1], {"priority": torch.tensor([9.0])})
    weight = buffer.sample().extras["weight"]
    assert weight.max() == 1
    np.testing.assert_allclose(weight.min(), 1 / 9, rtol=1e-5)


def test_beta_rises_to_its_final_value():
    config = PrioritisedConfig(exponent=1.0, beta=0.0, beta_final=1.0, beta_draws=2, eps=1e-9)
    sampler = full(Prioritised(config, 2), 2)
    sampler.update(np.arange(2), np.array([1.0, 3.0]))
    rng = np.random.default_rng(0)
    weights = [sampler.draw(Window(0, 2), 64, rng)[1] for _ in range(4)]
    ratios = [w.max() / w.min() for w in weights if w is not None]
    np.testing.assert_allclose(ratios, [1, 3**0.5, 3, 3], rtol=1e-6)


def test_new_starts_get_the_largest_priority_so_far():
    sampler = Prioritised(PrioritisedConfig(exponent=1.0), 4)
    sampler.insert(np.arange(2), np.ones(2, bool))
    sampler.update(np.arange(2), np.array([1.0, 6.0]))
    sampler.insert(np.arange(2, 3), np.ones(1, bool))
    np.testing.assert_allclose(sampler.tree.leaves(), [1, 6, 6, 0], rtol=1e-5)


def test_a_start_without_error_is_rare_but_can_come_back():
    sampler = full(Prioritised(PrioritisedConfig(), 4), 4)
    sampler.update(np.arange(4), np.array([0.0, 0.0, 0.0, 1.0]))
    assert frequency(sampler, Window(0, 4), draws=200)[:3].sum() < 0.01
    sampler.update(np.arange(4), np.array([1.0, 0.0, 0.0, 0.0]))
    assert frequency(sampler, Window(0, 4), draws=200)[0] > 0.99


def test_unusable_starts_are_never_drawn_whatever_priority_is_claimed():
    sampler = Prioritised(PrioritisedConfig(), 4)
    sampler.insert(np.arange(4), np.array([True, False, True, False]))
    sampler.update(np.arange(4), np.full(4, 100.0))
    seen = frequency(sampler, Window(0, 4), draws=100)
    np.testing.assert_allclose(seen, [0.5, 0, 0.5, 0], atol=0.01)


def test_priorities_of_overwritten_starts_are_ignored():
    sampler = full(Prioritised(PrioritisedConfig(exponent=1.0), 4), 4)
    sampler.insert(np.array([4, 5]), np.ones(2, bool))  # take the rows of 0 and 1
    sampler.update(np.array([0, 1, 2]), np.array([50.0, 50.0, 5.0]))
    np.testing.assert_allclose(sampler.tree.leaves(), [1, 1, 5, 1], rtol=1e-5)


def test_priorities_that_are_not_finite_do_not_poison_the_rest():
    sampler = full(Prioritised(PrioritisedConfig(exponent=1.0), 4), 4)
    sampler.update(np.arange(4), np.array([np.nan, np.inf, 3.0, 1.0]))
    np.testing.assert_allclose(sampler.tree.leaves(), [1, 1, 3, 1], rtol=1e-5)


def test_prioritised_knows_no_window_that_was_overwritten():
    """A window dies when its first step is overwritten, before its row is used again."""
    buffer = replay(sampler="prioritised", length=6)
    for _ in range(100):
        feed(buffer, 1)
        if buffer.ready():
            window = buffer.window()
            ids = drawn(buffer, 3)
            assert ids.min() >= window.oldest
            assert ids.max() < window.newest
    assert set(drawn(buffer, 50)) == set(range(window.oldest, window.newest))


def test_a_mixture_draws_from_each_sampler_by_its_share():
    config = MixtureConfig(uniform=1.0, prioritised=2.0, recency=1.0)
    mixture = full(Mixture(config, 10), 10)
    mixture.update(np.arange(10), np.where(np.arange(10) == 0, 1e12, 0.0))  # the oldest only
    seen = frequency(mixture, Window(0, 10))
    law = np.arange(1, 11.0)[::-1] ** -1.0
    want = 0.25 * np.full(10, 0.1) + 0.5 * (np.arange(10) == 0) + 0.25 * law / law.sum()
    np.testing.assert_allclose(seen, want, atol=0.006)


def test_a_mixture_weighs_only_what_was_preferred():
    """At beta = 1 the weighted mean of a quantity is the mean over all starts."""
    options = {"exponent": 1.0, "beta": 1.0, "eps": 1e-9}
    config = load(
        MixtureConfig,
        {"uniform": 0.5, "prioritised": 0.5, "prioritised_sampler": options},
        "sampler",
    )
    mixture = full(Mixture(config, 4), 4)
    mixture.update(np.arange(4), np.array([1.0, 2.0, 3.0, 4.0]))
    ids, weight = mixture.draw(Window(0, 4), 40_000, np.random.default_rng(0))
    assert weight is not None
    np.testing.assert_allclose(np.bincount(ids, weight) / weight.sum(), np.full(4, 0.25), atol=0.01)


def test_shares_that_are_negative_or_all_zero_are_refused():
    with pytest.raises(ConfigError, match=r"sampler\.uniform: must be at least 0, got -1"):
        load(MixtureConfig, {"uniform": -1.0}, "sampler")
    with pytest.raises(ConfigError, match="all 0: nothing can be sampled"):
        load(MixtureConfig, {"uniform": 0.0}, "sampler")


def test_a_zero_eps_is_refused():
    with pytest.raises(ConfigError, match=r"sampler\.eps: must be above 0"):
        load(PrioritisedConfig, {"eps": 0.0}, "sampler")


@pytest.mark.parametrize("capacity", [1, 2, 3, 8, 100])
def test_the_tree_finds_what_a_running_sum_finds(capacity: int):
    rng = np.random.default_rng(capacity)
    tree, values = SumTree(capacity), rng.random(capacity) * (rng.random(capacity) > 0.5)
    values[-1] = 1.0
    tree.set(np.arange(capacity), values)
    sums = rng.random(1000) * tree.total
    np.testing.assert_array_equal(tree.find(sums), np.searchsorted(values.cumsum(), sums, "right"))


def test_the_tree_never_finds_an_empty_leaf_even_at_the_very_end():
    tree = SumTree(6)
    tree.set(np.array([0, 1, 2]), np.array([0.1, 0.2, 0.0]))
    past_the_end = np.array([tree.total, tree.total + 1, 0.0])
    assert tree.find(past_the_end).tolist() == [1, 1, 0]


def test_the_tree_depends_on_its_leaves_alone():
    rng = np.random.default_rng(0)
    one, two = SumTree(200), SumTree(200)
    for _ in range(50):
        one.set(rng.integers(0, 200, 100), rng.random(100))
    two.set(np.arange(200), one.leaves().copy())
    np.testing.assert_array_equal(one.nodes, two.nodes)
