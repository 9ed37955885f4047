"""A rollout gives everything back once, in order."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dreamlab.data.rollout import Rollout, RolloutConfig
from dreamlab.data.source import BufferContext
from tests.data.streams import SPEC, decision_at, step_at, through_disk


def rollout(num_envs: int = 2) -> Rollout:
    return Rollout(RolloutConfig(length=3), BufferContext(SPEC, num_envs))


def fill(
    buffer: Rollout, first: int = 0, ticks: int = 3, dtype: torch.dtype = torch.float32
) -> None:
    num_envs = buffer.place.num_envs
    for tick in range(first, first + ticks):
        buffer.add(step_at(tick, num_envs), decision_at(tick, num_envs, dtype))
    buffer.finish(step_at(first + ticks, num_envs))


def test_a_batch_holds_every_tick_and_the_one_after():
    buffer = rollout()
    fill(buffer)
    batch = buffer.sample()
    assert batch.shape == (2, 4)
    assert batch.reward.tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert batch.action[..., 0].tolist() == [[0.5, 2.5, 4.5, 0], [1.5, 3.5, 5.5, 0]]
    assert batch.extras["latent"][0, :, 0].tolist() == [0, -2, -4, 0]
    assert batch.index is None


def test_what_needs_no_observations_need_not_keep_them(tmp_path: Path):
    whole, lean = (
        Rollout(RolloutConfig(length=3, keep_obs=k), BufferContext(SPEC, 2)) for k in (True, False)
    )
    fill(whole)
    fill(lean, ticks=2)
    lean.add(step_at(2, 2), decision_at(2, 2))
    again = Rollout(lean.config, lean.place)
    again.load(through_disk(lean.save(), tmp_path))
    again.finish(step_at(3, 2))
    batch, wanted = again.sample(), whole.sample()
    assert batch.obs == {}
    assert torch.equal(batch.reward, wanted.reward)
    assert torch.equal(batch.action, wanted.action)
    assert lean.nbytes() < whole.nbytes()


@pytest.mark.parametrize("num_envs", [1, 2])
def test_a_batch_is_valid_while_the_next_rollout_is_collected(num_envs: int):
    buffer = rollout(num_envs)
    fill(buffer)
    reward = (batch := buffer.sample()).reward.clone()
    fill(buffer, first=3)
    assert batch.reward.equal(reward)
    assert buffer.sample().reward[0, 0] == 3 * num_envs


def test_it_is_ready_when_full_and_closed_and_only_once():
    buffer = rollout()
    fill(buffer, ticks=2)
    assert not buffer.ready()
    fill(buffer, first=2, ticks=1)
    assert buffer.ready()
    buffer.sample()
    assert not buffer.ready()


def test_too_many_steps_are_a_mistake():
    buffer = rollout()
    fill(buffer)
    with pytest.raises(AssertionError, match="full"):
        fill(buffer, first=3)


@pytest.mark.parametrize("ticks", [2, 3])
def test_a_saved_rollout_goes_on_where_it_was(ticks: int, tmp_path: Path):
    buffer, other = rollout(), rollout()
    fill(buffer, ticks=ticks, dtype=torch.bfloat16)
    other.load(through_disk(buffer.save(), tmp_path))
    for each in (buffer, other):
        if ticks < 3:
            fill(each, first=ticks, ticks=1, dtype=torch.bfloat16)
    one, two = buffer.sample(), other.sample()
    assert one.reward.equal(two.reward)
    assert one.extras["latent"].equal(two.extras["latent"])


def test_a_rollout_just_sampled_saves_nothing_and_goes_on(tmp_path: Path):
    buffer, other = rollout(), rollout()
    fill(buffer)
    buffer.sample()
    state = buffer.save()
    assert state["data"] == {}
    other.load(through_disk(state, tmp_path))
    fill(other, first=3)
    assert other.sample().reward[0].tolist() == [6, 8, 10, 12]
