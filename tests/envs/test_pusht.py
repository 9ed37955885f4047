"""PushT: observations by the names of its data sets, and the score that is published."""

from __future__ import annotations

import numpy as np
import pytest

from dreamlab.core.errors import ConfigError
from dreamlab.envs.suites import pusht
from dreamlab.envs.vector import EnvConfig, Envs
from tests.helpers import need


@pytest.fixture(autouse=True)
def installed():
    need("gym_pusht")


def onto_its_place(env) -> None:
    """Put the block where it belongs."""
    base = env.unwrapped
    base.block.angle = float(base.goal_pose[2])
    base.block.position = base.goal_pose[:2].tolist()


def test_the_score_is_the_best_coverage_and_success_ends_the_episode():
    env = pusht.make()
    env.reset(seed=3)
    far = np.array([20.0, 20.0], np.float32)
    _, reward, terminated, _, info = env.step(far)
    assert info["log/score"] == reward < 0.95
    assert (terminated, info["success"]) == (False, False)
    onto_its_place(env)
    _, reward, terminated, _, info = env.step(far)
    assert (reward, terminated, info["success"], info["log/score"]) == (1.0, True, True, 1.0)
    assert info["log/coverage"] > 0.95


def test_the_score_remembers_what_was_better_before():
    env = pusht.make()
    env.reset(seed=3)
    onto_its_place(env)
    env.step(np.array([20.0, 20.0], np.float32))
    env.unwrapped.block.position = (100, 100)
    _, reward, _, _, info = env.step(np.array([20.0, 20.0], np.float32))
    assert reward < 0.5
    assert info["log/score"] == 1.0
    env.reset(seed=4)
    assert env.step(np.array([20.0, 20.0], np.float32))[4]["log/score"] < 1.0


def test_an_evaluation_sees_score_and_success_of_whole_episodes():
    envs = Envs(EnvConfig("PushT-v0", "pusht", time_limit=3), seed=0)
    envs.reset()
    finals: list[dict[str, float]] = []
    for _ in range(3):
        envs.step(np.zeros((1, 2), np.float32))
        finals += envs.pop_finals()
    assert set(finals[0]) >= {"success", "log/score", "log/coverage"}


@pytest.mark.parametrize(
    ("kind", "shapes"),
    [
        ("state", {"state": (5,)}),
        ("keypoints", {"state": (2,), "environment_state": (16,)}),
        ("pixels", {"state": (2,), "image": (84, 96, 3)}),
    ],
)
def test_observations_have_the_names_of_its_data_sets(kind, shapes):
    env = pusht.make(obs=kind, size=(84, 96))
    obs, _ = env.reset(seed=0)
    assert {k: v.shape for k, v in obs.items()} == shapes
    assert env.observation_space.contains(obs)


def test_another_task_is_refused():
    with pytest.raises(ConfigError, match="no task of pusht 'PushT'"):
        pusht.make("PushT")
