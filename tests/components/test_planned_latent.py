"""TD-MPC2's latents for MPC: what they learn, what a plan is worth, and where a window ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dreamlab.components.world_models.planned_latent import PlannedLatent
from dreamlab.core.config import load
from dreamlab.core.errors import ConfigError
from dreamlab.core.types import ArraySpec, Batch, Mode, Spec, TaskSpec
from dreamlab.export import policy_files
from dreamlab.export.policy_export import Actions, Exported, Normalize
from dreamlab.workflows.mpc import MPC, MPCConfig
from tests.contract.test_workflows import make as make_run
from tests.helpers import metrics, open_loop
from tests.workflows.test_mpc import PHASE, PLANNER, walk

ACTION = ArraySpec((1,), low=-1.0, high=1.0)
SPEC = Spec({"state": ArraySpec((2,))}, ACTION, episode_length=100)
PAIR = ArraySpec((2,), low=-1.0, high=1.0)
TASKS = Spec(
    {"state": ArraySpec((2,)), "task": ArraySpec((), "int64", classes=2)},
    PAIR,
    tasks=(TaskSpec("x", 1, 100), TaskSpec("y", 2, 1000)),
)
SMALL = {
    "_target_": "tdmpc2_latent", "latent_dim": 16, "enc_dim": 32, "mlp_dim": 32, "task_dim": 4,
    "bins": {"num": 41, "low": -4.0, "high": 4.0},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def make(spec: Spec = SPEC, model=None, **options) -> MPC:
    torch.manual_seed(0)
    node = {"model": {**SMALL, **(model or {})}, "planner": PLANNER, **options}
    return MPC(load(MPCConfig, node, "workflow"), spec)


def model_of(**options) -> PlannedLatent:
    """Return a model without zeros that would hide an error."""
    made = make(model=options).model
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return made


def test_it_learns_and_plans_in_what_it_learnt():
    workflow = make(optimizer={"lr": 3e-3})
    first = workflow.update_world_model(walk(64, 4), phase=PHASE)
    for _ in range(300):
        last = workflow.update_world_model(walk(64, 4), phase=PHASE)
    assert float(last["loss/reward"]) < 0.6 * float(first["loss/reward"])
    assert float(last["loss/value"]) < float(first["loss/value"])
    obs = {"state": torch.tensor([[0.6, 1.0], [-0.6, 1.0]])}
    with torch.no_grad():
        start, begin = torch.ones(2, dtype=torch.bool), workflow.initial_state(2)
        action = workflow.decide(obs, start, begin, Mode.EVAL).action
    assert action[0].item() < -0.5
    assert action[1].item() > 0.5


def test_a_plan_is_worth_its_rewards_and_what_follows_them():
    workflow = make()
    cont = torch.tensor([[0.9, 0.5, 1.0, 0.8]])
    asked = []

    def value(latent):
        asked.append(latent.z)
        return torch.tensor([10.0])

    workflow.model.predict_reward = lambda latent: {"reward": torch.ones(1, 4), "cont": cont}
    workflow.model.predict_value = value
    plans = torch.rand(1, 1, 4, 1)
    start = workflow.model.initial(1, "cpu")
    score = workflow.score_plans(start, plans)
    assert score.item() == pytest.approx(1 + 0.9 + 0.45 + 0.45 + 0.36 * 10)
    steps = iter([*plans[0].unbind(1), plans[0, :, -1]])
    imagined, _ = workflow.model.imagine(start, lambda _: next(steps), 4)
    assert torch.equal(asked[0], imagined.z[:, -1])


@pytest.mark.parametrize("name", ["ensemble", "planet_rssm"])
def test_models_without_a_value_have_none(name):
    workflow = MPC(load(MPCConfig, {"model": name, "planner": PLANNER}, "workflow"), SPEC)
    assert workflow.model.predict_value(workflow.model.initial(2, "cpu")) is None
    assert workflow.expected_return({"state": torch.zeros(2, 2)}) is None


def test_targets_bootstrap_from_the_slow_value_and_stop_at_a_termination():
    model, batch = model_of(gamma=0.9), walk(2, 3)
    batch.is_terminal[1, 1] = True
    with torch.no_grad():
        for p in model.target.parameters():
            p.zero_()
        logits = 30 * torch.nn.functional.one_hot(torch.tensor(25), 41).float()
        model.target.out.bias.copy_(logits)
    slow = model.decode(logits).item()
    encoded, target = model.targets(batch, model.task_of(batch.obs), None)
    expected = batch.reward[:, 1:] + 0.9 * slow * torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    torch.testing.assert_close(target, expected)
    later = {k: v[:, 1:] for k, v in batch.obs.items()}
    assert torch.equal(encoded, model.encode(later, torch.zeros(2, 2, dtype=torch.int64)))
    assert not encoded.requires_grad


def test_losses_are_those_of_td_mpc2_where_windows_stay_inside():
    model, batch = model_of(rho=0.5, gamma=0.9, episodic=True), walk(3, 3)
    bins = model.config.bins
    task = torch.zeros(3, dtype=torch.int64)
    z = model.encode({"state": batch.obs["state"][:, 0]}, task)
    encoded, target = model.targets(batch, model.task_of(batch.obs), None)
    wanted = dict.fromkeys(("consistency", "reward", "value", "termination"), 0.0)
    for i in range(2):
        action = batch.action[:, i]
        reward = bins.loss(model.reward_logits(z, action, task), batch.reward[:, i + 1])
        value = bins.loss(model.value(z), target[:, i])
        z = model.next(z, action, task)
        ends = torch.nn.functional.softplus(model.ends(z, task))  # none ended
        wanted["consistency"] += 20 * 0.5**i * (z - encoded[:, i]).square().mean() / 2
        wanted["reward"] += 0.1 * 0.5**i * reward.mean() / 2
        wanted["value"] += 0.1 * 0.5**i * value.mean() / 2
        wanted["termination"] += ends.mean() / 2
    found = model.losses(batch)
    assert found.keys() == wanted.keys()
    for name, loss in wanted.items():
        torch.testing.assert_close(found[name], loss)


def test_nothing_is_learnt_beyond_the_end_of_the_first_episode():
    model, batch = model_of(episodic=True), walk(4, 5)
    batch.is_first[:, 3] = True
    before = model.losses(batch)
    other = batch.map(lambda x: x.clone())
    other.obs["state"][:, 3:] = 7.0
    other.reward[:, 3:] = 7.0
    other.action[:, 2:] = 0.5  # the last action of an episode is not taken
    other.is_terminal[:, 3:] = True
    for name, loss in model.losses(other).items():
        torch.testing.assert_close(loss, before[name])
    short = Batch({"state": batch.obs["state"][:, :3]}, *(getattr(batch, k)[:, :3] for k in (
        "action", "reward", "is_first", "is_last", "is_terminal")))  # fmt: skip
    assert model.losses(short).keys() == before.keys()
    torch.testing.assert_close(model.losses(short)["value"], before["value"])
    seams = walk(6, 2, seam=True)
    assert not any(loss.item() for loss in model.losses(seams).values())


def test_the_slow_value_follows_the_last_update_and_is_never_trained():
    workflow = make(model={"tau": 0.5})
    model = workflow.model
    assert not any(p.requires_grad for p in model.target.parameters())
    workflow.update_world_model(walk(8, 3), phase=PHASE)
    slow, fast = model.target.out.bias.clone(), model.value.out.bias.detach().clone()
    assert not slow.any()  # it equalled the value when the update began
    assert fast.any()
    workflow.update_world_model(walk(8, 3), phase=PHASE)
    torch.testing.assert_close(model.target.out.bias, fast / 2)


def test_a_value_learns_the_return_of_what_was_done():
    workflow = make(model={"gamma": 0.5, "tau": 0.1}, optimizer={"lr": 3e-3})
    for _ in range(300):
        batch = walk(32, 3)
        workflow.update_world_model(replace(batch, reward=torch.ones(32, 3)), phase=PHASE)
    value, discount = workflow.expected_return({"state": batch.obs["state"][:, 0]})
    assert value.mean().item() == pytest.approx(1 / (1 - 0.5), rel=0.1)
    assert discount.tolist() == [0.5] * 32


def test_a_task_has_its_own_discount_and_no_actions_of_others():
    workflow = make(TASKS)
    obs = {"state": torch.randn(2, 2), "task": torch.tensor([0, 1])}
    first, state = torch.ones(2, dtype=torch.bool), workflow.initial_state(2)
    latent = workflow.model.after(obs, first, state, Mode.EVAL)
    assert workflow.model.discount_of(latent).tolist() == pytest.approx([0.95, 0.995])
    with torch.no_grad():
        for p in workflow.model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    plans = torch.rand(2, 1, 4, 2)
    other = plans.clone()
    other[..., 1] = -1.0
    a, b = workflow.score_plans(latent, plans), workflow.score_plans(latent, other)
    assert a[0] == b[0]  # the first task has one action entry
    assert a[1] != b[1]
    decision = workflow.decide(obs, first, state, Mode.TRAIN)
    assert decision.state["task"].tolist() == [0, 1]


def test_images_are_shifted_in_training_but_not_in_fixed_decisions():
    spec = Spec({"image": ArraySpec((64, 64, 3), "uint8")}, ACTION, episode_length=100)
    model = make(spec, {"latent_dim": 128, "channels": 8}).model
    obs = {"image": torch.randint(0, 256, (2, 64, 64, 3), dtype=torch.uint8)}
    first, state = torch.ones(2, dtype=torch.bool), model.before(2, "cpu")
    fixed, again, other = (model.after(obs, first, state, m).z for m in (
        Mode.FIXED, Mode.FIXED, Mode.TRAIN))  # fmt: skip
    assert torch.equal(fixed, again)
    assert not torch.equal(fixed, other)
    images = {"image": torch.randint(0, 256, (2, 3, 64, 64, 3), dtype=torch.uint8)}
    losses = model.losses(replace(walk(2, 3), obs=images))
    assert all(torch.isfinite(x) for x in losses.values())


def test_what_cannot_be_is_refused_with_its_place():
    with pytest.raises(ConfigError, match=r"workflow\.model\.gamma.*env\.time_limit"):
        make(replace(SPEC, episode_length=None))
    image = Spec({"image": ArraySpec((64, 64, 3), "uint8")}, ACTION, episode_length=100)
    with pytest.raises(ConfigError, match=r"workflow\.model\.latent_dim.*512"):
        make(image)
    with pytest.raises(ConfigError, match=r"buffers\.replay\.length=1"):
        make().model.losses(walk(4, 1))


def test_a_run_reports_its_dreams_and_its_values(tmp_path):
    options = ("tiny=true", "device=cpu", "training.total_frames=300", "log.every_frames=100",
               "eval.episodes=1", "eval.max_steps=5", "eval.video=false")  # fmt: skip
    open_loop(tmp_path, "+experiment=mpc_tdmpc2_pendulum", *options).run()
    last = metrics(tmp_path)[-1]
    for name in ("report/openloop/reward_h1", "report/exploit_gap", "eval/overestimation"):
        assert torch.isfinite(torch.tensor(last[name])), name


def test_its_plans_are_exported(tmp_path):
    loop = make_run(tmp_path / "run", "mpc_tdmpc2_pendulum")
    workflow, envs = loop.workflow, loop.parts.collector.envs
    policy = Exported(workflow, Normalize(None, {}), Actions())
    steps = policy_files.record(policy, workflow, envs, ticks=4)
    with torch.random.fork_rng(devices=[]):
        run = policy_files.write_policy(policy, tmp_path / "policy.pt", "torchscript")
    assert policy_files.compare(policy, run, workflow, steps, lambda action: action).worst < 1e-4
