"""Discounted returns to go beside stored steps: against sums written out, and after a restart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dreamlab.core.errors import ConfigError
from dreamlab.core.types import Batch, Step
from dreamlab.data.replay import Replay
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


# -- failures -------------------------------------------------------------------------------------

SPARSE = {"mc_gamma": GAMMA, "mc_failure_reward": -1.0}


def sparse(tick: int, wins: int) -> Step:
    """Return a step at -1, of environment 0 at 0 on tick `wins`: then its episode succeeds."""
    reward = np.array([0.0 if tick == wins else -1.0, -1.0], np.float32)
    return replace(step_at(tick), reward=reward)


def sparse_replay(ticks: int, wins: int, **options: Any) -> Replay:
    made = replay(**options)
    for tick in range(ticks):
        made.add(sparse(tick, wins), decision_at(tick))
    return made


def test_an_episode_that_never_succeeds_fails_forever():
    made = sparse_replay(14, wins=3, **SPARSE)
    assert made.returns is not None
    values = made.returns.values  # [num_envs, ticks]
    sums = [0.0, -1.0]
    for _ in range(2):
        sums.append(-1 + GAMMA * sums[-1])
    sums.append(0 + GAMMA * sums[-1])  # the action of tick 2 succeeded
    for _ in range(2):
        sums.append(-1 + GAMMA * sums[-1])
    assert np.allclose(values[0, :7], sums[::-1])
    assert np.allclose(values[0, 7:14], -1 / (1 - GAMMA))
    assert np.allclose(values[1, :13], -1 / (1 - GAMMA))
    assert values[1, 13] == -np.inf  # unfinished
    plain = sparse_replay(14, wins=3, mc_gamma=GAMMA)
    assert plain.returns is not None
    assert np.allclose(plain.returns.values[0, 13], 0)
    assert np.allclose(plain.returns.values[0, :7], sums[::-1])


@pytest.mark.parametrize("ticks", [22, 26])  # the success is overwritten, its episode is not
def test_a_success_is_remembered_after_its_step_is_overwritten(ticks: int, tmp_path: Path):
    made = sparse_replay(ticks, wins=1, folder=tmp_path / "a", **SPARSE)
    state = through_disk(made.save(), tmp_path)
    again = replay(folder=tmp_path / "a", **SPARSE)
    again.load(state)
    assert made.returns is not None
    assert again.returns is not None
    assert made.returns.values[0, 6] > -1 / (1 - GAMMA) + 1
    assert np.array_equal(again.returns.values, made.returns.values)


def test_a_failure_needs_a_discount():
    with pytest.raises(ConfigError, match="set mc_gamma, below 1"):
        replay(mc_failure_reward=-1.0)
    assert "failed" not in replay(mc_gamma=GAMMA).save()
