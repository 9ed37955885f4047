"""TD-MPC, the first version: targets, losses, schedules, and the search."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.workflows.test_tdmpc2 import IMAGE, PHASE, TASKS, VECTOR, batch_of, obs_of

from dreamlab.components.latent_planning import draw_noise
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


# -- the formulas, written out --------------------------------------------------------------------


def apart(a: TDMPC, width: float = 3.0) -> TDMPC:
    """Let critics, targets and rewards say different things."""
    with torch.no_grad():
        outs = [q[-1] for m in (a.online, a.target) for q in m.critics]
        for layer in (*outs, a.online.world.reward[-1]):
            layer.weight.copy_(width * torch.randn_like(layer.weight))
    return a


def noisy(a: TDMPC, z: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Return the policy's action: tanh, noise of 0.05 up to 0.3, bounds that gradients pass."""
    free = a.actor(z).tanh() + (0.05 * noise).clamp(-0.3, 0.3)
    return free + (free.clamp(-1, 1) - free).detach()


def both(critics, z: torch.Tensor, action: torch.Tensor) -> list[torch.Tensor]:
    return [q(torch.cat([z, action], -1))[..., 0] for q in critics]


def at_step(batch, t: int) -> dict[str, torch.Tensor]:
    return {k: v[:, t] for k, v in batch.obs.items()}


