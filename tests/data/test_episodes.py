"""The episode is drawn first, then the start within it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dreamlab.core.errors import LabError
from dreamlab.data.episodes import Episodes
from tests.data.streams import (
    assert_same_future,
    assert_true_to_index,
    decision_at,
    feed,
    replay,
    step_at,
)

OPTIONS = {"sampler": "episodes", "windows": "inside"}


def stored(lengths: list[int], num_envs: int = 1, **options: object):
    """Return a replay with one episode of each length after the other."""
    made = replay(num_envs, capacity=400, **{**OPTIONS, **options})
    for length in lengths:
        until = made.added + length
        while made.added < until:
            step = step_at(made.added, num_envs)
            first = np.full(num_envs, until - made.added == length)
            add(made, step, first)
    return made


def add(made, step, first) -> None:
    flag = np.zeros_like(first)
    step = replace(step, is_first=first, is_last=flag, is_terminal=flag)
    made.add(step, decision_at(made.added, made.num_envs))


def test_episodes_are_drawn_equally_often_and_so_are_the_starts_in_each():
    made = stored([5, 3, 23], batch=500)  # windows of 4 steps: 2, none and 20 starts
    ids = torch.cat([made.sample().index[:, 0].clone() for _ in range(20)]).numpy()
    seen = np.bincount(ids, minlength=31) / len(ids)
    np.testing.assert_allclose(seen[:2], 0.25, atol=0.02)
    np.testing.assert_allclose(seen[8:28], 0.025, atol=0.008)
    assert not seen[2:8].any()
    assert not seen[28:].any()


def test_no_window_crosses_episodes_and_what_is_overwritten_is_gone():
    made = replay(**OPTIONS, batch=64)
    for _ in range(12):
        feed(made, 7)
        batch = made.sample()
        assert_true_to_index(batch)
        assert not batch.is_first[:, 1:].any()
        assert int(batch.index.min()) >= (made.added - made.ticks) * 2
    assert len(made.sampler.stretches) <= 2 * (20 // 7 + 2)
    known = {(e, t) for e, first, last in made.sampler.stretches for t in range(first, last + 1)}
    oldest = made.added - made.ticks
    window = made.window()
    assert {(e, t) for e, t in known if t >= oldest} == {
        (i % 2, i // 2) for i in window.ids().tolist()
    }


@pytest.mark.parametrize("ticks", [6, 13, 50])
def test_it_comes_back_to_a_checkpoint_exactly(ticks: int, tmp_path: Path):
    one = replay(folder=tmp_path, **OPTIONS)
    feed(one, ticks)
    one.sample()
    feed(one, 3)  # starts that no draw has seen
    state = one.save()
    other = replay(folder=tmp_path, **OPTIONS)
    other.load(state)
    assert_same_future(one, other)


def test_drawing_later_changes_nothing():
    often, once = (replay(**OPTIONS, batch=4) for _ in range(2))
    for _ in range(9):
        feed(often, 5)
        feed(once, 5)
        often.sample()
    once.rng = np.random.default_rng(3)
    often.rng = np.random.default_rng(3)
    assert torch.equal(often.sample().index, once.sample().index)


def test_windows_that_may_cross_episodes_are_refused():
    made = replay(sampler="episodes")
    feed(made, 10)
    with pytest.raises(LabError, match="windows: inside"):
        made.sample()


def test_it_is_chosen_by_its_name():
    feed(made := replay(**OPTIONS), 10)
    assert isinstance(made.sampler, Episodes)
