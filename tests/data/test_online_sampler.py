"""Fresh windows come first, once, in order; the rest is the base sampler's."""

from __future__ import annotations

import numpy as np
import pytest

from dreamlab.core.config import load
from dreamlab.core.errors import ConfigError
from dreamlab.data.samplers import Online, OnlineConfig, Uniform, UniformConfig, Window
from tests.data.streams import (
    assert_same_future,
    assert_true_to_index,
    drawn,
    feed,
    replay,
    through_disk,
)


def online(**options) -> Online:
    return Online(load(OnlineConfig, options, "sampler"), 1000)


def popped(sampler: Online, window: Window, num: int) -> list[int]:
    return sampler._pop(window, num).tolist()


def test_of_each_stream_every_window_that_touches_the_last_one_is_queued():
    ids = popped(online(), Window(0, 2 * 13, num_envs=2, length=4), 100)
    assert ids == [0, 1, 8, 9, 16, 17, 24, 25]  # ticks 0, 4, 8, 12 of both environments


def test_the_oldest_comes_first_and_none_comes_twice():
    sampler = online()
    assert popped(sampler, Window(0, 2 * 9, num_envs=2, length=4), 4) == [0, 1, 8, 9]
    assert popped(sampler, Window(0, 2 * 9, num_envs=2, length=4), 4) == [16, 17]
    assert popped(sampler, Window(0, 2 * 12, num_envs=2, length=4), 4) == []
    assert popped(sampler, Window(0, 2 * 13, num_envs=2, length=4), 4) == [24, 25]


def test_a_queue_may_stop_between_two_environments():
    sampler, window = online(), Window(0, 3 * 5, num_envs=3, length=4)
    found = [popped(sampler, window, 2) for _ in range(4)]
    assert found == [[0, 1], [2, 12], [13, 14], []]


def test_what_was_overwritten_loses_its_turn():
    sampler = online()
    assert popped(sampler, Window(2 * 5, 2 * 13, num_envs=2, length=4), 100) == [16, 17, 24, 25]


def test_what_may_not_be_drawn_loses_its_turn():
    sampler = online()
    odd = Window(0, 2 * 9, lambda ids: ids % 2 == 1, num_envs=2, length=4)
    assert popped(sampler, odd, 2) == [1, 9]
    assert popped(sampler, odd, 2) == [17]


def test_every_may_differ_from_the_length():
    assert popped(online(every=3), Window(0, 8, num_envs=1, length=4), 100) == [0, 3, 6]


def test_the_rest_comes_from_the_base():
    sampler, window = online(), Window(0, 9, length=4)
    ids, weight = sampler.draw(window, 8, np.random.default_rng(0))
    assert weight is None
    base, _ = Uniform(UniformConfig(), 9).draw(window, 8, np.random.default_rng(0))
    fresh = ids != base
    assert set(ids[fresh]) <= {0, 4, 8}
    assert {0, 4, 8} <= set(ids)
    again = np.concatenate([sampler.draw(window, 8, np.random.default_rng(i))[0] for i in range(9)])
    base = [Uniform(UniformConfig(), 9).draw(window, 8, np.random.default_rng(i)) for i in range(9)]
    np.testing.assert_array_equal(again, np.concatenate([x for x, _ in base]))


def test_a_fresh_window_has_the_weight_of_an_unprioritised_one():
    sampler = online(base={"_target_": "prioritised", "beta": 1.0, "exponent": 1.0, "eps": 1e-9})
    assert sampler.learns
    sampler.insert(np.arange(9), np.ones(9, bool))
    sampler.update(np.arange(9), np.array([9.0, *[1.0] * 8]))
    window, rng = Window(0, 9, length=9), np.random.default_rng(0)
    ids, weight = sampler.draw(window, 16, rng)
    assert weight is not None
    assert sorted(set(weight[ids == 0].round(4))) == [round(17 / 81, 4), 1.0]
    _, weight = sampler.draw(window, 16, rng)
    assert weight is not None
    assert 1.0 not in weight  # the queue is empty


def test_a_base_that_learns_nothing_is_not_told_of_every_step():
    assert not online().learns


@pytest.mark.parametrize("windows", ["across", "inside"])
def test_each_step_of_a_stream_is_drawn_soon(windows: str):
    buffer = replay(sampler="online", batch=2, windows=windows)
    starts: list[int] = []
    for _ in range(60):
        feed(buffer, 1)
        if buffer.ready():
            starts += drawn(buffer, 1).tolist()
    ticks = np.arange(0, 56, 4)
    queued = (ticks[:, None] * 2 + np.arange(2)).ravel()
    if windows == "inside":  # environment e is e steps ahead in episodes of 7
        ticks, envs = queued // 2, queued % 2
        queued = queued[(ticks + envs) % 7 <= 3]
    assert set(queued) <= set(starts)
    assert_true_to_index(buffer.sample())


@pytest.mark.parametrize("base", ["uniform", "prioritised"])
def test_a_resumed_replay_goes_on_with_its_queue(base: str, tmp_path):
    options = {"sampler": {"_target_": "online", "base": base}, "batch": 3}
    a = replay(folder=tmp_path / "steps", **options)
    feed(a, 17)
    a.sample()  # three of eight that wait
    state = through_disk(a.save(), tmp_path)
    b = replay(folder=tmp_path / "steps", **options)
    b.load(state)
    assert b.sampler is not None
    assert b.sampler.get_state()["next"] == 3
    assert_same_future(a, b)


def test_a_misspelt_base_is_named():
    with pytest.raises(ConfigError, match="Did you mean 'uniform'"):
        online(base="unifrom")
