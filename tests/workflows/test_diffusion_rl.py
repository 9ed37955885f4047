"""Diffusion-policy RL: every switch by itself, and nothing of it left when all are off."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.workflows.offline import OFFLINE, POLICIES, SPEC, batch_of, flat, make

from dreamlab.components.critics.transitions import as_window
from dreamlab.core.types import ArraySpec, Batch, Mode, Spec, TaskSpec
from dreamlab.workflows.diffusion_rl import DiffusionRL

CRITIC = {"q": {"hidden": (8, 8)}}
MODEL = {"latent_dim": 16, "enc_dim": 16, "mlp_dim": 16, "bins": {"num": 21}}
OFF = {"rank": {"samples": 1}}
TASKS = Spec(
    {**SPEC.obs, "task": ArraySpec((), dtype="int64", classes=2)},
    SPEC.action,
    tasks=(TaskSpec("x", 2), TaskSpec("y", 2)),
)


def agent(kind: str = "diffusion", **options) -> DiffusionRL:
    return make(DiffusionRL, policy=POLICIES[kind], critic=CRITIC, **options)


def ric(**options) -> dict:
    return {"ric": {"model": MODEL, **options}}


def chunks(horizon: int) -> dict:
    return {"policy": {**POLICIES["diffusion"], "horizon": horizon, "execute": horizon}}


def wake(*heads: torch.nn.Module) -> None:
    """Give new weights to heads that predict 0 of everything."""
    for head in heads:
        torch.nn.init.normal_(head.weight)


def of_task(batch: Batch, task: torch.Tensor) -> Batch:
    """Return a batch whose windows [b] are of these tasks."""
    rows = task[:, None].expand(batch.reward.shape)
    return replace(batch, obs={**batch.obs, "task": rows})


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
    model, task = world.model, torch.zeros(4, dtype=torch.int64)
    worth, missed = world.judge(z, task, actions)
    total, gap, now = torch.zeros(4), torch.zeros(4), z
    for i in range(2):
        total = total + 0.99**i * model.decode(model.reward_logits(now, actions[:, i], task))
        after = model.next(now, actions[:, i], task)
        named = world.inverse(torch.cat([now, after], -1)).tanh()
        gap, now = gap + (named - actions[:, i]).square().sum(-1) / 2, after
    total = total + 0.99**2 * model.decode(world.value(now))
    torch.testing.assert_close(worth, total)
    torch.testing.assert_close(missed, gap)


def test_rics_value_ends_with_two_critics_of_the_next_action_if_the_chunk_has_one():
    ours = make(DiffusionRL, critic=CRITIC, **chunks(4), **ric(steps=2, num_q=3))
    world = ours.slow_world
    wake(world.critics.linears[-1])
    z, actions = torch.rand(5, 16), torch.rand(5, 4, 2) * 2 - 1
    task = torch.zeros(5, dtype=torch.int64)
    torch.manual_seed(7)
    worth, _ = world.judge(z, task, actions)
    first = z
    for i in range(2):
        z = world.model.next(z, actions[:, i], task)  # new rewards are 0
    every = world.critics.values(torch.cat([z, actions[:, 2]], -1))
    pairs = [0.99**2 * (every[i] + every[j]) / 2 for i, j in ((0, 1), (0, 2), (1, 2))]
    assert sum(torch.allclose(worth, pair, rtol=1e-4) for pair in pairs) == 1
    torch.manual_seed(7)
    later, _ = world.judge(first, task, actions + torch.tensor([0.0, 0, 1, 0])[:, None])
    assert not torch.allclose(worth, later)
    assert agent(**ric()).slow_world.critics is None, "a chunk of one action has none left"


def test_rics_critics_learn_rewards_and_the_values_after_them():
    ours = make(DiffusionRL, critic=CRITIC, **chunks(3), **ric(steps=2))
    batch = batch_of(length=4)
    target = ours.world._targets(batch, ours.critic.value)
    ahead = ours.critic.value({"state": batch.obs["state"][:, 2]})
    torch.testing.assert_close(target[1:, 1], (batch.reward[:, 2] + 0.99 * ahead)[1:])
    assert target[0, 0] == batch.reward[0, 1]  # terminates there
    before = flat(ours.slow_world.critics)
    ours.update_critic(batch, phase=OFFLINE)
    assert not torch.equal(flat(ours.slow_world.critics), before)


@pytest.mark.parametrize("horizon", [1, 3])
def test_ric_judges_by_the_task_of_each_observation(horizon):
    ours = make(DiffusionRL, TASKS, critic=CRITIC, **chunks(horizon), **ric(steps=2))
    world = ours.slow_world
    last = world.value.out if horizon == 1 else world.critics.linears[-1]
    wake(world.model.reward.out, world.inverse.out, last, world.model.tasks)
    z, actions = (
        torch.rand(1, 16).expand(4, -1),
        (torch.rand(1, horizon, 2) * 2 - 1).expand(4, -1, -1),
    )
    worth, missed = world.judge(z, torch.tensor([0, 1, 0, 1]), actions)
    for found in (worth, missed):
        torch.testing.assert_close(found[0], found[2])
        torch.testing.assert_close(found[1], found[3])
        assert not torch.isclose(found[0], found[1]), "of another task it is another value"
    seen, task = world.encode({"state": torch.zeros(2, 3), "task": torch.tensor([1, 0])})
    assert task.tolist() == [1, 0]
    assert not torch.allclose(seen[0], seen[1])


def test_every_task_of_a_batch_is_learnt_and_embeddings_stay_bounded():
    ours = make(DiffusionRL, TASKS, critic=CRITIC, **OFF, **ric(), guidance_scale=0.5)
    task = torch.tensor([0, 1, 0, 1, 0, 1])
    batch = of_task(batch_of(), task)
    wake(ours.world.model.tasks)
    before = [m.weight.clone() for m in (ours.world.model.tasks, ours.slow_world.model.tasks)]
    torch.manual_seed(0)
    wake(ours.world.model.reward.out)
    loss, _ = ours.world.losses(batch, ours.critic.value)
    swapped, _ = ours.world.losses(of_task(batch, 1 - task), ours.critic.value)
    assert not torch.isclose(loss, swapped)
    ours.update_critic(batch, phase=OFFLINE)
    ours.update_policy(batch, phase=OFFLINE)
    assert (before[0].norm(dim=1) > 1.1).all()
    assert (ours.world.model.tasks.weight.norm(dim=1) <= 1 + 1e-5).all()
    assert (ours.slow_world.model.tasks.weight != before[1]).any(1).all(), "both are learnt"
    action = ours.decide({k: v[:, 0] for k, v in batch.obs.items()}, task > 0, (), Mode.EVAL).action
    assert action.isfinite().all()


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
        *ours.slow_world.encode(t.obs), estimate.clean.clamp(-1, 1)
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
            worth, missed = ours.slow_world.judge(*ours.slow_world.encode(obs), action[:, None])
            found.append(float((worth - 0.1 * missed).mean()))
        else:
            found.append(float(ours.critic.q.ranked(obs["state"], action[:, None, None]).mean()))
        if scale == 0:
            torch.manual_seed(9)
            drawn = ours.policy.eval().sample(as_window(obs), mode=Mode.EVAL)[:, 0, 0]
            assert torch.equal(action, drawn)
    assert found == sorted(found)
    assert found[-1] > found[0]


@pytest.mark.parametrize("options", [{}, ric(constraint=0.0, value=0.0), ric()])
def test_the_range_of_values_is_measured_though_training_is_not_guided(options):
    ours = agent(**OFF, **options, scale_rate=1.0)
    if options:
        wake(ours.world.model.reward.out, ours.slow_world.model.reward.out)
    for p in ours.critic.q.net.parameters():
        p.data.mul_(10)
    batch = batch_of(64)
    t = ours.transitions(batch)
    _, _, q = ours.critic.loss(t)
    ours.update_critic(batch, phase=OFFLINE)
    if options == ric():  # by the terms themselves, of denoised actions
        assert ours.value_scale == 1
        ours.update_policy(batch, phase=OFFLINE)
    else:
        judged = ours.slow_world.judge(*ours.slow_world.encode(t.obs), t.action) if options else []
        worth = judged[0] if options else q.mean(0)
        low, high = torch.quantile(worth.detach(), torch.tensor([0.05, 0.95]))
        torch.testing.assert_close(ours.value_scale, high - low)
    assert ours.value_scale > 1


def test_guidance_by_critics_follows_their_values_divided_by_their_range():
    ours, obs = agent(**OFF, guidance_scale=1.0), {"state": torch.randn(4, 3)}
    actions = torch.rand(4, 2, 1, 2)
    guidance = ours.guidance(obs)
    assert guidance is not None
    ours.value_scale.fill_(8.0)
    worth = ours.critic.q.ranked(obs["state"], actions)
    torch.testing.assert_close(guidance.value(actions), worth / 8)


def test_the_range_of_values_changes_nothing_without_guidance():
    ours, obs = agent(**OFF), {"state": torch.randn(4, 3)}
    found = []
    for scale in (1.0, 50.0):
        ours.value_scale.fill_(scale)
        torch.manual_seed(9)
        found.append(ours.decide(obs, torch.ones(4, dtype=torch.bool), (), Mode.EVAL).action)
    assert torch.equal(*found)
