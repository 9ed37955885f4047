"""MPC: plans are scored by whichever model is named, and an ensemble learns what it is shown."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from tests.helpers import metrics, open_loop

from dreamlab.components.rewards import PendulumReward, PendulumRewardConfig
from dreamlab.components.world_models.dynamics_ensemble import (
    Cloud,
    DynamicsEnsemble,
    DynamicsEnsembleConfig,
)
from dreamlab.core.config import load
from dreamlab.core.errors import ConfigError
from dreamlab.core.phase import Phase
from dreamlab.core.types import ArraySpec, Batch, Mode, Spec
from dreamlab.workflows.mpc import MPC, MPCConfig
from dreamlab.workflows.planet import PlaNet, PlaNetConfig

SPEC = Spec({"state": ArraySpec((2,))}, ArraySpec((1,), low=-1.0, high=1.0))
SMALL = {"members": 3, "units": 16, "layers": 1, "particles": 2}
PLANNER = {"horizon": 4, "iterations": 4, "samples": 64, "elites": 8}
PHASE = Phase("test", ("update_world_model",), duration_updates=1)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def make(model=SMALL, spec: Spec = SPEC, **options) -> MPC:
    torch.manual_seed(0)
    node = {"model": model, "planner": PLANNER, **options}
    return MPC(load(MPCConfig, node, "workflow"), spec)


def walk(b: int, t: int, seam: bool = False) -> Batch:
    """Return windows of a point that an action pushes; the reward is minus its distance from 0."""
    action = torch.rand(b, t, 1) * 2 - 1
    start = torch.rand(b, 1, 1) * 2 - 1
    place = torch.cumsum(torch.cat([start, 0.3 * action[:, :-1]], 1), 1)
    obs = torch.cat([place, torch.ones_like(place)], -1)
    first = torch.zeros(b, t, dtype=torch.bool)
    first[:, 0] = True
    if seam:
        first[:, 1::2] = True
    no = torch.zeros_like(first)
    return Batch({"state": obs}, action, -place[..., 0].abs(), first, no, no)


def learn(workflow: MPC, updates: int) -> None:
    for _ in range(updates):
        found = workflow.update_world_model(walk(30, 2), phase=PHASE)
        assert torch.isfinite(found["model_loss"])


@pytest.mark.parametrize("probabilistic", [True, False])
def test_an_ensemble_learns_and_plans_in_what_it_learnt(probabilistic):
    workflow = make({**SMALL, "probabilistic": probabilistic}, optimizer={"lr": 1e-2})
    learn(workflow, 300)
    obs = {"state": torch.tensor([[0.6, 1.0], [-0.6, 1.0], [0.0, 1.0]])}
    first = torch.ones(3, dtype=torch.bool)
    with torch.no_grad():
        action = workflow.decide(obs, first, workflow.initial_state(3), Mode.EVAL).action
    assert action[0].item() < -0.5
    assert action[1].item() > 0.5
    assert abs(action[2].item()) < 0.5


@pytest.mark.parametrize("name", ["cem", "mppi", "cma_es", "random_shooting"])
def test_any_planner_searches_any_model(name):
    sizes = {"horizon": 2, "iterations": 6, "samples": 64}
    sizes |= {} if name == "random_shooting" else {"elites": 16}
    sizes |= {"temperature": 20.0} if name == "mppi" else {}
    workflow = make(planner={"_target_": name, **sizes})
    workflow.score_plans = lambda latent, plans, mode: -(plans - 0.4).square().sum((-1, -2))
    latent = workflow.model.initial(2, "cpu")
    torch.testing.assert_close(workflow.policy(latent), torch.full((2, 1), 0.4), atol=0.25, rtol=0)


def test_with_planets_model_a_plan_promises_what_it_promises_in_planet():
    torch.manual_seed(0)
    small = {"rssm": {"deter": 8, "hidden": 8, "stoch": 4}, "codec": {"units": 8}}
    planet = PlaNet(load(PlaNetConfig, {**small, "planner": PLANNER}, "workflow"), SPEC)
    workflow = make({"_target_": "planet_rssm", **small})
    workflow.model.load_state_dict(planet.model.state_dict())
    latent = planet.model.initial(3, "cpu")
    plans = torch.rand(3, 5, 4, 1) * 2 - 1
    for mode in (Mode.FIXED, Mode.EVAL):
        torch.manual_seed(1)
        ours = workflow.score_plans(latent, plans, mode)
        torch.manual_seed(1)
        torch.testing.assert_close(ours, planet.score_plans(latent, plans, mode))
    batch = walk(4, 6)
    torch.manual_seed(2)
    found = workflow.update_world_model(batch, phase=PHASE)
    torch.manual_seed(2)
    wanted = planet.update_world_model(batch, phase=PHASE)
    torch.testing.assert_close(found["model_loss"], wanted["model_loss"])


def test_rewards_after_an_end_count_less():
    workflow = make()
    cont = torch.tensor([[1.0, 0.5, 0.0, 1.0]])
    seen = {"reward": torch.ones(1, 4), "cont": cont}
    workflow.model.predict_reward = lambda latent: seen
    score = workflow.score_plans(workflow.model.initial(1, "cpu"), torch.zeros(1, 1, 4, 1))
    assert score.item() == pytest.approx(1 + 1 + 0.5)


def test_a_search_begins_with_the_rest_of_the_last_plan_unless_an_episode_does():
    begun = []
    workflow = make()
    search = workflow.planner.search

    def noted(score, mean, **options):
        begun.append(mean.clone())
        return search(score, mean, **options)

    workflow.planner.search = noted
    obs, state = {"state": torch.zeros(2, 2)}, workflow.initial_state(2)
    with torch.no_grad():
        state = workflow.decide(obs, torch.tensor([True, True]), state, Mode.EVAL).state
        workflow.decide(obs, torch.tensor([False, True]), state, Mode.EVAL)
    assert not begun[0].any()
    assert torch.equal(begun[1][0, :-1], state["plan"][0, 1:])
    assert not begun[1][1].any()


# -- the ensemble ---------------------------------------------------------------------------------


def ensemble(**options) -> DynamicsEnsemble:
    torch.manual_seed(0)
    return DynamicsEnsemble(load(DynamicsEnsembleConfig, {**SMALL, **options}, "model"), SPEC)


def test_each_particle_stays_with_its_network():
    model = ensemble(probabilistic=False)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
        last = model.net.layers[-1]
        last.bias[:, 0, 0] = torch.tensor([1.0, 2.0, 3.0])  # how far each network moves them
    start = model.initial(2, "cpu")
    after, _ = model.imagine(start, lambda z: torch.zeros(2, 1), 2)
    assert after.particles[1, 2, :, 0].tolist() == [2, 2, 4, 4, 6, 6]
    assert model.predict(Cloud(*(x[:, 2] for x in after)))["obs"]["state"][0, 0] == 4.0


def test_particles_spread_where_the_networks_say_so():
    model = ensemble()
    with torch.no_grad():
        model.net.layers[-1].bias[..., model.out_dim :] = 0.0
    start = model.initial(4, "cpu")
    spread, _ = model.imagine(start, lambda z: torch.zeros(4, 1), 3)
    still, _ = model.imagine(
        start, lambda z: torch.zeros(4, 1), 3, model.noise(3, 4, device="cpu", mode=Mode.FIXED)
    )
    assert spread.particles[:, -1].var(1).mean() > 10 * still.particles[:, -1].var(1).mean()


def test_every_network_learns_from_rows_of_its_own_and_none_from_a_seam():
    model = ensemble(probabilistic=False)
    batch = walk(6, 2)
    loss = model.losses(batch)["dynamics"]
    weight = model.net.layers[0].weight
    (grad,) = torch.autograd.grad(loss, weight)
    assert grad.abs().sum((1, 2)).min() > 0
    changed = walk(6, 2)
    changed.obs["state"][:2] += 5.0  # the rows of the first network
    same = batch.map(lambda x: x.clone())
    same.obs["state"][:2] = changed.obs["state"][:2]
    (other,) = torch.autograd.grad(model.losses(same)["dynamics"], weight)
    moved = (other - grad).abs().sum((1, 2))
    assert moved[0] > 0
    assert not moved[1:].any()
    assert model.losses(walk(6, 2, seam=True))["dynamics"].item() == 0.0


def test_scales_are_those_of_transitions_within_episodes():
    model = ensemble()
    batch = walk(50, 3)
    batch.is_first[:, 2] = True
    batch.obs["state"][:, 2] = 1e6
    model.watch(batch)
    assert model.leave.mean.abs().max() < 1
    torch.testing.assert_close(model.leave.mean[0], (0.3 * batch.action[:, 0, 0]).mean())


def test_too_small_a_batch_is_refused():
    with pytest.raises(ConfigError, match="members=3"):
        ensemble().losses(walk(2, 2))


def test_pictures_and_classes_are_refused_with_advice():
    image = Spec({"image": ArraySpec((64, 64, 3), "uint8")}, SPEC.action)
    with pytest.raises(ConfigError, match="planet_rssm"):
        make(spec=image)
    with pytest.raises(ConfigError, match="planet_rssm"):
        make(spec=Spec({"cell": ArraySpec((), "int64", 4)}, SPEC.action))
    with pytest.raises(ConfigError, match="continuous"):
        make(spec=Spec(SPEC.obs, ArraySpec((), "int64", 2)))


def test_a_given_reward_is_the_environments_own():
    env = gym.make("Pendulum-v1")
    obs, _ = env.reset(seed=0)
    given = PendulumReward(PendulumRewardConfig())
    for step in range(5):
        action = np.array([np.sin(step)], np.float32)
        after, reward, *_ = env.step(2 * action)
        told = (torch.from_numpy(x).float() for x in (obs, action, after))
        assert given.reward(*told).item() == pytest.approx(float(reward), rel=1e-4)
        obs = after


def test_a_model_with_a_given_reward_does_not_predict_it():
    spec = Spec({"state": ArraySpec((3,))}, SPEC.action)
    model = DynamicsEnsemble(
        load(DynamicsEnsembleConfig, {**SMALL, "reward": "pendulum_reward"}, "model"), spec
    )
    assert model.out_dim == 3
    start = Cloud(torch.tensor([[[-1.0, 0.0, 0.0]] * 6]), torch.zeros(1, 6))
    after, _ = model.imagine(start, lambda z: torch.zeros(1, 1), 1)
    assert after.rewards[0, 1].tolist() == pytest.approx([-(np.pi**2)] * 6)


def test_a_run_reports_its_dreams(tmp_path):
    options = ("tiny=true", "device=cpu", "training.total_frames=300", "log.every_frames=100",
               "eval.episodes=1", "eval.max_steps=5", "eval.video=false")  # fmt: skip
    open_loop(tmp_path, "+experiment=mpc_pendulum", *options).run()
    last = metrics(tmp_path)[-1]
    assert np.isfinite(last["report/openloop/state_h1"])
    assert np.isfinite(last["report/exploit_gap"])
