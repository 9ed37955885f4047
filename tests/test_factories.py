"""Agents, policies and critics by name: all kinds, and what is said of those that cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dreamlab.core.errors import ConfigError
from dreamlab.factories import HOOKS, create_agent, create_policy_model, create_q_critic
from tests.workflows.offline import POLICIES, SPEC, batch_of, flat

SMALL = {"hidden": (8, 8)}
CRITIC = {"kind": "ensemble", "num_critics": 3, **SMALL}
EMA = {"_target_": "adam", "lr": 1e-2, "ema": 0.9}


def agent(kind: str, **options):
    torch.manual_seed(0)
    name = "diffusion" if kind == "diffusion_rl" else "gaussian"
    critic = {} if kind == "imitation" else {"critic": CRITIC}
    return create_agent(kind, SPEC, POLICIES[name], **critic, **options)


@pytest.mark.parametrize("kind", HOOKS)
def test_every_kind_of_agent_acts_learns_and_is_carried_on(kind, tmp_path: Path):
    made, obs = agent(kind), {"state": torch.randn(4, 3)}
    before = flat(made.workflow.policy)
    for i in range(2):
        metrics = made.update(batch_of(seed=i))
    assert all(m.isfinite() for m in metrics.values())
    assert not torch.equal(flat(made.workflow.policy), before), "what it learnt must stay"
    torch.manual_seed(1)
    action = made.act(obs, evaluation=True)
    assert action.shape == (4, 2)
    made.save(tmp_path / "agent.pt")
    again = agent(kind)
    again.load(tmp_path / "agent.pt")
    torch.manual_seed(1)
    assert torch.equal(again.act(obs, evaluation=True), action)


@pytest.mark.parametrize("kind", ["imitation", "offline_rl"])
def test_evaluation_makes_a_difference(kind):
    made, obs = agent(kind), {"state": torch.randn(4, 3)}
    assert torch.equal(made.act(obs, evaluation=True), made.act(obs, evaluation=True))
    assert not torch.equal(made.act(obs), made.act(obs))


@pytest.mark.parametrize("kind", ["imitation", "offline_rl", "diffusion_rl"])
def test_evaluation_uses_averaged_weights_and_exploration_does_not(kind):
    name = "optimizer" if kind == "imitation" else "policy_optimizer"
    made, obs = agent(kind, **{name: EMA}), {"state": torch.randn(4, 3)}
    for i in range(3):
        made.update(batch_of(seed=i))
    raw, first = flat(made.workflow.policy), torch.ones(4, dtype=torch.bool)
    opt = made.workflow.optimizers["policy"]
    average = torch.cat([x.flatten() for x in opt.average])
    assert not torch.allclose(average, raw)

    def act(evaluation: bool) -> torch.Tensor:
        torch.manual_seed(5)
        return made.act(obs, first, evaluation)

    evaluated, explored = act(True), act(False)
    assert torch.equal(flat(made.workflow.policy), raw), "learning goes on with its own weights"
    opt.adopt_average()
    made.workflow.optimizers.clear()
    assert torch.equal(act(True), evaluated)
    assert not torch.equal(act(False), explored)


@pytest.mark.parametrize("kind", POLICIES)
def test_every_kind_of_policy_is_made(kind):
    options = {k: v for k, v in POLICIES[kind].items() if k != "_target_"}
    policy = create_policy_model(kind, SPEC, **options)
    assert policy.sample({"state": torch.randn(5, 1, 3)}, 2).shape == (5, 2, 1, 2)


@pytest.mark.parametrize(
    ("kind", "members", "outputs"),
    [("standard", 1, 1), ("ensemble", 5, 1), ("distributional", 2, 101)],
)
def test_every_kind_of_critic_is_made(kind, members, outputs):
    critic = create_q_critic(kind, SPEC, **SMALL)
    assert critic(torch.randn(4, 3), torch.rand(4, 1, 2)).shape == (members, 4, outputs)
    c51 = create_q_critic("distributional", SPEC, readout={"_target_": "c51", "atoms": 7}, **SMALL)
    assert c51.readout.outputs == 7


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        (lambda: create_agent("offline_rl", SPEC), "critic is missing"),
        (lambda: create_agent("actor_critic", SPEC), "critic is missing"),
        (lambda: create_agent("imitation", SPEC, critic=CRITIC), "imitation has no critic"),
        (lambda: create_agent("offline", SPEC), "'offline'. Did you mean 'offline_rl'?"),
        (lambda: create_agent("offline_rl", SPEC, critic={"kind": "ensembl"}), "'ensemble'"),
        (lambda: create_policy_model("diffuson", SPEC), "'diffusion'"),
        (lambda: create_q_critic("standard", SPEC, hiden=(3,)), "hidden"),
        (lambda: create_agent("diffusion_rl", SPEC, POLICIES["gaussian"], CRITIC), "gaussian"),
    ],
)
def test_what_cannot_be_made_is_refused_by_name(call, fault):
    with pytest.raises(ConfigError, match=fault.replace("?", r"\?").replace(".", r"\.")):
        call()


def test_a_missing_critic_is_a_value_error_too():
    with pytest.raises(ValueError, match="critic is missing: add one"):
        create_agent("diffusion_rl", SPEC)
