"""What is reported of an episode: success, scores and returns as the task itself counts them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dreamlab.build import env_config
from dreamlab.config import compose
from dreamlab.core.types import Decision, Mode, Obs, Spec, Tree
from dreamlab.core.workflow import Workflow
from dreamlab.engine.evaluator import EvalConfig, EvalResult, Evaluator
from dreamlab.envs.vector import EnvConfig, Envs
from tests.helpers import metrics, open_loop


class Dice(Workflow[None]):
    """Acts at random, from the seed of the evaluation."""

    def build(self, spec: Spec) -> None:
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def initial_state(self, num_envs: int) -> Tree:
        return ()

    def decide(self, obs: Obs, is_first: torch.Tensor, state: Tree, mode: Mode) -> Decision:
        num = len(is_first)
        classes = self.spec.action.classes
        if classes is None:
            return Decision(torch.rand(num, *self.spec.action.shape) * 2 - 1, state, {})
        assert isinstance(classes, int)
        return Decision(torch.randint(classes, (num,)), state, {})


class Reaches(Dice):
    """Goes for the goal, as the policy that comes with the task does."""

    def decide(self, obs: Obs, is_first: torch.Tensor, state: Tree, mode: Mode) -> Decision:
        from metaworld.policies import SawyerReachV3Policy

        policy = SawyerReachV3Policy()
        actions = np.stack([policy.get_action(o) for o in obs["state"].double().numpy()])
        return Decision(torch.from_numpy(actions.astype(np.float32)), state, {})


def evaluated(env: EnvConfig, workflow: type[Dice], **options: Any) -> EvalResult:
    def make(num: int, seed: int) -> Envs:
        return Envs(replace(env, num_envs=num), seed)

    probe = make(1, 0)
    agent = workflow(None, probe.spec)
    probe.close()
    return Evaluator(EvalConfig(**options), make).run(agent, None)


@pytest.mark.env("metaworld")
@pytest.mark.parametrize(("workflow", "success"), [(Reaches, 1.0), (Dice, 0.0)])
def test_metaworld_reports_success_under_its_own_preset(workflow, success):
    env = env_config(compose(["env=metaworld"]))
    result = evaluated(env, workflow, episodes=2, num_envs=2)
    assert result.lengths == [100, 100]
    assert result.metrics()["eval/success"] == success


@pytest.mark.env("metaworld")
def test_a_run_on_metaworld_records_success(tmp_path):
    options = (
        "+experiment=ppo_cartpole", "env=metaworld", "env.id=reach-v3", "tiny=true",
        "env.num_envs=1", "training.total_frames=420", "eval.episodes=1", "eval.video=false",
        "log.every_frames=100", "device=cpu",
    )  # fmt: skip
    open_loop(tmp_path / "r", *options).run()
    records = metrics(tmp_path / "r")
    assert any("episode/success" in r for r in records)
    assert "eval/success" in records[-1]


REPORTING = [
    pytest.param("crafter", "reward", "log/achievements", marks=pytest.mark.env("crafter")),
    pytest.param("bsuite", "catch/0", "log/bsuite_total_regret", marks=pytest.mark.env("bsuite")),
    pytest.param(
        "minigrid", "MiniGrid-DoorKey-6x6-v0", "success", marks=pytest.mark.env("minigrid")
    ),
    pytest.param("procgen", "coinrun", "success", marks=pytest.mark.env("procgen")),
    pytest.param("loconav", "ant_maze_s", "log/coverage", marks=pytest.mark.env("dmc")),
    pytest.param("metaworld", "reach-v3", "success", marks=pytest.mark.env("metaworld")),
]


@pytest.mark.parametrize(("suite", "task", "name"), REPORTING)
def test_a_time_limit_of_ours_does_not_hide_what_a_suite_reports(suite, task, name):
    result = evaluated(EnvConfig(task, suite, time_limit=3), Dice, episodes=1)
    assert result.lengths == [3]
    assert name in result.finals[0]


@pytest.mark.env("crafter")
def test_an_evaluation_on_crafter_has_its_score():
    env = EnvConfig("reward", "crafter", {"length": 60})
    result = evaluated(env, Dice, episodes=6, num_envs=3)
    assert len(result.finals) == 6
    names = [k for k in result.finals[0] if k.startswith("log/achievement_")]
    assert len(names) == 22
    rates = [100 * np.mean([f[k] for f in result.finals]) for k in names]
    assert max(rates) > 0
    told = result.metrics()
    assert told["eval/crafter_score"] == pytest.approx(np.exp(np.mean(np.log1p(rates))) - 1)
    assert told["eval/log/achievement_collect_sapling"] == pytest.approx(
        np.mean([f["log/achievement_collect_sapling"] for f in result.finals])
    )


def test_other_suites_have_no_score():
    told = evaluated(EnvConfig("counting", "dummy"), Dice, episodes=1).metrics()
    assert not any("score" in k for k in told)


@pytest.mark.env("atari")
@pytest.mark.parametrize(("vector", "repeat"), [("sync", 1), ("sync", 2), ("async", 1)])
def test_clipped_rewards_train_and_the_games_own_are_reported(vector, repeat):
    def play(clip: bool) -> tuple[Any, Any]:
        options = {"clip_reward": clip, "noops": 0}
        env = EnvConfig("carnival", "atari", options, 2, vector, repeat=repeat)
        envs = Envs(replace(env, time_limit=40), seed=0)
        envs.vec.action_space.seed(0)
        envs.reset()
        given, raw = [], []
        for _ in range(90):
            step = envs.step(np.asarray(envs.vec.action_space.sample()))
            given.append(step.reward.copy())
            raw.append(envs.raw_reward.copy())
        finals = envs.pop_finals()
        envs.close()
        assert finals == [{}] * 4  # the raw reward is no report of an episode
        return np.array(given), np.array(raw)

    clipped, counted = play(True)
    plain, own = play(False)
    assert own.max() >= 10
    assert (counted == own).all()
    assert (plain == own).all()
    if repeat == 1:
        assert (clipped == np.sign(own)).all()
    else:  # each of the two frames is clipped by itself
        assert set(np.unique(clipped)) == {0, 1}


@pytest.mark.env("atari")
def test_an_evaluation_with_clipped_rewards_has_the_games_own_return():
    env = EnvConfig("carnival", "atari", {"clip_reward": True}, time_limit=60)
    plain = replace(env, options={"clip_reward": False})
    clipped, own = (evaluated(e, Dice, episodes=2, num_envs=2) for e in (env, plain))
    assert clipped.returns == own.returns
    assert min(own.returns) >= 10
