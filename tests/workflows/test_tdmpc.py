"""TD-MPC, the first version: targets, losses, schedules, and the search."""

from __future__ import annotations

import pytest
import torch
from tests.workflows.test_tdmpc2 import IMAGE, PHASE, TASKS, VECTOR, batch_of, obs_of

from dreamlab.core.config import load
from dreamlab.core.errors import ConfigError
from dreamlab.core.types import Mode
from dreamlab.workflows.tdmpc import TDMPC, TDMPCConfig


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def agent(spec=VECTOR, **options) -> TDMPC:
    torch.manual_seed(0)
    made = TDMPC(load(TDMPCConfig, {**TDMPC.tiny, **options}, ""), spec)
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return made


def test_latents_should_arrive_where_the_targets_encoder_does():
    a, batch = agent(), batch_of(VECTOR)
    obs = {k: v[:, 1] for k, v in batch.obs.items()}
    torch.manual_seed(4)
    goal, target = a.targets(obs, batch.reward[:, 1], batch.is_terminal[:, -1])
    task = a.model.task_of(obs)
    assert torch.equal(goal, a.target.world.encode(obs, task))
    assert not torch.allclose(goal, a.model.encode(obs, task))
    torch.manual_seed(4)
    z = a.model.encode(obs, task)
    value = a.target.values(z, a.policy_action(z, torch.randn(5, 2))).amin(0)
    expected = batch.reward[:, 1] + 0.99 * (~batch.is_terminal[:, -1]).float() * value
    assert torch.allclose(target, expected)


def test_plans_grow_and_deviations_fall():
    a = agent(anneal_updates=100)
    assert (a.horizon, a.least_std) == (1, 0.5)
    a.updates.value = 50
    assert (a.horizon, a.least_std) == (3, pytest.approx(0.275))
    a.updates.value = 1000
    assert (a.horizon, a.least_std) == (5, pytest.approx(0.05))


@pytest.mark.parametrize("updates", [0, 1000])
def test_the_state_keeps_plans_of_the_longest_length(updates):
    a, obs = agent(), obs_of(VECTOR, 3)
    a.updates.value = updates
    with torch.no_grad():
        first = torch.ones(3, dtype=torch.bool)
        decision = a.decide(obs, first, a.initial_state(3), Mode.TRAIN)
        again = a.decide(obs, ~first, decision.state, Mode.EVAL)
    assert again.state["mean"].shape == (3, 5, 2)
    assert again.action.abs().max() <= 1


def test_an_update_gives_priorities_and_moves_everything():
    a = agent()
    before = {k: v.clone() for k, v in a.named_parameters()}
    for _ in range(2):
        metrics, extras = a.update_agent(batch_of(VECTOR, t=6), phase=PHASE)
    assert extras["priority"].shape == (5,)
    assert (extras["priority"] > 0).all()
    assert all(torch.isfinite(v) for v in metrics.values())
    assert not [k for k, v in a.named_parameters() if torch.equal(v, before[k])]


def test_noise_of_the_policy_is_clipped():
    a, z = agent(), torch.randn(4, 8)
    calm, wild = a.policy_action(z, None), a.policy_action(z, torch.full((4, 2), 100.0))
    assert torch.allclose(wild, (calm + 0.3).clamp(max=1))


def test_the_noise_of_the_policy_does_not_fall_with_the_planners():
    a, z, noise = agent(), torch.randn(4, 8), torch.full((4, 2), 0.1)
    early = a.policy_action(z, noise)
    assert torch.allclose(early, (a.policy_action(z, None) + 0.005).clamp(max=1), atol=1e-6)
    a.updates.value = 10**6
    assert torch.equal(a.policy_action(z, noise), early)


def test_bounds_do_not_stop_the_gradient():
    a, z = agent(), torch.randn(4, 8)
    with torch.no_grad():
        list(a.actor.parameters())[-1].fill_(2.0)  # near the bound, so that noise passes it
    noise = torch.full((4, 2), 2.0)
    action = a.policy_action(z, noise)
    assert (action == 1).any()
    (bias,) = torch.autograd.grad(action.sum(), list(a.actor.parameters())[-1:])
    mean = torch.tanh(a.actor(z))
    assert torch.allclose(bias, (1 - mean**2).sum(0), rtol=1e-4)


@pytest.mark.parametrize("spec", [IMAGE, TASKS])
def test_what_it_does_not_learn_is_refused(spec):
    with pytest.raises(ConfigError, match="TD-MPC2"):
        agent(spec)
