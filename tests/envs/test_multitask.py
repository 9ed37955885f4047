"""Several tasks as one environment, and an agent that learns them all."""

from __future__ import annotations

import numpy as np
import pytest

from dreamlab.core.errors import ConfigError, LabError
from dreamlab.envs.allowed import foreign
from dreamlab.envs.vector import EnvConfig, Envs, make_env, spec_of
from dreamlab.workflows.tdmpc2 import TDMPC2
from tests.envs.tasks import IDS
from tests.helpers import metrics, open_loop

CONFIG = EnvConfig(IDS, "multitask")


def test_the_spec_tells_what_each_task_takes():
    spec = spec_of(make_env(EnvConfig(IDS, "multitask", repeat=2), 0, 0))
    assert spec.obs["state"].shape == (4,)
    assert spec.obs["task"].classes == 3
    assert spec.action.shape == (2,)
    assert [(t.action_dim, t.episode_length) for t in spec.tasks] == [(1, 10), (2, 20), (1, 10)]
    assert spec.episode_length == 20


def test_observations_are_padded_and_actions_cut():
    envs, seen = Envs(EnvConfig(IDS, "multitask", num_envs=3), seed=0), set()
    step = envs.reset()
    for _ in range(90):
        tasks = step.obs["task"]
        seen |= set(tasks.tolist())
        assert not step.obs["state"][tasks != 1, 2:].any()
        before = step.obs["state"].copy()
        step = envs.step(np.full((3, 2), 0.5, np.float32))
        moved = (step.obs["state"] - before)[~step.is_first, 0]
        sign = np.where(tasks[~step.is_first] == 2, -1.0, 1.0)
        inside = np.abs(before[~step.is_first, 0]) < 1.7
        assert np.allclose((moved * sign)[inside], 0.25, atol=1e-6)
    envs.close()
    assert seen == {0, 1, 2}


def test_an_episode_is_of_the_task_that_its_seed_says():
    a, b = (make_env(CONFIG, 5, 0) for _ in range(2))
    drawn = [[int(e.reset()[0]["task"]) for _ in range(12)] for e in (a, b)]
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 3


def test_returns_are_told_task_by_task(tmp_path):
    envs = Envs(EnvConfig(IDS, "multitask"), seed=0)
    envs.reset()
    for _ in range(200):
        envs.step(np.zeros((1, 2), np.float32))
    names = {k for final in envs.pop_finals() for k in final}
    assert names == {f"log/{i}" for i in IDS.split("+")}
    envs.close()


@pytest.mark.parametrize(
    ("task", "options"),
    [("a+a", {}), ("a+", {}), ("a+b", {"suite": "imagined"}), ("a", {"suite": "multitask"})],
)
def test_what_are_not_different_tasks_is_refused(task, options):
    with pytest.raises(ConfigError, match=r"env\.id"):
        make_env(EnvConfig(task, "multitask", options), 0, 0)


def test_tasks_must_have_vectors_and_bounded_actions():
    with pytest.raises(LabError, match="CartPole"):
        make_env(EnvConfig("CartPole-v1+Pendulum-v1", "multitask"), 0, 0)


def test_a_strangers_configuration_may_not_name_several_tasks():
    assert foreign("multitask", "Pendulum-v1", {"suite": "gym"}) is not None


RUN = (
    "+experiment=tdmpc2_multitask", "env=multitask", f"env.id='{IDS}'", "env.options={suite: gym}",
    "env.repeat=1", "device=cpu", "eval.video=false", "log.terminal=off", "env.num_envs=4",
    "checkpoint.every_s=0",
)  # fmt: skip
SMALL = (
    "workflow.size=null", "workflow.enc_dim=64", "workflow.mlp_dim=64", "workflow.latent_dim=32",
    "workflow.task_dim=8", "workflow.num_q=2", "workflow.num_pi_plans=8",
    "workflow.planner={iterations: 3, samples: 48, elites: 12}",
)  # fmt: skip


@pytest.mark.slow
def test_a_run_on_several_tasks_has_a_discount_for_each(tmp_path):
    loop = open_loop(tmp_path, *RUN, "tiny=true", "training.total_frames=400", "eval.episodes=4")
    assert loop.run() == "finished"
    agent = loop.workflow
    assert isinstance(agent, TDMPC2)
    assert agent.model.discounts.tolist() == pytest.approx([0.95, 0.95, 0.95])
    assert agent.masks.tolist() == [[1, 0], [1, 1], [1, 0]]
    last = [m for m in metrics(tmp_path) if "eval/return" in m][-1]
    assert any(k.startswith("eval/log/") for k in last)
    dream = make_env(EnvConfig(str(tmp_path), "imagined"), 0, 0)
    assert dream.observation_space["z"].shape == (16,)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_one_agent_learns_three_tasks_of_which_two_look_alike(tmp_path):
    phases = (
        "training.phases=[{name: seed, duration_steps: 1000, random_actions: true,"
        " workflow_hooks: [collect]}, {name: learn, duration_steps: 5000, train_ratio: 128,"
        " workflow_hooks: [collect, update_agent]}]"
    )
    options = ("buffers.replay.batch=64", "eval.episodes=24", "eval.every_frames=0", phases)
    loop = open_loop(tmp_path, *RUN, *SMALL, *options)
    assert loop.run() == "finished"
    last = [m for m in metrics(tmp_path) if "eval/return" in m][-1]
    scores = {k: v for k, v in last.items() if k.startswith("eval/log/")}
    assert len(scores) == 3
    for name, value in scores.items():  # standing still is worth half of it
        assert value > 0.8 * (40 if "Reach2" in name else 20), scores
