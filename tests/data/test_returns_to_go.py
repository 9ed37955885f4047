"""Discounted returns to go beside stored steps: against sums written out, and after a restart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from dreamlab.core.types import Batch
from tests.data.streams import EPISODE, decision_at, feed, replay, step_at, through_disk
from tests.data.test_run_replay import source, stored

GAMMA = 0.9


def expected(tick: int, env: int, added: int) -> float:
    """Return the sum of what follows a step, -inf if the episode's end is not stored yet."""
    place = (tick + env) % EPISODE
    end = tick + EPISODE - 1 - place
    if end >= added:
        return -np.inf
    rewards = [float(step_at(t).reward[env]) for t in range(tick + 1, end + 1)]
    return sum(GAMMA**i * r for i, r in enumerate(rewards))


def check(batch: Batch, added: int) -> int:
    """Compare every step of a batch; return how many have a return."""
    assert batch.index is not None
    found = batch.extras["mc_return"]
    ids = batch.index.numpy()
    want = [[expected(int(i) // 2, int(i) % 2, added) for i in row] for row in ids]
    torch.testing.assert_close(found, torch.tensor(want, dtype=torch.float32))
    return int(found.isfinite().sum())


def test_returns_are_those_of_the_episode_also_after_the_ring_wrapped():
    buffer = replay(mc_gamma=GAMMA)
    for more in (10, 9, 30, 1):
        feed(buffer, more)
        assert sum(check(buffer.sample(), buffer.added) for _ in range(5)) > 0


def test_there_are_none_unless_they_are_asked_for():
    buffer = replay()
    feed(buffer, 10)
    assert "mc_return" not in buffer.sample().extras


def test_they_are_the_same_after_a_restart(tmp_path: Path):
    # the ring of 20 ticks begins within an episode, whose first step is lost
    made = replay(folder=tmp_path / "a", mc_gamma=GAMMA)
    feed(made, 26)
    state = through_disk(made.save(), tmp_path)
    again = replay(folder=tmp_path / "a", mc_gamma=GAMMA)
    again.load(state)
    for buffer in (made, again):
        feed(buffer, 5)
    ours, theirs = made.sample(), again.sample()
    assert torch.equal(ours.extras["mc_return"], theirs.extras["mc_return"])
    check(theirs, 31)


def test_another_runs_replay_tells_them_too(tmp_path: Path):
    made = source(stored(tmp_path, mc_gamma=None), mc_gamma=GAMMA)
    assert check(made.sample(), 15) > 0


def test_an_episode_that_began_before_the_first_stored_step_has_them_too(tmp_path: Path):
    made = replay(folder=tmp_path, mc_gamma=GAMMA)
    for tick in range(3, 15):
        step = step_at(tick)
        made.add(replace(step, is_first=np.zeros(2, bool)), decision_at(tick))
    assert np.isfinite(made.returns.values[:, 0]).all()
    again = replay(folder=tmp_path, mc_gamma=GAMMA)
    again.load(through_disk(made.save(), tmp_path))
    assert np.array_equal(again.returns.values, made.returns.values)
