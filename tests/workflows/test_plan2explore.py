"""Plan2Explore: where the ensemble disagrees, who acts, and what shapes what."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dreamlab.components.exploration.ensemble import EnsembleConfig, LatentEnsemble, Magnitude
from dreamlab.components.world_models.rssm import Latent
from dreamlab.core.config import load
from dreamlab.core.errors import ConfigError
from dreamlab.core.optim import optimizer_part
from dreamlab.core.phase import Phase
from dreamlab.core.types import ArraySpec, Batch, Mode, Spec, Step
from dreamlab.ops.returns import lambda_return
from dreamlab.workflows.dreamer_v3 import DreamerV3
from dreamlab.workflows.plan2explore import Plan2Explore, Plan2ExploreConfig, TaskScales

DISCRETE = ArraySpec((), "int64", classes=3)
SEVERAL = ArraySpec((2,), "int64", classes=(3, 2))
CONTINUOUS = ArraySpec((2,), low=-1.0, high=1.0)
PHASE = Phase("explore", ("collect", "update_agent", "update_explorer"), duration_steps=1)
SMALL = EnsembleConfig(num=5, layers=1, units=32)


def agent(action: ArraySpec = DISCRETE, **options) -> Plan2Explore:
    torch.manual_seed(0)
    optimizer = Plan2ExploreConfig().optimizer.but(warmup_steps=0)
    small = {**DreamerV3.tiny, "ensemble": SMALL, "optimizer": optimizer}
    config = load(Plan2ExploreConfig, small | options, "workflow")
    return Plan2Explore(config, Spec({"state": ArraySpec((3,))}, action))


def batch_of(explorer: Plan2Explore, b: int = 4, t: int = 7) -> Batch:
    torch.manual_seed(1)
    spec = explorer.spec.action
    action = torch.rand(b, t, 2) * 2 - 1
    if spec.is_discrete:
        action = torch.randint(0, 2, (b, t, *spec.shape))
    flags = torch.zeros(b, t, dtype=torch.bool)
    first = flags.clone()
    first[:, 0] = True
    extras = explorer.compress_latent(states((b, t)))
    obs = {"state": torch.randn(b, t, 3)}
    return Batch(obs, action, torch.randn(b, t), first, flags, flags.clone(), extras)


def states(shape: tuple[int, ...]) -> Latent:
    stoch = torch.nn.functional.one_hot(torch.randint(0, 4, (*shape, 4)), 4).float().flatten(-2)
    return Latent(torch.randn(*shape, 16).tanh(), stoch)


def weights(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in module.parameters()])


# -- novelty --------------------------------------------------------------------------------------


def test_disagreement_is_the_variance_of_the_guesses(monkeypatch):
    ensemble = LatentEnsemble(EnsembleConfig(num=2, layers=1, units=4), 3, 1, 2)
    guesses = torch.tensor([[[1.0, 0.0]], [[3.0, 0.0]]])
    monkeypatch.setattr(ensemble, "forward", lambda state, action: guesses)
    got = ensemble.disagreement(torch.zeros(1, 3), torch.zeros(1, 1))
    assert got.tolist() == [1.0]  # variance 2 of the one entry, 0 of the other


def test_they_agree_where_they_have_seen_data_and_nowhere_else():
    torch.manual_seed(0)
    ensemble = LatentEnsemble(EnsembleConfig(num=5, layers=2, units=32), 4, 2, 4)
    optim = torch.optim.Adam(ensemble.parameters(), 3e-3)
    turn = torch.randn(6, 4)
    # half of the states, and there one of two actions
    seen, used = torch.rand(512, 4), torch.tensor([1.0, 0.0]).expand(512, 2)
    for _ in range(300):
        loss = ensemble.losses(seen, used, torch.tanh(torch.cat([seen, used], -1) @ turn)).mean()
        optim.zero_grad()
        loss.backward()
        optim.step()
    known = ensemble.disagreement(torch.rand(512, 4), used)
    elsewhere = ensemble.disagreement(-torch.rand(512, 4), used)
    otherwise = ensemble.disagreement(torch.rand(512, 4), used.flip(-1))
    assert elsewhere.mean() > 10 * known.mean()
    assert otherwise.mean() > 10 * known.mean()


def test_the_agent_finds_states_new_that_it_has_never_passed():
    explorer = agent(ensemble_optimizer=optimizer_part("adam", lr=3e-3, eps=1e-5, clip=100.0))
    batch = batch_of(explorer)
    latent = explorer.followed(batch)
    for _ in range(300):
        explorer.learn_ensemble(latent, batch)
    action = explorer.model.embed(batch.action[:, 1:-1])
    known = explorer.ensemble.disagreement(latent.feature[:, :-1], action)
    new = explorer.ensemble.disagreement(states((4, 5)).feature, action)
    assert new.mean() > 3 * known.mean()


def test_what_follows_the_end_of_an_episode_is_no_lesson():
    losses = []
    for stoch in (0.0, 100.0):
        explorer = agent()
        batch = batch_of(explorer, t=5)
        batch.is_first[:, 4] = True
        latent = explorer.followed(batch)
        latent.stoch[:, 3] = stoch
        losses.append(explorer.learn_ensemble(latent, batch)["ensemble_loss"].item())
    assert losses[0] == losses[1] > 0


def test_rewards_are_of_size_1_from_the_first_update_on():
    size = Magnitude(rate=0.01)
    assert size(torch.tensor([1e-4, 3e-4])).tolist() == pytest.approx([0.5, 1.5])
    for _ in range(1000):
        last = size(torch.tensor([2.0, 2.0]))
    assert last.tolist() == pytest.approx([1.0, 1.0], rel=1e-3)


# -- what shapes what -----------------------------------------------------------------------------


@pytest.mark.parametrize("action", [DISCRETE, SEVERAL, CONTINUOUS])
def test_exploring_moves_the_explorer_and_the_ensemble_but_nothing_of_the_agent(action):
    explorer = agent(action)
    parts = ("model", "actor", "critic", "slow")
    before = {k: weights(getattr(explorer, k)) for k in parts}
    actor, ensemble = weights(explorer.explorer.actor), weights(explorer.ensemble)
    metrics = explorer.update_explorer(batch_of(explorer), phase=PHASE)
    assert all(torch.isfinite(v) for v in metrics.values())
    assert metrics["disagreement"] > 0
    assert all(torch.equal(weights(getattr(explorer, k)), v) for k, v in before.items())
    assert not torch.equal(weights(explorer.explorer.actor), actor)
    assert not torch.equal(weights(explorer.ensemble), ensemble)


def test_no_gradient_of_novelty_reaches_the_world_model():
    explorer = agent()
    latent = states((4,))
    action = explorer.model.embed(torch.randint(0, 3, (4,)))
    after = explorer.model.rssm.imagine_step(
        latent, action, explorer.model.rssm.noise(4, device="cpu")
    )
    assert after.feature.requires_grad
    assert not explorer.ensemble.disagreement(after.feature, action).requires_grad
    loss = explorer.ensemble.losses(after.feature, action, after.stoch).mean()
    model = list(explorer.model.parameters())
    assert all(g is None for g in torch.autograd.grad(loss, model, allow_unused=True))


def test_the_task_shapes_neither_the_model_nor_the_explorer():
    after = []
    for scale in (1.0, -50.0):
        explorer = agent()
        batch = batch_of(explorer)
        batch = replace(batch, reward=batch.reward * scale)
        for _ in range(3):
            explorer.update_agent(batch, phase=PHASE)
            explorer.update_explorer(batch, phase=PHASE)
        after.append(explorer)
    one, two = after
    for name in ("encoder", "rssm", "decoder", "cont"):
        assert torch.equal(weights(getattr(one.model, name)), weights(getattr(two.model, name)))
    assert torch.equal(weights(one.explorer), weights(two.explorer))
    assert not torch.equal(weights(one.model.reward), weights(two.model.reward))
    assert not torch.equal(weights(one.critic), weights(two.critic))


def test_the_explorer_learns_by_dreamers_losses():
    explorer = agent(entropy=0.1, lam=0.95, scales=TaskScales())
    for name in ("actor", "critic", "slow"):
        for p in getattr(explorer, name).parameters():
            torch.nn.init.normal_(p, std=0.3)
        getattr(explorer.explorer, name).load_state_dict(getattr(explorer, name).state_dict())
    dream = explorer.dream(states((6,)))
    dream = replace(dream, reward=torch.randn_like(dream.reward))
    dream = replace(dream, ret=lambda_return(dream.reward, dream.cont, dream.value, 0.95))
    no = torch.zeros(2, 3, dtype=torch.bool)
    expected, _ = explorer.actor_critic_losses(
        dream, torch.zeros(2, 3, 32), torch.zeros(2, 3), no, no
    )
    got, _ = explorer.explorer.losses(dream.feature, dream.action, dream.reward, dream.cont)
    for name, loss in got.items():
        torch.testing.assert_close(loss.mean(1), expected[name].flatten())


# -- acting ---------------------------------------------------------------------------------------


def always(actor: torch.nn.Module, action: int) -> None:
    torch.nn.init.zeros_(actor.logits.weight)
    actor.logits.bias.data = torch.full((3,), -50.0)
    actor.logits.bias.data[action] = 50.0


def test_the_explorer_collects_and_the_tasks_policy_is_measured():
    explorer = agent()
    always(explorer.explorer.actor, 1)
    always(explorer.actor, 2)
    flags = np.zeros(4, bool)
    step = Step({"state": np.zeros((4, 3), np.float32)}, np.zeros(4), ~flags, flags, flags)
    start = explorer.initial_state(4)
    collected = explorer.act(step, start, Mode.TRAIN)
    assert collected.action.tolist() == [1] * 4
    assert collected.state["action"].tolist() == [1] * 4  # and remembered
    assert explorer.act(step, start, Mode.EVAL).action.tolist() == [2] * 4
    assert explorer.act(step, start, Mode.SAMPLE).action.tolist() == [2] * 4


def test_the_tasks_critic_does_not_learn_the_returns_of_what_the_explorer_did():
    critics = []
    for bonus in (0.0, 100.0):  # in the replay only: the dreams are the same
        explorer = agent()
        with torch.no_grad():
            explorer.critic.out.weight.normal_(generator=torch.Generator().manual_seed(0))
        batch = batch_of(explorer)
        torch.manual_seed(2)
        explorer.update_agent(replace(batch, reward=batch.reward + bonus), phase=PHASE)
        critics.append(weights(explorer.critic))
    assert torch.equal(*critics)


def test_what_cannot_work_is_refused():
    adam = optimizer_part("adam")
    with pytest.raises(ValueError, match="reinforce"):
        Plan2ExploreConfig(actor_grad="dynamics", actor_optimizer=adam, critic_optimizer=adam)
    with pytest.raises(ValueError, match="repval must be 0"):
        Plan2ExploreConfig(scales=TaskScales(repval=0.3))
    with pytest.raises(ConfigError, match=r"ensemble\.num: must be between 2 and 1000, got 1"):
        load(EnsembleConfig, {"num": 1}, "ensemble")
