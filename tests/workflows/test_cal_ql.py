"""Cal-QL and CQL: the conservative term written out, its bound, and what is left without it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tests.workflows.offline import POLICIES, batch_of, make

from dreamlab.components.critics.conservative import Proposal, conservative_gap
from dreamlab.components.critics.transitions import chunk_transitions
from dreamlab.core.errors import ConfigError
from dreamlab.core.phase import Phase
from dreamlab.workflows.cal_ql import CalQL

PHASE = Phase("learn", ("update_controller",))
SMALL = {"policy": {"hidden": (8, 8)}, "critic": {"hidden": (8, 8)}}


def test_the_gap_is_the_soft_maximum_less_the_datas_value():
    cal = make(CalQL, **SMALL, conservative={"actions": 2, "temperature": 0.7})
    t = chunk_transitions(batch_of(), 0.9, 1)
    z, q = t.obs["state"], cal.critic.values(t.obs["state"], t.action)
    proposals = cal.proposals(t)
    assert [p.bounded for p in proposals] == [False, True, True]
    torch.testing.assert_close(proposals[0].log_density, torch.full((6, 2), -2 * math.log(2)))
    floor = torch.full((6,), 0.05)
    got = conservative_gap(cal.critic, z, q, proposals, floor, cal.config.conservative)
    for member in range(2):
        total = 0.0
        for b in range(6):
            terms = []
            for p in proposals:
                for n in range(2):
                    value = float(cal.critic.values(z[b : b + 1], p.action[b : b + 1, n])[member])
                    value = max(value, 0.05) if p.bounded else value
                    terms.append(value / 0.7 - float(p.log_density[b, n]))
            soft = 0.7 * math.log(sum(math.exp(x) for x in terms))
            total += (soft - float(q[member, b])) / 6
        assert math.isclose(float(got[member].detach()), total, rel_tol=1e-4)


def test_without_importance_the_datas_action_is_among_those_pushed_down():
    cal = make(CalQL, **SMALL, conservative={"actions": 1, "importance": False})
    t = chunk_transitions(batch_of(), 0.9, 1)
    z, q = t.obs["state"], cal.critic.values(t.obs["state"], t.action)
    same = [Proposal(t.action[:, None], torch.zeros(6, 1), False)]
    gap = conservative_gap(cal.critic, z, q, same, None, cal.config.conservative)
    torch.testing.assert_close(gap, torch.full((2,), math.log(2.0)))


def test_values_below_the_datas_return_are_not_pushed_further_down():
    cal = make(CalQL, **SMALL)
    t = chunk_transitions(batch_of(), 0.9, 1)
    z = t.obs["state"]
    data = cal.critic.values(z, t.action, learn=False).detach()
    policy = [Proposal(torch.rand(6, 3, 1, 2), torch.zeros(6, 3), True)]
    options = cal.config.conservative
    pushes = lambda floor: torch.autograd.grad(  # noqa: E731
        conservative_gap(cal.critic, z, data, policy, floor, options).sum(),
        list(cal.critic.net.parameters()), allow_unused=True,
    )  # fmt: skip
    assert any(g is not None and g.abs().sum() > 0 for g in pushes(None))
    assert all(g is None or g.abs().sum() == 0 for g in pushes(torch.full((6,), 1e6)))
    unknown = torch.full((6,), -math.inf)  # of an episode that is not over
    for a, b in zip(pushes(unknown), pushes(None), strict=True):
        assert torch.equal(a, b)


def test_without_weight_it_is_the_bellman_error():
    cal = make(CalQL, **SMALL, conservative={"weight": 0.0})
    t = chunk_transitions(batch_of(), 0.99, 1)
    alpha = torch.tensor(0.5)
    torch.manual_seed(2)
    loss, metrics = cal.critic_loss(t, None, alpha)
    assert "conservative_gap" not in metrics
    torch.manual_seed(2)
    action, _ = cal.draw(t.next_obs, 1)
    target = cal.target.values(t.next_obs["state"], action[:, 0]).amin(0)
    target = t.reward + t.factor * target
    q = cal.critic.values(t.obs["state"], t.action)
    torch.testing.assert_close(loss, ((q - target) ** 2).mean(1).sum())


def test_data_without_returns_is_refused_with_what_to_set():
    batch = replace(batch_of(), extras={})
    with pytest.raises(ConfigError, match=r"set mc_gamma=0\.99 .*calibrated=false"):
        make(CalQL, **SMALL).update_controller(batch, phase=PHASE)
    cql = make(CalQL, **SMALL, conservative={"calibrated": False})
    assert cql.update_controller(batch, phase=PHASE)["q"].isfinite()


def test_conservative_values_lie_below_those_of_the_same_critics_without():
    found = {}
    for weight in (0.0, 5.0):
        cal = make(CalQL, **SMALL, conservative={"weight": weight, "calibrated": False})
        for i in range(60):
            cal.update_controller(batch_of(32, seed=i % 5), phase=PHASE)
        t = chunk_transitions(batch_of(32, seed=0), 0.99, 1)
        anywhere = torch.rand(32, 20, 1, 2) * 2 - 1
        data = cal.critic.values(t.obs["state"], t.action).mean()
        found[weight] = float(cal.critic.ranked(t.obs["state"], anywhere).mean() - data)
    assert found[5.0] < found[0.0]


def test_a_policy_without_densities_of_samples_is_refused():
    with pytest.raises(ConfigError, match="PA-RL"):
        make(CalQL, policy=POLICIES["diffusion"])
