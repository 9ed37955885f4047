"""IQL: losses against the formulas of the paper written out, and any policy with them."""

from __future__ import annotations

import pytest
import torch
from tests.workflows.offline import POLICIES, batch_of, flat, make

from dreamlab.components.critics.implicit import expectile_loss
from dreamlab.components.critics.transitions import as_window, chunk_transitions
from dreamlab.core.errors import ConfigError
from dreamlab.core.phase import Phase
from dreamlab.core.types import Mode
from dreamlab.workflows.iql import IQL

PHASE = Phase("learn", ("update_controller",))
SMALL = {"policy": {"hidden": (8, 8)}, "critic": {"q": {"hidden": (8, 8)}}}


def test_losses_are_those_of_the_paper():
    iql, batch = make(IQL, **SMALL), batch_of()
    with torch.no_grad():  # else both are the same
        for p in iql.critic.target.parameters():
            p.add_(0.1)
    t = chunk_transitions(batch, 0.9, 1)
    obs, ahead = batch.obs["state"].unbind(1)
    action = batch.action[:, 0]
    value = iql.critic.value({"state": obs})
    least = iql.critic.target.values(obs, action).amin(0)
    error = (least - value).detach()
    weight = torch.tensor([0.7 if e > 0 else 0.3 for e in error])
    value_loss = (weight * error**2).mean()
    cont = torch.tensor([0.0, 1, 1, 1, 1, 1])
    target = batch.reward[:, 1] + 0.9 * cont * iql.critic.value({"state": ahead})
    q = iql.critic.q.values(obs, action)
    q_loss = sum(((x - target) ** 2).mean() for x in q)
    loss, metrics, found = iql.critic.loss(t)
    torch.testing.assert_close(found, q)
    torch.testing.assert_close(loss, value_loss + q_loss)
    torch.testing.assert_close(metrics["value_loss"], value_loss)

    torch.testing.assert_close(iql.critic.advantage(t), error)
    got, _ = iql.policy_loss(t, error)
    each = iql.policy.loss(as_window(t.obs), t.action)
    torch.testing.assert_close(got, ((3 * error).exp().clamp(max=100) * each).mean())


def test_an_expectile_lies_where_the_weights_balance():
    sample, x = torch.arange(101.0) / 100, torch.tensor(0.5, requires_grad=True)
    opt = torch.optim.SGD([x], lr=0.2)
    for _ in range(400):
        opt.zero_grad()
        expectile_loss(sample - x, 0.9).mean().backward()
        opt.step()
    at = float(x.detach())
    above, below = (sample - at).clamp(min=0).mean(), (at - sample).clamp(min=0).mean()
    assert abs(float(0.9 * above - 0.1 * below)) < 1e-3
    assert at > 0.7


def test_the_critics_learn_from_the_datas_actions_alone():
    first, second = make(IQL, **SMALL), make(IQL, **SMALL)
    for p in second.policy.parameters():
        torch.nn.init.normal_(p)
    t = chunk_transitions(batch_of(), 0.9, 1)
    assert torch.equal(first.critic.loss(t)[0], second.critic.loss(t)[0])


@pytest.mark.parametrize("kind", POLICIES)
def test_every_kind_of_policy_learns_and_acts(kind):
    iql, batch = make(IQL, policy=POLICIES[kind], critic=SMALL["critic"]), batch_of()
    before = flat(iql.policy)
    metrics = iql.update_controller(batch, phase=PHASE)
    assert all(m.isfinite() for m in metrics.values())
    assert not torch.equal(flat(iql.policy), before)
    obs = {"state": batch.obs["state"][:, 0]}
    for mode in (Mode.TRAIN, Mode.EVAL, Mode.FIXED):
        action = iql.decide(obs, torch.ones(6, dtype=torch.bool), (), mode).action
        assert action.shape == (6, 2)
        assert action.abs().max() <= 1


def test_chunks_are_learnt_from_windows_as_long_and_carried_out_whole():
    iql = make(IQL, policy={"horizon": 3, "execute": 3, "hidden": (8,)}, critic=SMALL["critic"])
    iql.update_controller(batch_of(length=4), phase=PHASE)
    with pytest.raises(ConfigError, match="set length=4"):
        iql.update_controller(batch_of(length=3), phase=PHASE)
    state, obs = iql.initial_state(2), torch.randn(5, 2, 3)
    first = torch.tensor([True, True])
    chunk = iql.chunk({"state": obs[0]}, Mode.EVAL)
    for step in range(3):
        decision = iql.decide({"state": obs[step]}, first, state, Mode.EVAL)
        assert torch.equal(decision.action, chunk[:, step])
        state, first = decision.state, torch.zeros(2, dtype=torch.bool)
    new = iql.chunk({"state": obs[3]}, Mode.EVAL)
    decision = iql.decide({"state": obs[3]}, torch.tensor([False, False]), state, Mode.EVAL)
    assert torch.equal(decision.action, new[:, 0])
    again = iql.decide({"state": obs[4]}, torch.tensor([True, False]), decision.state, Mode.EVAL)
    assert torch.equal(again.action[0], iql.chunk({"state": obs[4]}, Mode.EVAL)[0, 0])
    assert torch.equal(again.action[1], new[1, 1])


def test_a_chunk_beyond_the_episode_repeats_its_last_action():
    batch = batch_of(length=5)  # the first window ends at its second step
    t = chunk_transitions(batch, 0.9, 4)
    assert torch.equal(t.action[0], batch.action[0, :1].expand(4, -1))
    assert torch.equal(t.action[1:], batch.action[1:, :4])
    torch.testing.assert_close(t.reward[0], batch.reward[0, 1])
    assert t.factor[0] == 0


def test_a_policy_whose_chunks_are_not_carried_out_whole_is_refused():
    with pytest.raises(ConfigError, match="execute=4"):
        make(IQL, policy={"horizon": 4, "execute": 2})
