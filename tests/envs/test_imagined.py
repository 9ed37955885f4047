"""A trained world model behind the Gymnasium interface."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from dreamlab import training
from dreamlab.config import compose, load_config
from dreamlab.core.errors import ConfigError
from dreamlab.envs.suites import make
from dreamlab.envs.vector import EnvConfig
from dreamlab.runs.run import Run
from tests.helpers import metrics, need, open_loop, run_for, some_of


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dream") / "run"
    options = ["+experiment=dreamer_cartpole", "tiny=true", f"run.dir={folder}", "device=cpu"]
    training.train(
        load_config(compose([*options, "training.total_frames=200", "log.terminal=off"]))
    )
    return folder


def test_the_dream_is_a_gymnasium_environment(run):
    env = make("imagined", str(run), {"length": 10, "starts": 20})
    check_env(env, skip_render_check=True)
    obs, _ = env.reset(seed=3)
    assert obs["state"].shape == (4,)


@pytest.mark.parametrize("name", some_of(["dreamer_v1", "planet", "dreamer_v2"]))
def test_the_ancestors_dream_too(name, tmp_path):
    options = [f"+experiment={name}_cartpole_swingup", "tiny=true", f"run.dir={tmp_path / 'run'}"]
    options += ["training.total_frames=200", "log.terminal=off", "device=cpu", "eval.episodes=1"]
    config = replace(load_config(compose(options)), env=EnvConfig("Pendulum-v1"))
    training.train(config)
    env = make("imagined", str(tmp_path / "run"), {"length": 5, "starts": 10})
    check_env(env, skip_render_check=True)


@pytest.mark.parametrize("name", some_of(["tdmpc2", "mpc_tdmpc2", "tdmpc_square", "tdmpc"], 2))
def test_a_model_without_a_decoder_shows_its_latents(name, tmp_path):
    options = [f"+experiment={name}_pendulum", "tiny=true", f"run.dir={tmp_path / 'run'}"]
    options += ["device=cpu", "training.total_frames=150", "log.terminal=off", "eval.episodes=1"]
    training.train(load_config(compose([*options, "eval.max_steps=5", "eval.video=false"])))
    env = make("imagined", str(tmp_path / "run"), {"length": 5, "starts": 10})
    check_env(env, skip_render_check=True)
    obs, _ = env.reset(seed=0)
    (size,) = obs["z"].shape
    assert obs.keys() == {"z"}
    assert obs["z"].sum() == pytest.approx(size / 8, rel=1e-3) or name == "tdmpc"  # SimNorm


@pytest.mark.parametrize("name", ["world_models_cartpole", "mpc_pendulum"])
def test_whatever_follows_the_protocol_dreams(name, tmp_path):
    if name.startswith("world_models"):
        need("cmaes")
    options = [f"+experiment={name}", "tiny=true", f"run.dir={tmp_path / 'run'}", "device=cpu"]
    frames = 2000 if name.startswith("world_models") else 200
    options += [f"training.total_frames={frames}", "log.terminal=off", "eval.episodes=1"]
    config = load_config(compose([*options, "eval.max_steps=5", "eval.video=false"]))
    training.train(config)
    env = make("imagined", str(tmp_path / "run"), {"length": 5, "starts": 10})
    check_env(env, skip_render_check=True)


def test_an_episode_is_a_function_of_its_seed_and_actions(run):
    env = make("imagined", str(run), {"length": 8, "starts": 20})

    def play(seed):
        out = [[*env.reset(seed=seed)[0]["state"], 0, 0]]
        for i in range(8):
            obs, reward, over, truncated, _ = env.step(i % 2)
            out.append([*obs["state"], reward, over])
        assert truncated
        return np.array(out)

    assert np.array_equal(play(1), play(1))
    assert not np.array_equal(play(1), play(2))


def test_another_algorithm_trains_inside_the_dream_and_resumes_exactly(run, tmp_path):
    options = [
        "+experiment=ppo_cartpole", "tiny=true", "env.suite=imagined", f"env.id={run}",
        "env.options={length: 6, starts: 20}", "env.num_envs=2", "eval.episodes=2",
        "training.total_frames=80", "log.every_frames=10", "eval.video=false", "device=cpu",
        "checkpoint.every_frames=0", "checkpoint.every_s=0",
    ]  # fmt: skip
    whole = open_loop(tmp_path / "whole", *options)
    assert whole.run() == "finished"
    for actions in (1, 2):
        assert run_for(open_loop(tmp_path / "cut", *options), actions) == "interrupted"
    resumed = open_loop(tmp_path / "cut", *options)
    assert 0 < resumed.counters.env_frames < 80
    assert resumed.run() == "finished"
    assert Run(tmp_path / "cut").manifest["exact_resume"]
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")
    for a, b in zip(whole.workflow.parameters(), resumed.workflow.parameters(), strict=True):
        assert torch.equal(a, b)
    assert training.load_policy(tmp_path / "cut").env_frames >= 80


def test_a_run_without_a_world_model_is_refused(tmp_path):
    options = ["+experiment=ppo_cartpole", "tiny=true", f"run.dir={tmp_path / 'ppo'}", "device=cpu"]
    training.train(load_config(compose([*options, "training.total_frames=64", "log.terminal=off"])))
    with pytest.raises(ConfigError, match="PPO, which has no world model"):
        make("imagined", str(tmp_path / "ppo"), {})
