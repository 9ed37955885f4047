"""Diffusion-policy RL: every switch by itself, and nothing of it left when all are off."""

from __future__ import annotations

import pytest
import torch
from tests.workflows.offline import OFFLINE, POLICIES, batch_of, flat, make

from dreamlab.components.critics.transitions import as_window
from dreamlab.core.types import Mode
from dreamlab.workflows.diffusion_rl import DiffusionRL

CRITIC = {"q": {"hidden": (8, 8)}}
MODEL = {"latent_dim": 16, "enc_dim": 16, "mlp_dim": 16, "bins": {"num": 21}}
OFF = {"rank": {"samples": 1}}


def agent(kind: str = "diffusion", **options) -> DiffusionRL:
    return make(DiffusionRL, policy=POLICIES[kind], critic=CRITIC, **options)


def ric(**options) -> dict:
    return {"ric": {"model": MODEL, **options}}


@pytest.mark.parametrize("kind", ["diffusion", "flow"])
@pytest.mark.parametrize("switched_off", [{}, ric(constraint=0.0, value=0.0)])
def test_with_everything_off_it_is_the_plain_policy(kind, switched_off):
    ours = agent(kind, **OFF, **switched_off)
    plain = agent(kind)  # whose policy is taught by nothing but its own loss
    plain.policy.load_state_dict(ours.policy.state_dict())
    for i in range(3):
        batch = batch_of(seed=i)
        torch.manual_seed(i)
        ours.update_policy(batch, phase=OFFLINE)
        torch.manual_seed(i)
        t = plain.transitions(batch)
        plain.policy_opt.step(plain.policy.loss(as_window(t.obs), t.action).mean())
    assert torch.equal(flat(ours.policy), flat(plain.policy))
    obs = {"state": torch.randn(5, 3)}
    torch.manual_seed(9)
    action = ours.decide(obs, torch.ones(5, dtype=torch.bool), (), Mode.EVAL).action
    torch.manual_seed(9)
    drawn = plain.policy.eval().sample(as_window(obs), mode=Mode.EVAL)[:, 0, 0]
    assert torch.equal(action, drawn)


def test_ranking_takes_the_best_sample_by_the_critics():
    ours, obs = agent(rank={"samples": 7}), {"state": torch.randn(5, 3)}
    torch.manual_seed(9)
    drawn = ours.policy.eval().sample(as_window(obs), 7, mode=Mode.EVAL)
    best = ours.critic.q.ranked(obs["state"], drawn).argmax(1)
    torch.manual_seed(9)
    with torch.no_grad():
        action = ours.decide(obs, torch.ones(5, dtype=torch.bool), (), Mode.EVAL).action
    torch.testing.assert_close(action, drawn[torch.arange(5), best, 0].detach())


def test_the_q_loss_goes_through_the_chain_and_no_further():
    ours, batch = agent(q_loss=1.0), batch_of()
    t = ours.transitions(batch)
    torch.manual_seed(4)
    loss = ours.q_loss(t.obs)
    torch.manual_seed(4)
    action = ours.policy.sample(as_window(t.obs))[:, 0]
    q = ours.critic.q.values(t.obs["state"], action).mean(0)
    torch.testing.assert_close(loss, -q.mean() / q.mean().abs().detach())
    loss.backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in ours.policy.parameters())
    assert all(p.grad is None for p in ours.critic.parameters())


def test_the_q_loss_makes_samples_more_valuable():
    ours, obs = agent(q_loss=5.0), {"state": torch.randn(64, 3)}
    worth = lambda: float(  # noqa: E731
        ours.critic.q.ranked(obs["state"], ours.policy.sample(as_window(obs), 8).detach()).mean()
    )
    before = worth()
    for i in range(30):
        ours.update_policy(batch_of(64, seed=i), phase=OFFLINE)
    assert worth() > before


