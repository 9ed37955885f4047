"""PA-RL: the same code for every kind of policy, what it promises, and that it improves actions."""

from __future__ import annotations

import pytest
import torch
from tests.workflows.offline import OFFLINE, ONLINE, POLICIES, batch_of, flat, make

from dreamlab.components.critics.transitions import as_window
from dreamlab.core.phase import Phase
from dreamlab.core.types import Batch, Mode
from dreamlab.workflows.pa_rl import PARL

CRITIC = {"hidden": (16, 16), "num_critics": 3}
SMALL = {"critic": CRITIC, "improve": {"samples": 4, "keep": 2, "steps": 2}}
KINDS = pytest.mark.parametrize("kind", POLICIES)


def seen(batch: Batch) -> dict[str, torch.Tensor]:
    return {"state": batch.obs["state"][:, 0]}


@KINDS
def test_every_kind_of_policy_goes_through_all_phases(kind):
    parl, batch = make(PARL, policy=POLICIES[kind], **SMALL), batch_of()
    for hook, moved, phase in (
        (parl.clone_policy, parl.policy, OFFLINE),
        (parl.update_critic, parl.critic, OFFLINE),
        (parl.update_critic, parl.critic, ONLINE),
        (parl.update_policy, parl.policy, ONLINE),
    ):
        before, others = flat(moved), flat(parl.critic if moved is parl.policy else parl.policy)
        assert all(m.isfinite() for m in hook(batch, phase=phase).values())
        assert not torch.equal(flat(moved), before)
        other = parl.critic if moved is parl.policy else parl.policy
        assert torch.equal(flat(other), others), "each hook moves what it says, and no more"
    for mode in Mode:
        with torch.no_grad():
            action = parl.decide(seen(batch), torch.ones(6, dtype=torch.bool), (), mode).action
        assert action.shape == (6, 2)
        assert action.abs().max() <= 1


@KINDS
def test_what_is_improved_is_never_worse_than_what_was_proposed(kind):
    parl = make(PARL, policy=POLICIES[kind], critic=CRITIC, improve={
        "samples": 6, "keep": 6, "steps": 5, "step_size": 0.5,
    })  # fmt: skip
    obs = seen(batch_of())
    torch.manual_seed(7)
    drawn = parl.proposals(obs, 6)
    torch.manual_seed(7)
    found = parl.improved(obs)
    value = parl.critic.ranked(obs["state"], drawn)
    order = value.argsort(1, descending=True)
    assert (found.value >= value.gather(1, order) - 1e-6).all()


@KINDS
def test_without_steps_it_acts_as_the_best_of_n(kind):
    parl = make(
        PARL, policy=POLICIES[kind], critic=CRITIC, improve={"samples": 6, "keep": 6, "steps": 0}
    )
    obs = seen(batch_of())
    torch.manual_seed(7)
    drawn = parl.proposals(obs, 6)
    best = parl.critic.ranked(obs["state"], drawn).argmax(1)
    torch.manual_seed(7)
    with torch.no_grad():
        action = parl.decide(obs, torch.ones(6, dtype=torch.bool), (), Mode.EVAL).action
    assert torch.equal(action, drawn[torch.arange(6), best, 0])


def test_with_neither_step_it_acts_as_the_policy():
    parl = make(PARL, critic=CRITIC, improve={"samples": 1, "keep": 1, "steps": 0})
    obs, first = seen(batch_of()), torch.ones(6, dtype=torch.bool)
    torch.manual_seed(7)
    drawn = parl.proposals(obs, 1)
    torch.manual_seed(7)
    assert torch.equal(parl.decide(obs, first, (), Mode.EVAL).action, drawn[:, 0, 0])


def test_the_critics_optimizer_begins_anew_online_and_only_then():
    parl = make(PARL, **SMALL)
    steps = lambda: float(parl.critic_opt.inner.steps[0])  # noqa: E731
    counts = []
    for phase in (OFFLINE, OFFLINE, ONLINE, ONLINE, ONLINE):
        parl.update_critic(batch_of(), phase=phase)
        counts.append(steps())
    assert counts == [1, 2, 1, 2, 3]
    kept = make(PARL, **SMALL, restart_critic=False)
    for phase in (OFFLINE, ONLINE):
        kept.update_critic(batch_of(), phase=phase)
    assert float(kept.critic_opt.inner.steps[0]) == 2


def test_that_it_was_offline_survives_a_restart():
    parl, again = make(PARL, **SMALL), make(PARL, **SMALL)
    parl.update_critic(batch_of(), phase=OFFLINE)
    again.load_state_dict(parl.state_dict())
    again.update_critic(batch_of(), phase=ONLINE)
    assert float(again.critic_opt.inner.steps[0]) == 1


def test_equal_actions_pushed_down_count_as_often_as_they_stand_for():
    parl = make(PARL, **SMALL, conservative={"actions": 7})
    t = parl.transitions(batch_of())
    uniform, here, ahead = parl.pushed_down(t, t.action, t.action)
    assert uniform.action.shape == (6, 7, 1, 2)
    assert here.action.shape == ahead.action.shape == (6, 1, 1, 2)
    torch.testing.assert_close(ahead.log_density.exp(), torch.full((6, 1), 1 / 7))
    assert here.bounded
    assert not uniform.bounded


def bandit(num: int = 128) -> Batch:
    """Return one-step episodes in which the best action is half the first entry of the state."""
    obs = torch.rand(num, 2, 3) * 2 - 1
    action = torch.rand(num, 2, 2) * 2 - 1
    distance = (action[:, 0] - 0.5 * obs[:, 0, :1]).square().sum(-1)
    reward = torch.stack([torch.zeros(num), -distance], 1)
    end = torch.tensor([False, True]).expand(num, 2)
    returns = {"mc_return": torch.stack([-distance, torch.zeros(num)], 1)}
    return Batch({"state": obs}, action, reward, ~end, end, end, returns)


@pytest.mark.parametrize("kind", ["gaussian", pytest.param("diffusion", marks=pytest.mark.slow)])
def test_a_policy_comes_to_what_its_critics_value(kind):
    parl = make(
        PARL, policy=POLICIES[kind], critic={**CRITIC, "num_critics": 2},
        improve={"samples": 16, "keep": 4, "steps": 3, "step_size": 0.1, "temperature": 0.1},
        optimizer={"lr": 1e-2}, clone_optimizer={"lr": 3e-3}, policy_optimizer={"lr": 3e-3},
        policy_tau=0.1,
    )  # fmt: skip
    torch.manual_seed(0)
    for _ in range(40):
        parl.clone_policy(bandit(), phase=OFFLINE)
    for _ in range(90):
        parl.update_critic(bandit(), phase=OFFLINE)

    def loss_of(mode: Mode) -> float:
        batch = bandit(500)
        with torch.no_grad():
            action = parl.decide(seen(batch), torch.ones(500, dtype=torch.bool), (), mode).action
        return float((action - 0.5 * batch.obs["state"][:, 0, :1]).square().sum(-1).mean())

    def own() -> float:
        batch = bandit(500)
        drawn = parl.policy.sample(as_window(seen(batch)))[:, 0, 0].detach()
        return float((drawn - 0.5 * batch.obs["state"][:, 0, :1]).square().sum(-1).mean())

    imitating = own()
    assert loss_of(Mode.EVAL) < 0.5 * imitating, "ranked and climbed samples beat the policy"
    phase = Phase("online", ("collect", "update_policy"))
    for _ in range(80):
        parl.update_policy(bandit(), phase=phase)
    assert own() < 0.5 * imitating, "it has learnt what its critics made of its samples"
