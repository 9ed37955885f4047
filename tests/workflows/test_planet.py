"""PlaNet: the planner, the world model's losses, and what acting does."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dreamlab.components.world_models.rssm import Latent
from dreamlab.components.world_models.rssm_planet import Normals, ResetBeforeCell
from dreamlab.core.config import load
from dreamlab.core.errors import ConfigError
from dreamlab.core.phase import Phase
from dreamlab.core.types import ArraySpec, Batch, Mode, Spec, Step
from dreamlab.nn.image_planet import centred
from dreamlab.ops.planning import CEM
from dreamlab.workflows.planet import PlaNet, PlaNetConfig

ACTION = ArraySpec((2,), low=-1.0, high=1.0)
VECTOR = Spec({"state": ArraySpec((3,))}, ACTION)
MIXED = Spec(
    {
        "image": ArraySpec((64, 64, 3), "uint8"),
        "position": ArraySpec((2,)),
        "height": ArraySpec(()),
        "kind": ArraySpec((), "int64", classes=3),
    },
    ACTION,
)
PHASE = Phase("learn", ("collect", "update_world_model"), duration_steps=1)
SMALL = load(
    PlaNetConfig,
    {
        "rssm": {"deter": 12, "hidden": 10, "stoch": 5},
        "codec": {"depth": 2, "units": 8},
        "reward": {"units": 8},
        "planner": {"horizon": 4, "iterations": 2, "samples": 8, "elites": 4},
    },
    "",
)


def agent(spec: Spec = VECTOR, **options) -> PlaNet:
    torch.manual_seed(0)
    return PlaNet(load(PlaNetConfig, options, "", SMALL), spec)


def batch_of(spec: Spec, b: int = 2, t: int = 6) -> Batch:
    torch.manual_seed(1)
    obs = {}
    for name, s in spec.obs.items():
        if s.is_image:
            obs[name] = torch.randint(0, 256, (b, t, *s.shape), dtype=torch.uint8)
        elif isinstance(s.classes, int):
            obs[name] = torch.randint(0, s.classes, (b, t))
        else:
            obs[name] = torch.randn(b, t, *s.shape)
    flags = torch.zeros(b, t, dtype=torch.bool)
    first = flags.clone()
    first[:, 0] = True
    action = torch.rand(b, t, 2) * 2 - 1
    return Batch(obs, action, torch.randn(b, t), first, flags, flags.clone())


# -- planning -------------------------------------------------------------------------------------


@pytest.mark.parametrize("planner", ["cem", "mppi", "cma_es", "random_shooting"])
def test_any_planner_finds_the_actions_that_the_model_rewards(planner, monkeypatch):
    sizes = {"horizon": 3, "iterations": 6, "samples": 200, "elites": 20}
    planet = agent(planner={"_target_": planner, **sizes})
    assert not isinstance(planet.planner, CEM) or planner == "cem"
    goal = torch.tensor([0.4, -0.6])

    def score(latent, plans, mode):
        return -(plans - goal).square().sum((-1, -2))

    monkeypatch.setattr(planet, "score_plans", score)
    plan = planet.plan(planet.unpack_state(planet.initial_state(2)))
    assert plan.shape == (2, 3, 2)
    torch.testing.assert_close(plan.mean((0, 1)), goal, atol=0.3, rtol=0)


def test_a_planner_that_does_not_exist_is_named_with_those_that_do():
    with pytest.raises(ConfigError, match="planner: there is no part 'cme'") as error:
        agent(planner="cme")
    assert "known: cem, cma_es, mppi, random_shooting" in str(error.value)


def test_a_plan_promises_the_rewards_of_the_states_it_leads_to(monkeypatch):
    planet = agent()
    rssm = planet.model.rssm
    monkeypatch.setattr(rssm, "noise", lambda *shape, **_: torch.zeros(*shape, 5))
    start, plans = Latent(torch.randn(2, 12), torch.randn(2, 5)), torch.rand(2, 3, 4, 2)
    promised = planet.score_plans(start, plans)
    for n in range(2):
        for k in range(3):
            steps = iter([*plans[n, k][:, None], plans[n, k, :1]])
            one = Latent(*(x[n : n + 1] for x in start))
            latent, _ = planet.imagine(4, one, lambda _, steps=steps: next(steps))
            total = planet.model.reward(latent.feature)[0, 1:].sum()
            assert promised[n, k].item() == pytest.approx(total.item(), abs=1e-5)


# -- acting ---------------------------------------------------------------------------------------


def step_of(planet: PlaNet, n: int = 3) -> tuple[Step, dict]:
    flags = np.zeros(n, bool)
    obs = {"state": np.zeros((n, 3), np.float32)}
    return Step(obs, np.zeros(n, np.float32), flags, flags, flags), planet.initial_state(n)


def test_noise_is_added_in_training_only(monkeypatch):
    planet = agent()
    monkeypatch.setattr(
        planet, "plan", lambda latent, mode: torch.full((len(latent.deter), 4, 2), 0.5)
    )
    step, state = step_of(planet, 500)
    assert (planet.act(step, state, Mode.EVAL).action == 0.5).all()
    action = planet.act(step, state, Mode.TRAIN).action
    assert action.max() <= 1
    assert (0.5 - action[action < 0.5]).square().mean().sqrt().item() == pytest.approx(0.3, rel=0.1)


def test_environments_are_planned_for_together():
    planet = agent()
    decision = planet.act(*step_of(planet), Mode.TRAIN)
    assert decision.action.shape == (3, 2)
    assert set(decision.state) == {"deter", "stoch", "action"}


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (ArraySpec((), "int64", classes=3), "discrete.*DreamerV2"),
        (ArraySpec((2,), low=-2.0, high=2.0), "scale_actions"),
    ],
)
def test_other_actions_are_refused_with_advice(action, words):
    with pytest.raises(ConfigError, match=words):
        agent(Spec(VECTOR.obs, action))


# -- the world model ------------------------------------------------------------------------------


def test_divergence_of_normals_by_hand():
    p = Normals(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 2.0]))
    q = Normals(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 1.0]))
    # first entry: half the squared distance; second: (4 - 1) / 2 - ln 2
    assert p.kl(q).item() == pytest.approx(0.5 + 1.5 - math.log(2))


def test_every_step_has_its_own_free_nats():
    planet = agent(free_nats=3.0, rssm={"stoch": 1})
    raw = math.log(math.expm1(0.9))  # softplus(raw) + 0.1 = 1
    post = torch.tensor([[[4.0, raw], [2.0, raw]]])
    prior = torch.tensor([[[0.0, raw], [0.0, raw]]])
    torch.testing.assert_close(planet.free_kl(post, prior), torch.tensor([[5.0, 0.0]]))


def test_few_bits_are_dithered():
    torch.manual_seed(0)
    image = torch.full((1, 40, 40, 1), 100, dtype=torch.uint8)
    seen = centred(image, bits=5)
    low = 12 / 32 - 0.5  # 100 is in the 13th of 32 bins
    assert low <= seen.min() < low + 0.005
    assert low + 1 / 32 - 0.005 < seen.max() <= low + 1 / 32
    assert centred(image)[0, 0, 0].item() == pytest.approx(100 / 255 - 0.5)


def test_the_memory_is_gated_before_its_product():
    torch.manual_seed(0)
    cell = ResetBeforeCell(3, 4)
    x, h = torch.randn(2, 3), torch.randn(2, 4)
    gates = torch.sigmoid(torch.cat([x, h], -1) @ cell.gates.weight.T + cell.gates.bias)
    reset, keep = gates[:, :4], gates[:, 4:]
    cand = torch.tanh(torch.cat([x, reset * h], -1) @ cell.cand.weight.T + cell.cand.bias)
    torch.testing.assert_close(cell(x, h), keep * h + (1 - keep) * cand)


def test_its_gates_start_open():
    assert (agent().model.rssm.cell.gates.bias == 1).all()


def test_nothing_passes_the_start_of_an_episode():
    planet, batch = agent(), batch_of(VECTOR)
    batch.is_first[:, 3] = True
    noise = torch.randn(6, 2, 5)
    before = planet.model.follow(batch, noise).latent
    batch.obs["state"][:, :3] += 1
    batch.action[:, :3] *= -1
    after = planet.model.follow(batch, noise).latent
    assert not torch.equal(before.deter[:, 2], after.deter[:, 2])
    assert torch.equal(before.deter[:, 3:], after.deter[:, 3:])
    assert torch.equal(before.stoch[:, 3:], after.stoch[:, 3:])


def test_an_action_shows_at_the_next_step():
    planet, batch = agent(), batch_of(VECTOR)
    noise = torch.randn(6, 2, 5)
    before = planet.model.follow(batch, noise).latent.deter
    batch.action[:, 2] *= -1
    after = planet.model.follow(batch, noise).latent.deter
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.equal(before[:, 3], after[:, 3])


def test_losses_are_half_squares_summed_over_entries():
    planet, batch = agent(free_nats=0.0), batch_of(VECTOR)
    seen = planet.model.follow(batch)
    losses = planet.losses(seen, batch)
    feature = seen.latent.feature
    guess = planet.model.codec.decode(feature.flatten(0, 1))["state"].view(2, 6, 3)
    torch.testing.assert_close(
        losses["obs/state"], 0.5 * (guess - batch.obs["state"]).square().sum(-1)
    )
    error = planet.model.reward(feature) - batch.reward
    torch.testing.assert_close(losses["reward"], 0.5 * error.square())
    assert losses["kl"].shape == (2, 6)


def test_images_and_vectors_are_learnt_together():
    planet, batch = agent(MIXED, free_nats=0.0), batch_of(MIXED)
    before = {k: v.clone() for k, v in planet.named_parameters()}
    metrics = planet.update_world_model(batch, phase=PHASE)
    assert {"loss/obs/image", "loss/obs/position", "loss/obs/height", "loss/obs/kind"} <= {*metrics}
    assert all(torch.isfinite(v) for v in metrics.values())
    assert not [k for k, v in planet.named_parameters() if torch.equal(v, before[k])]


def test_observations_may_have_any_names():
    names = ("keys", "items", "pop", "type", "training", "a.b")
    obs = {name: ArraySpec((2,)) for name in names} | {"values": MIXED.obs["image"]}
    planet = agent(Spec(obs, ACTION), free_nats=0.0)
    metrics = planet.update_world_model(batch_of(planet.spec), phase=PHASE)
    assert {f"loss/obs/{name}" for name in obs} <= {*metrics}


def test_rewards_may_be_predicted_by_another_head():
    planet = agent(reward={"_target_": "two_hot", "units": 8, "layers": 1, "num_bins": 15})
    feature = torch.randn(4, 17)
    assert (planet.model.rewards(feature) == 0).all()  # as it does elsewhere, it starts at zero
    before = {k: v.clone() for k, v in planet.model.reward.named_parameters()}
    metrics = planet.update_world_model(batch_of(VECTOR), phase=PHASE)
    assert all(torch.isfinite(v) for v in metrics.values())
    assert not torch.equal(before["out.weight"], planet.model.reward.out.weight)
    assert planet.plan(planet.unpack_state(planet.initial_state(2))).shape == (2, 4, 2)


def test_the_dream_is_seen_in_the_units_of_the_observations():
    planet = agent(MIXED)
    seen = planet.view(planet.unpack_state(planet.initial_state(4)))
    assert {k: v.shape for k, v in seen["obs"].items()} == {
        "image": (4, 64, 64, 3), "position": (4, 2), "height": (4,), "kind": (4,)
    }  # fmt: skip
    assert (seen["cont"] == 1).all()


def test_images_of_another_size_are_refused_with_advice():
    with pytest.raises(ConfigError, match=r"env\.size"):
        agent(Spec({"image": ArraySpec((96, 96, 3), "uint8")}, ACTION))


def test_a_model_learns_to_predict_a_simple_world():
    planet = agent(free_nats=0.0)
    batch = batch_of(VECTOR, 8, 8)
    reward = batch.obs["state"][..., 0].clone()
    batch = Batch(batch.obs, batch.action, reward, batch.is_first, batch.is_last, batch.is_terminal)
    losses = [float(planet.update_world_model(batch, phase=PHASE)["loss/reward"])]
    for _ in range(150):
        losses.append(float(planet.update_world_model(batch, phase=PHASE)["loss/reward"]))
    assert losses[-1] < 0.4 * losses[0]
