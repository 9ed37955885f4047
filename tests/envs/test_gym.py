"""The gym suite: ids, a user's own class, and errors that say what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from dreamlab.core.errors import ConfigError, EnvError, MissingExtraError
from dreamlab.envs import suites
from dreamlab.envs.compat import NO_DEPS, need
from dreamlab.envs.suites.gym import PACKAGES
from dreamlab.envs.vector import EnvConfig, Envs

MINE = """
import gymnasium as gym, numpy as np

class Mine(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, goal=3):
        self.goal, self.count = goal, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.count += 1
        return np.zeros(2, np.float32), 1.0, self.count >= self.goal, False, {}
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_env_module.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["", *__import__("sys").path])
    return "my_env_module:Mine"


@pytest.mark.parametrize("vector", ["sync", "async"])
def test_a_users_own_class_needs_no_file_of_ours(mine: str, vector: str):
    config = EnvConfig(mine, options={"goal": 2}, num_envs=2, vector=vector)  # type: ignore[arg-type]
    envs = Envs(config, seed=0)
    envs.reset()
    action = envs.vec.action_space.sample()
    assert not envs.step(action).is_last.any()
    assert envs.step(action).is_terminal.all()
    envs.close()


def test_a_module_that_is_not_there_is_named():
    with pytest.raises(EnvError, match="cannot import 'no_such_module'"):
        suites.make("gym", "no_such_module:Env", {})


def test_a_misspelt_class_gets_a_suggestion(mine: str):
    with pytest.raises(EnvError, match="Did you mean 'Mine'"):
        suites.make("gym", mine.replace("Mine", "Mien"), {})


def test_an_option_the_class_does_not_take_is_named(mine: str):
    with pytest.raises(EnvError, match="gaol"):
        suites.make("gym", mine, {"gaol": 3})


def test_a_misspelt_id_gets_a_suggestion():
    with pytest.raises(EnvError, match="Did you mean 'CartPole-v1'"):
        suites.make("gym", "CartPol-v1", {})


def test_an_option_an_id_does_not_take_is_named():
    with pytest.raises(EnvError, match="gravty"):
        suites.make("gym", "Pendulum-v1", {"gravty": 3})


def test_a_misspelt_suite_gets_a_suggestion():
    with pytest.raises(ConfigError, match="Did you mean 'atari'"):
        suites.make("atarii", "pong", {})


def test_options_of_a_suite_are_checked_by_name_and_type():
    with pytest.raises(ConfigError, match=r"env.options.lenght.*\n.*length"):
        suites.make("pinpad", "three", {"lenght": 3})
    with pytest.raises(ConfigError, match=r"env\.options\.length: expected int"):
        suites.make("pinpad", "three", {"length": "long"})


def test_a_missing_extra_is_one_line_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(PACKAGES, "Ghost", ("no_such_package", "ghost"))
    with pytest.raises(MissingExtraError) as caught:
        suites.make("gym", "GhostTown-v0", {})
    text = "no_such_package is not installed. Install it with: pip install 'dreamlab[ghost]'"
    assert str(caught.value) == text


def test_a_package_that_clashes_says_no_deps(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(NO_DEPS, "no_such_package", "such-package")
    with pytest.raises(
        MissingExtraError, match=r"\[ghost\]' && pip install --no-deps such-package"
    ):
        need("no_such_package", "ghost")


@pytest.mark.parametrize(
    ("suite", "task", "word"), [("minecraft", "diamond", "minerl"), ("dmlab", "x", "deepmind_lab")]
)
def test_adapters_say_what_they_need(suite: str, task: str, word: str):
    if __import__("importlib.util").util.find_spec(word):
        pytest.skip(f"{word} is installed")
    with pytest.raises(MissingExtraError, match=f"{word} is not installed"):
        suites.make(suite, task, {})