def losses_by_hand(a: TDMPC, batch, noise: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return consistency, reward and value losses and the priority of each window."""
    online, target = a.online.world, a.target.world
    z, sums = online.encoder(at_step(batch, 0)), [torch.zeros(5) for _ in range(4)]
    for t in range(batch.reward.shape[1] - 1):
        with torch.no_grad():
            after = online.encoder(at_step(batch, t + 1))
            goal = target.encoder(at_step(batch, t + 1))
            value = torch.minimum(*both(a.target.critics, after, noisy(a, after, noise[t])))
            going = 1 - batch.is_terminal[:, t + 1].float()
            wanted = batch.reward[:, t + 1] + 0.99 * going * value
        x = torch.cat([z, batch.action[:, t]], -1)
        first, second = (q(x)[:, 0] for q in a.online.critics)
        reward, z = online.reward(x)[:, 0], online.dynamics(x)
        found = (
            (z - goal).pow(2).mean(-1),
            (reward - batch.reward[:, t + 1]).pow(2),
            (first - wanted).pow(2) + (second - wanted).pow(2),
            ((first - wanted).abs() + (second - wanted).abs()).detach(),
        )
        sums = [s + 0.5**t * x for s, x in zip(sums, found, strict=True)]
    return tuple(sums)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_models_loss_is_that_of_the_formula(weighted):
    """Of each window 2 c + 0.5 r + 0.1 v, each at most 1e4, times its weight, over H."""
    a, batch = apart(agent()), batch_of(VECTOR, t=5)
    batch.reward[1, 2] = 1e3  # beyond the bound of losses
    batch.reward[2, 3] = 1e5  # and of priorities
    weight = torch.rand(5) + 0.5 if weighted else torch.ones(5)
    given = replace(batch, extras={"weight": weight} if weighted else {})
    torch.manual_seed(7)
    loss, zs, priority, metrics = a.model_loss(given)
    torch.manual_seed(7)
    noise = torch.stack([torch.randn(5, 2) for _ in range(4)])
    *parts, wanted_priority = losses_by_hand(a, batch, noise)
    assert len(zs) == 5
    for name, each in zip(("consistency", "reward", "value"), parts, strict=True):
        torch.testing.assert_close(metrics[f"loss/{name}"], each.mean(), rtol=1e-4, atol=0)
    c, r, v = (x.clamp(max=1e4) for x in parts)
    wanted = ((2 * c + 0.5 * r + 0.1 * v) * weight).mean() / 4
    torch.testing.assert_close(loss, wanted, rtol=1e-4, atol=0)
    torch.testing.assert_close(priority, wanted_priority.clamp(max=1e4), rtol=1e-4, atol=1e-4)
    assert (priority == 1e4).tolist() == [False, False, True, False, False]
    params = list(a.online.parameters())
    ours, theirs = (torch.autograd.grad(x, params) for x in (loss, wanted))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-3)


def test_the_policys_loss_is_that_of_the_formula():
    """The sum over H + 1 states of -rho^t min(Q1, Q2), without entropy or scale."""
    a, zs = apart(agent()), list(torch.randn(4, 5, 8))
    torch.manual_seed(7)
    loss = a.policy_loss(zs)
    torch.manual_seed(7)
    noise = torch.randn(4, 5, 2)
    values = [torch.minimum(*both(a.online.critics, z, noisy(a, z, e))) for z, e in
              zip(zs, noise, strict=True)]  # fmt: skip
    wanted = -sum(0.5**t * q.mean() for t, q in enumerate(values))
    torch.testing.assert_close(loss, wanted, rtol=1e-4, atol=0)
    params = list(a.actor.parameters())
    ours, theirs = (torch.autograd.grad(x, params) for x in (loss, wanted))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize(
    ("updates", "horizon", "floor"), [(0, 1, 0.5), (5, 3, 0.275), (99, 5, 0.05)]
)
def test_a_search_keeps_a_tenth_of_its_last_mean(updates, horizon, floor):
    a = apart(agent())
    a.updates.value = updates
    assert a.horizon == horizon
    obs, start = obs_of(VECTOR, 1), torch.rand(1, horizon, 2) - 0.5
    z, noise = a.model.encoder(obs), draw_noise(a.sizes, 1, torch.device("cpu"))
    plan = a.plan(z, start, noise)
    proposed, state = [], z.expand(4, -1)
    for t in range(horizon):
        proposed.append(noisy(a, state, noise.proposed[t, 0]))
        state = a.model.dynamics(torch.cat([state, proposed[-1]], -1))
    proposed = torch.stack(proposed, 1)
    mean, std = start[0], torch.full((horizon, 2), 2.0)
    for i in range(2):
        drawn = (mean + std * noise.candidates[i, 0, :, :horizon]).clamp(-1, 1)
        plans = torch.cat([proposed, drawn])
        state, score = z.expand(12, -1), torch.zeros(12)
        for t in range(horizon):
            x = torch.cat([state, plans[:, t]], -1)
            score, state = score + 0.99**t * a.model.reward(x)[:, 0], a.model.dynamics(x)
        last = noisy(a, state, noise.last[i, 0])
        score = score + 0.99**horizon * torch.minimum(*both(a.online.critics, state, last))
        best = score.argsort(descending=True)[:4]
        share = (0.5 * (score[best] - score[best[0]])).exp()
        share = (share / share.sum())[:, None, None]
        fit = (share * plans[best]).sum(0)
        std = (share * (plans[best] - fit).pow(2)).sum(0).sqrt().clamp(floor, 2)
        mean = 0.1 * mean + 0.9 * fit
    torch.testing.assert_close(plan.mean[0], mean, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(plan.std[0], std, rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_training_adds_the_searchs_deviation_to_an_elite():
    a, obs = apart(agent()), obs_of(VECTOR, 3)
    a.updates.value = 5  # plans of three steps
    state, later = a.initial_state(3), torch.zeros(3, dtype=torch.bool)
    state["mean"] = torch.rand(3, 5, 2) - 0.5
    torch.manual_seed(5)
    noise = draw_noise(a.sizes, 3, torch.device("cpu"))
    plan = a.plan(a.model.encoder(obs), state["mean"][:, 1:4], noise)
    decisions = []
    for mode in (Mode.EVAL, Mode.TRAIN):
        torch.manual_seed(5)
        decisions.append(a.decide(obs, later, state, mode))
    calm, noisy_one = (d.action for d in decisions)
    assert (calm[:, None] == plan.elites[:, :, 0]).all(-1).any(-1).all()
    assert (plan.std >= 0.275).all()
    wanted = (calm + plan.std[:, 0] * noise.action).clamp(-1, 1)
    torch.testing.assert_close(noisy_one, wanted)
    torch.testing.assert_close(decisions[0].state["mean"][:, :3], plan.mean)


def test_updates_count_for_the_schedules_and_every_second_one_moves_the_target():
    a, batch = agent(anneal_updates=4), batch_of(VECTOR, t=6)
    assert (a.horizon, a.least_std) == (1, 0.5)
    old = [p.clone() for p in a.target.parameters()]
    a.update_agent(batch, phase=PHASE)
    assert (a.horizon, a.least_std) == (2, pytest.approx(0.3875))
    assert all(map(torch.equal, old, a.target.parameters()))
    a.update_agent(batch, phase=PHASE)
    assert (a.horizon, a.least_std) == (3, pytest.approx(0.275))
    for now, was, online in zip(a.target.parameters(), old, a.online.parameters(), strict=True):
        torch.testing.assert_close(now, 0.99 * was + 0.01 * online.detach())
