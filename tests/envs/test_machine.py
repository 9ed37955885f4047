"""The machine is looked at without harm: OpenGL probes, the doctor's report, configs that load."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import yaml

from dreamlab.core.config import load
from dreamlab.core.errors import EnvError
from dreamlab.envs import compat, doctor, rendering, suites
from dreamlab.envs.vector import EnvConfig

CONFIGS = sorted((Path(__file__).parents[2] / "configs" / "env").glob("*.yaml"))


def test_importing_the_package_chooses_no_opengl_and_loads_no_simulator():
    code = (
        "import os, sys, dreamlab.envs.vector, dreamlab.envs.check, dreamlab.envs.suites.gym\n"
        "assert 'MUJOCO_GL' not in os.environ\n"
        "heavy = {'mujoco', 'dm_control', 'ale_py', 'crafter', 'minigrid', 'cv2', 'procgen'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    env = {k: v for k, v in os.environ.items() if k != "MUJOCO_GL"}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)


def test_the_users_choice_of_opengl_stands(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    assert rendering.setup_gl() == "glfw"


def test_without_opengl_pixels_say_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(rendering, "find_backend", lambda: None)
    assert rendering.setup_gl(required=False) is None
    with pytest.raises(EnvError, match="apt install libegl1"):
        rendering.setup_gl()


DRAWN = """
from dreamlab.envs.vector import EnvConfig, Envs
envs = Envs(EnvConfig({task!r}, {suite!r}), seed=0)
envs.reset()
assert envs.render() is None
envs.close()
"""


@pytest.mark.parametrize(
    ("suite", "task"),
    [
        pytest.param("dmc", "walker_walk", marks=pytest.mark.env("dmc")),
        pytest.param("mujoco", "HalfCheetah-v5", marks=pytest.mark.env("mujoco")),
        pytest.param("gym", "HalfCheetah-v5", marks=pytest.mark.env("mujoco")),
    ],
)
def test_where_nothing_is_drawn_a_state_is_seen_and_there_is_no_video(suite, task):
    code = DRAWN.format(suite=suite, task=task)  # elsewhere: MuJoCo reads MUJOCO_GL but once
    env = {**os.environ, "MUJOCO_GL": "disable"}
    subprocess.run([sys.executable, "-c", code], check=True, env=env)


def test_pixels_are_refused_where_drawing_is_switched_off(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "disable")
    with pytest.raises(EnvError, match="MUJOCO_GL=disable"):
        rendering.setup_gl()


def test_the_first_backend_that_draws_is_chosen(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MUJOCO_GL", "")
    monkeypatch.setattr(rendering, "probe", lambda b, **_: b == "osmesa")
    rendering.find_backend.cache_clear()
    assert rendering.setup_gl() == "osmesa"
    assert os.environ["MUJOCO_GL"] == "osmesa"
    rendering.find_backend.cache_clear()


def test_a_backend_that_crashes_does_not_draw():
    assert not rendering.probe("no_such_backend")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
def test_every_env_config_loads_and_says_what_it_is(path: Path):
    text = path.read_text()
    assert text.startswith("# ")
    config = load(EnvConfig, yaml.safe_load(text), "env")
    assert config.suite in suites.SUITES


def test_every_suite_has_a_config():
    named = {load(EnvConfig, yaml.safe_load(p.read_text()), "env").suite for p in CONFIGS}
    assert named == set(suites.SUITES)


def test_the_doctor_reports_what_runs_what_fails_and_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(doctor.rendering, "probe", lambda *_: True)
    trials = (
        doctor.Trial("pinpad", "dreamlab", "pinpad", "three"),
        doctor.Trial("broken", "dreamlab", "pinpad", "nine"),
        doctor.Trial("missing", "no_such_module", "gym", "no_such_module:Env"),
    )
    found = {f.text.split(":")[0]: f for f in doctor.doctor(trials=trials)}
    assert found["pinpad"].text == "pinpad: three runs"
    assert found["broken"].level == "error"
    assert "known: eight" in found["broken"].text
    assert "not installed" in found["missing"].text
    assert found["videos"].level == "ok"


def test_a_slow_environment_is_an_error_and_not_a_wait():
    trial = doctor.Trial("pinpad", "dreamlab", "pinpad", "three")
    assert "did not answer" in doctor._tried(trial, timeout_s=0.01).text


def test_an_older_numpy_is_seen_by_one_module_only():
    module = type(sys)("old_module")
    module.np = np  # type: ignore[attr-defined]
    compat.give_numpy(module, no_longer_there=np.isin)
    assert module.np.no_longer_there([1], [1]).all()  # type: ignore[attr-defined]
    assert module.np.zeros(1).shape == (1,)  # type: ignore[attr-defined]
    assert not hasattr(np, "no_longer_there")


class Global(gym.Env):
    """Draws from numpy's global generator, as some packages do."""

    observation_space = action_space = gym.spaces.Box(0, 1, (1,), np.float64)

    def reset(self, *, seed=None, options=None):
        return np.random.random(1), {}

    def step(self, action):
        return np.random.random(1), 0.0, False, False, {}


def test_an_environment_with_global_chance_gets_its_own():
    np.random.seed(0)
    want = np.random.random()
    np.random.seed(0)
    env = compat.OwnRandom(Global())
    first = [env.reset(seed=1)[0], env.step(0)[0]]
    assert np.random.random() == want
    assert [env.reset(seed=1)[0], env.step(0)[0]] == first
    assert env.reset(seed=2)[0] != first[0]
