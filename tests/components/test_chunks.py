"""What a policy learns from windows, and how it acts in chunks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dreamlab.components.policies import acting
from dreamlab.components.policies.chunks import chunks
from dreamlab.components.policies.protocol import Policy, PolicyConfig
from dreamlab.core.errors import ConfigError
from dreamlab.core.types import ArraySpec, Batch, Mode, Spec

SPEC = Spec({"state": ArraySpec((1,))}, ArraySpec((1,), low=-1.0, high=1.0))
FIRST, LAST = (3,), (2,)  # an episode ends at step 2, the next one begins at step 3


def made(length: int = 8, first=FIRST, last=LAST) -> Batch:
    """Return a window whose observations are 0, 1, 2, ... and whose actions are -0, -1, -2, ..."""
    count = torch.arange(length, dtype=torch.float32)
    flags = torch.zeros(length, dtype=torch.bool)
    is_first, is_last = flags.clone(), flags.clone()
    is_first[list(first)], is_last[list(last)] = True, True
    parts = (-count[:, None], torch.zeros(length), is_first, is_last, flags)
    return Batch({"state": count[None, :, None]}, *(x[None] for x in parts))


def rows(batch: Batch, obs_steps: int, horizon: int):
    found = chunks(batch, obs_steps, horizon)
    return (
        found.obs["state"][..., 0].int().tolist(), (-found.action[..., 0]).int().tolist(),
        found.valid.tolist(),
    )  # fmt: skip


def test_plain_rows_are_steps_with_their_actions():
    obs, action, valid = rows(made(), 1, 1)
    assert obs == [[i] for i in range(8)]
    assert valid == [i != 2 for i in range(8)]
    assert all(a == [i] for i, a in enumerate(action) if valid[i])


def test_what_is_beyond_the_episode_repeats_its_edge():
    obs, action, valid = rows(made(), 2, 4)
    assert obs == [[0, 1], [1, 2], [3, 3], [3, 4], [4, 5]]
    assert action[0] == [0, 1, 1, 1]  # the action of the last step, 2, is nobody's
    assert action[2:] == [[3, 3, 4, 5], [3, 4, 5, 6], [4, 5, 6, 7]]
    assert valid == [True, False, True, True, True]


def test_an_episode_that_was_cut_without_a_last_step_keeps_its_last_action():
    _, action, valid = rows(made(last=()), 2, 4)
    assert action[0] == [0, 1, 2, 2]
    assert all(valid)


def test_windows_that_were_padded_already_stay_as_they_are():
    """A source may repeat edges itself: the first step at the front, the last one at the end."""
    batch = made(6, first=(0, 1), last=(4, 5))
    order = torch.tensor([0, 0, 1, 2, 3, 3])
    obs = {"state": batch.obs["state"][:, order]}
    batch = replace(batch, obs=obs, action=batch.action[:, torch.tensor([0, 0, 1, 2, 2, 2])])
    found = chunks(batch, 2, 6)
    assert torch.equal(found.action, batch.action)
    assert torch.equal(found.obs["state"], batch.obs["state"][:, :2])


def test_a_window_that_is_shorter_than_a_chunk_is_refused():
    with pytest.raises(ConfigError, match=r"windows of 8 steps, .* chunks of 9"):
        chunks(made(), 1, 9)


# -- acting ---------------------------------------------------------------------------------------


class Echo(Policy):
    """Answers the observations it saw and the number of its plan, in thousandths."""

    def __init__(self, **config) -> None:
        super().__init__(PolicyConfig(**config), SPEC)
        self.planned: list[list[float]] = []

    def sample(self, obs, n=1, *, mode=Mode.TRAIN):
        assert not self.training
        seen = obs["state"][..., 0]
        self.planned += seen.tolist()
        place = torch.arange(self.horizon) - (self.obs_steps - 1)
        return (seen[:, -1:] * 0.1 + place * 0.001)[:, None, :, None]

    def loss(self, obs, action):
        raise AssertionError


def play(policy: Policy, obs, is_first, mode=Mode.EVAL) -> list[list[float]]:
    """Return the actions of each step; `obs` and `is_first` have a row for each."""
    state, out = acting.initial_state(policy, SPEC, len(obs[0]), torch.device("cpu")), []
    for seen, first in zip(obs, is_first, strict=True):
        step = {"state": torch.tensor(seen, dtype=torch.float32)[:, None]}
        decision = acting.act(policy, step, torch.tensor(first), state, mode)
        state = decision.state
        out.append([round(x, 4) for x in decision.action[:, 0].tolist()])
    return out


@pytest.mark.parametrize("mode", [Mode.EVAL, Mode.FIXED])
def test_a_chunk_is_executed_before_the_next_is_planned(mode):
    policy = Echo(obs_steps=2, horizon=4, execute=3)
    got = play(policy, [[1], [2], [3], [4], [5]], [[True]] + [[False]] * 4, mode)
    assert got == [[0.1], [0.101], [0.102], [0.4], [0.401]]
    if mode is Mode.EVAL:
        assert policy.planned == [[1, 1], [3, 4]]  # the first observation is repeated


@pytest.mark.parametrize("mode", [Mode.EVAL, Mode.FIXED])
def test_an_episode_that_begins_in_one_environment_leaves_the_others_alone(mode):
    policy = Echo(obs_steps=2, horizon=4, execute=3)
    first = [[True, True], [False, False], [False, True], [False, False]]
    got = play(policy, [[1, 5], [2, 6], [3, 7], [4, 8]], first, mode)
    assert got == [[0.1, 0.5], [0.101, 0.501], [0.102, 0.7], [0.4, 0.701]]
    if mode is Mode.EVAL:
        assert policy.planned == [[1, 1], [5, 5], [7, 7], [3, 4]]


def test_a_plain_policy_needs_no_state():
    policy = Echo()
    assert acting.initial_state(policy, SPEC, 2, torch.device("cpu")) == ()
    assert play(policy, [[1, 2], [3, 4]], [[True, True], [False, False]]) == [
        [0.1, 0.2],
        [0.3, 0.4],
    ]
