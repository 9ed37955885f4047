"""Runs that learn from a data set: without an environment, with one, and mixed with its steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from dreamlab import build, training
from dreamlab.cli import main
from dreamlab.core.errors import ConfigError
from dreamlab.core.files import CACHE
from dreamlab.core.types import Mode
from dreamlab.data.datasets.lerobot_write import LeRobotWriter, Recording
from dreamlab.data.datasets.table import Feature
from dreamlab.envs.vector import EnvConfig, Envs
from tests.helpers import config_of, metrics, open_loop, run_for

SMALL = (
    "tiny=true", "device=cpu", "eval.episodes=1", "eval.num_envs=1", "eval.video=false",
    "log.terminal=off", "checkpoint.every_s=0", "log.every_updates=4", "log.every_frames=32",
    "eval.every_updates=0", "eval.every_frames=0", "env.time_limit=20",
    "training.phases.1.train_ratio=6", "training.phases.1.collect_ticks=4",
)  # fmt: skip
KINDS = {"dreamer": ("dreamer_offline_cartpole", "CartPole-v1"),
         "tdmpc2": ("tdmpc2_offline_pendulum", "Pendulum-v1")}  # fmt: skip


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))


def write(folder: Path, env_id: str, episodes: int = 4, length: int = 20) -> Path:
    """Record random episodes of an environment."""
    env = gym.make(env_id)
    box = env.action_space
    discrete = isinstance(box, gym.spaces.Discrete)
    bounds: Any = {"classes": int(box.n)} if discrete else {"low": -2.0, "high": 2.0}
    action = Feature("int64" if discrete else "float32", (1,), **bounds)
    size = env.observation_space.shape
    assert size is not None
    features = {
        "observation.state": Feature("float32", size), "action": action,
        "next.reward": Feature("float32", (1,)), "next.done": Feature("bool", (1,)),
    }  # fmt: skip
    with LeRobotWriter(folder, Recording(20, features)) as writer:
        for episode in range(episodes):
            obs, _ = env.reset(seed=episode)
            env.action_space.seed(episode)
            rows: dict[str, list[Any]] = {k: [] for k in features}
            for _ in range(length):
                act = env.action_space.sample()
                after, reward, ended, _, _ = env.step(act)
                for name, value in zip(features, (obs, act, reward, ended), strict=True):
                    rows[name].append(value)
                obs = after
                if ended:
                    break
            writer.add({k: np.array(v) for k, v in rows.items()}, {})
    return folder


def options(kind: str, folder: Path, *more: str) -> list[str]:
    name, env_id = KINDS[kind]
    path = folder if folder.exists() else write(folder, env_id)
    phases = ["training.phases.0.duration_updates=4", "training.phases.1.duration_steps=96"]
    return [f"+experiment={name}", *SMALL, f"buffers.demos.path={path}", *phases, *more]


@pytest.mark.parametrize("kind", ["dreamer", "tdmpc2"])
def test_a_world_model_learns_from_data_and_then_from_both(kind: str, tmp_path: Path):
    given = options(kind, tmp_path / "data", "checkpoint.every_updates=3")
    straight = open_loop(tmp_path / "a", *given)
    assert straight.run() == "finished"
    assert straight.counters.env_frames >= 96
    assert straight.counters.updates > 4
    for actions in (3, 9):
        assert run_for(open_loop(tmp_path / "b", *given), actions) == "interrupted"
    resumed = open_loop(tmp_path / "b", *given)
    assert resumed.run() == "finished"
    assert straight.counters == resumed.counters
    for (key, a), (_, b) in zip(
        straight.workflow.state_dict().items(), resumed.workflow.state_dict().items(), strict=True
    ):
        assert not isinstance(a, torch.Tensor) or torch.equal(a, b), key
    assert metrics(tmp_path / "a") == metrics(tmp_path / "b")


@pytest.mark.parametrize("kind", ["dreamer", "tdmpc2"])
def test_steps_that_did_not_happen_are_not_learnt_from(kind: str, tmp_path: Path):
    padded = ("buffers.demos.pad=edge", "buffers.demos.windows=inside")
    given = options(kind, tmp_path / "data", *padded)
    with pytest.raises(ConfigError, match=r"buffers\.demos: pad: edge: .* as if it had happened"):
        build.check(config_of(*given))


def test_an_extra_that_is_no_number_does_not_disturb(tmp_path: Path):
    """A buffer may tell more than what a workflow stored."""
    loop = open_loop(tmp_path / "a", *options("tdmpc2", tmp_path / "data"))
    batch = loop.parts.buffers["demos"].sample()
    extras = {**batch.extras, "pad": torch.zeros(batch.shape, dtype=torch.bool)}
    window = loop.workflow.window(replace(batch, extras=extras))
    assert set(window.extras) <= set(batch.extras)


def test_a_run_needs_no_environment(tmp_path: Path):
    phase = (
        "training.phases=[{name: study, type: offline, buffer: demos, duration_updates: 3, "
        "workflow_hooks: [update_agent]}]"
    )
    given = [o for o in options("tdmpc2", tmp_path / "data") if "phases" not in o]
    given += [phase, "env.id=''", "env.time_limit=null", "log.every_frames=0"]
    loop = open_loop(tmp_path / "a", *given)
    spec = loop.workflow.spec
    assert (spec.action.low, spec.action.high, spec.obs["state"].shape) == (-1, 1, (3,))
    assert loop.run() == "finished"
    assert loop.counters.env_frames == 0
    trained = training.load_policy(tmp_path / "a")
    assert trained.workflow.spec == spec


def test_a_policy_acts_in_the_units_of_its_data(tmp_path: Path):
    given = options("tdmpc2", tmp_path / "data", "buffers.demos.normalize.state=mean_std")
    loop = open_loop(tmp_path / "a", *given)
    scaling = loop.parts.scaling
    assert set(scaling) == {"state", "action"}
    assert loop.run() == "finished"
    raw = Envs(EnvConfig("Pendulum-v1", scale_actions=False), 0)
    for made in (loop.parts.evaluator.make_envs(1, 0), Envs(raw.config, 0, scaling)):
        one, two = raw.reset(), made.reset()
        for choice in (0.5, -1.0, 3.0):  # what is beyond the bounds is clipped
            own = np.array([[np.clip(2 * choice, -2, 2)]], np.float32)
            one, two = raw.step(own), made.step(np.array([[choice]], np.float32))
            expected = scaling["state"].apply(one.obs["state"])
            assert np.array_equal(two.obs["state"], expected)
        raw = Envs(raw.config, 0)
    (tmp_path / "data").rename(tmp_path / "elsewhere")  # a policy needs its data no more
    trained = training.load_policy(tmp_path / "a")
    assert trained.workflow.spec.action.high == 1
    evaluator = build.build_evaluator(trained.config)
    again = evaluator.run(trained.workflow, trained.statistics)
    assert again.returns == loop.evaluate().returns  # type: ignore[union-attr]
    saved = tmp_path / "a" / "buffers" / "demos" / "statistics.json"
    assert '"mean_std"' in saved.read_text()


def test_an_exported_policy_holds_the_statistics_of_its_data(tmp_path: Path):
    """The file is compared with the workflow on raw steps, by the verb itself."""
    demos = (
        f"{{_target_: dataset, path: {write(tmp_path / 'data', 'Pendulum-v1')}, batch: 8, "
        "length: 2, normalize: {state: mean_std, action: bounds}}"
    )
    phase = (
        "training.phases=[{name: study, type: offline, buffer: demos, duration_updates: 3, "
        "workflow_hooks: [update_controller]}]"
    )
    given = [o for o in SMALL if "phases" not in o and "every_frames" not in o]
    given += [f"buffers.demos={demos}", "~buffers.replay", phase, "env.scale_actions=false"]
    given += ["eval.every_frames=0"]
    loop = open_loop(tmp_path / "a", "+experiment=sac_pendulum", *given)
    assert loop.run() == "finished"
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    run = str(tmp_path / "a")
    assert main(["export-policy", run, "--format", "torchscript"]) == 0
    policy = torch.jit.load(tmp_path / "a" / "export" / "policy.pt")
    state = torch.tensor([[1.0, 0.0, 8.0]])
    (action,) = policy(state)
    scaling = loop.parts.scaling
    seen = torch.from_numpy(scaling["state"].apply(state.numpy()))
    own = loop.workflow.decide({"state": seen}, torch.ones(1, dtype=torch.bool),
                               loop.workflow.initial_state(1), Mode.FIXED).action  # fmt: skip
    assert torch.allclose(action, 2 * own, atol=1e-5)
    assert main(["export-policy", run, "--hub", str(tmp_path / "hub")]) == 0
    results = [
        build.build_evaluator(t.config).run(t.workflow, t.statistics).returns
        for t in (training.load_policy(tmp_path / "a"), training.load_policy(tmp_path / "hub"))
    ]
    assert results[0] == results[1]


def test_weights_are_only_taken_over_with_their_normalisation(tmp_path: Path):
    given = options("tdmpc2", tmp_path / "data", "training.phases.1.duration_steps=16")
    assert open_loop(tmp_path / "a", *given).run() == "finished"
    given.append(f"start.run={tmp_path / 'a'}")
    assert open_loop(tmp_path / "b", *given).parts.scaling
    with pytest.raises(ConfigError, match="trained with another normalization of 'state'"):
        open_loop(tmp_path / "c", *given, "buffers.demos.normalize.state=min_max")


def test_what_would_be_normalised_twice_is_refused(tmp_path: Path):
    given = options("tdmpc2", tmp_path / "data", "env.scale_actions=true")
    with pytest.raises(ConfigError, match=r"own units: set env\.scale_actions=false"):
        open_loop(tmp_path / "a", *given)
    given = options("tdmpc2", tmp_path / "data", "env.normalize_obs={}")
    with pytest.raises(ConfigError, match=r"remove env\.normalize_obs"):
        open_loop(tmp_path / "b", *given)
    other = write(tmp_path / "other", "Pendulum-v1", length=7)
    second = (
        f"{{_target_: dataset, path: {other}, batch: 8, length: 4, normalize: {{state: min_max}}}}"
    )
    given = options(
        "tdmpc2", tmp_path / "data", "buffers.demos.normalize.state=min_max",
        f"buffers.more={second}",
    )  # fmt: skip
    with pytest.raises(ConfigError, match="'demos' and 'more' normalize 'state' differently"):
        open_loop(tmp_path / "c", *given)


def test_data_of_another_environment_is_refused(tmp_path: Path):
    write(tmp_path / "data", "CartPole-v1")
    given = options(
        "tdmpc2", tmp_path / "data", "buffers.demos.normalize.action=none", "env.scale_actions=true"
    )
    with pytest.raises(ConfigError, match=r"'state' is float32\[4\], here it is float32\[3\]"):
        open_loop(tmp_path / "a", *given)


def test_config_of_the_experiments_is_whole():
    for name, _ in KINDS.values():
        build.check(config_of(f"+experiment={name}"))