def test_rics_terms_are_those_of_the_definition():
    ours = agent(**ric(steps=2))
    world, z, actions = ours.slow_world, torch.rand(4, 16), torch.rand(4, 3, 2) * 2 - 1
    worth, missed = world.judge(z, actions)
    model, task = world.model, torch.zeros(4, dtype=torch.int64)
    total, gap, now = torch.zeros(4), torch.zeros(4), z
    for i in range(2):
        total = total + 0.99**i * model.decode(model.reward_logits(now, actions[:, i], task))
        after = model.next(now, actions[:, i], task)
        named = world.inverse(torch.cat([now, after], -1)).tanh()
        gap, now = gap + (named - actions[:, i]).square().sum(-1) / 2, after
    total = total + 0.99**2 * model.decode(world.value(now))
    torch.testing.assert_close(worth, total)
    torch.testing.assert_close(missed, gap)


@pytest.mark.parametrize(
    ("on", "off"),
    [({"constraint": 0.5, "value": 0.0}, "value"), ({"constraint": 0.0}, "constraint")],
)
def test_each_of_rics_terms_is_a_switch(on, off):
    ours = agent(**ric(**on))
    with torch.no_grad():  # new heads say 0 of everything: their terms have no gradient
        for head in (ours.slow_world.value.out, ours.slow_world.model.reward.out):
            torch.nn.init.normal_(head.weight)
    t = ours.transitions(batch_of())
    torch.manual_seed(3)
    loss, _ = ours.policy_loss(t)
    torch.manual_seed(3)
    estimate = ours.policy.estimate(as_window(t.obs), t.action)
    worth, missed = ours.slow_world.judge(
        ours.slow_world.encode(t.obs), estimate.clean.clamp(-1, 1)
    )
    scale = ours.value_scale
    term = 0.5 * missed if off == "value" else -0.1 * worth / scale
    torch.testing.assert_close(loss, estimate.loss.mean() + (estimate.signal * term).mean())
    loss.backward()
    assert all(p.grad is None for p in ours.slow_world.parameters())


def test_the_world_learns_what_it_is_asked_for():
    ours = agent(**ric(), optimizer={"lr": 3e-3})
    names = ("consistency", "reward", "value", "inverse")
    first = last = {}
    for i in range(70):
        last = ours.update_critic(batch_of(64, length=2, seed=i % 2), phase=OFFLINE)
        first = first or last
    for name in ("reward", "inverse"):
        assert last[f"loss/{name}"] < 0.9 * first[f"loss/{name}"], name
    assert all(last[f"loss/{name}"].isfinite() for name in names)
    assert not torch.equal(flat(ours.slow_world), flat(ours.world))


@pytest.mark.parametrize("options", [{}, ric()])
def test_guidance_of_scale_zero_is_none_and_more_of_it_is_worth_more(options):
    obs, first = {"state": torch.randn(256, 3)}, torch.ones(256, dtype=torch.bool)
    found = []
    for scale in (0.0, 0.1, 0.3, 1.0):
        ours = agent(**OFF, **options, guidance_scale=scale)
        with torch.no_grad():  # one direction is better, everywhere
            if options:
                for p in ours.slow_world.model.reward.parameters():
                    p.zero_()
                torch.nn.init.normal_(ours.slow_world.value.out.weight)
            for p in ours.critic.q.net.parameters():
                p.mul_(3)
        torch.manual_seed(9)
        action = ours.decide(obs, first, (), Mode.EVAL).action.detach()
        if options:
            z = ours.slow_world.encode(obs)
            worth, missed = ours.slow_world.judge(z, action[:, None])
            found.append(float((worth - 0.1 * missed).mean()))
        else:
            found.append(float(ours.critic.q.ranked(obs["state"], action[:, None, None]).mean()))
        if scale == 0:
            torch.manual_seed(9)
            drawn = ours.policy.eval().sample(as_window(obs), mode=Mode.EVAL)[:, 0, 0]
            assert torch.equal(action, drawn)
    assert found == sorted(found)
    assert found[-1] > found[0]
