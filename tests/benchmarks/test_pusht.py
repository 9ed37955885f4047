"""PushT: what the expert shows is cloned at the right steps and in the right units."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dreamlab import build
from dreamlab.components.policies import acting
from dreamlab.components.policies.chunks import chunks
from dreamlab.core.rng import derive
from dreamlab.core.types import Mode
from dreamlab.data.dataset_source import DatasetSource
from dreamlab.data.datasets.lerobot_write import LeRobotWriter, Recording
from dreamlab.data.datasets.table import Feature
from dreamlab.data.source import BufferContext
from dreamlab.envs.suites import pusht
from dreamlab.envs.vector import EnvConfig, Envs
from tests.helpers import config_of, metrics, need, open_loop

FILE = Path(__file__).parents[2] / "benchmarks" / "pusht_demos.py"
SEED = 4


@pytest.fixture(scope="module")
def bench():
    need("gym_pusht")
    spec = importlib.util.spec_from_file_location("pusht_demos", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["pusht_demos"] = module
    spec.loader.exec_module(module)
    return module


class Nearest:
    """Answers with the chunk that was shown for the most similar observations."""

    obs_steps, horizon, execute, action_dim = 2, 16, 8, 2
    training = False

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def sample(self, obs: dict[str, torch.Tensor], mode: Mode) -> torch.Tensor:
        far = sum(torch.cdist(v.flatten(1), self.rows.obs[k].flatten(1)) for k, v in obs.items())
        return self.rows.action[far.argmin(1)][:, None]

    def train(self, mode: bool = True) -> None: ...

    def eval(self) -> None: ...

    def shaped(self, action: torch.Tensor) -> torch.Tensor:
        return action


def shown(bench: Any, envs: Envs, folder: Path) -> int:
    """Let the expert play the first episode of an environment; return how long it takes."""
    envs.reset()
    obs = {k: v[0].copy() for k, v in envs.shown.items()}
    columns = bench.played(envs.vec.envs[0], obs, bench.Expert(bench.Search()))
    assert columns is not None
    with LeRobotWriter(folder, Recording(10.0, bench.FEATURES, "pusht")) as writer:
        writer.add(columns, {}, "push")
    return len(columns["action"])


def test_a_demonstration_is_repeated_to_the_step(bench, tmp_path):
    given = config_of("+experiment=imitation_pusht", f"buffers.demos.path={tmp_path / 'demo'}")
    env = replace(given.env, num_envs=1, vector="sync")
    length = shown(bench, Envs(env, SEED), tmp_path / "demo")
    scaling = build.find_scaling(given)
    envs = Envs(env, SEED, scaling)
    part = given.buffers["demos"].config
    source = DatasetSource(replace(part, batch=length), BufferContext(envs.spec, 1))
    policy: Any = Nearest(chunks(source.sample(), 2, 16))
    state = acting.initial_state(policy, envs.spec, 1, torch.device("cpu"))
    step, count, furthest = envs.reset(), 0, 0.0
    actions = source.data.columns["action"]
    while not step.is_last[0]:
        obs = {k: torch.from_numpy(np.array(v)) for k, v in step.obs.items()}
        first = torch.from_numpy(np.array(step.is_first))
        decision = acting.act(policy, obs, first, state, Mode.EVAL)
        state, action = decision.state, decision.action.numpy()
        furthest = max(furthest, float(abs(envs.own_action(action)[0] - actions[count]).max()))
        step = envs.step(action)
        count += 1
    assert count == length
    assert furthest < 0.01  # of 512
    assert envs.pop_finals()[0]["success"] == 1.0


def test_the_expert_succeeds_in_a_vector_as_in_the_environment_itself(bench):
    """Every observation and reward that an evaluation sees is the environment's own."""
    config = EnvConfig("PushT-v0", "pusht", {"obs": "keypoints"}, num_envs=2, scale_actions=False)
    envs = Envs(config, SEED)
    envs.reset()
    alone = [pusht.make(obs="keypoints") for _ in range(2)]
    for i, env in enumerate(alone):
        env.reset(seed=derive(SEED, i, 0) % 2**31)
    experts, plans = [bench.Expert(bench.Search()) for _ in alone], [[], []]
    succeeded: set[int] = set()
    while len(succeeded) < 2:
        for i in {0, 1} - succeeded:
            plans[i] = plans[i] or experts[i].targets(alone[i].unwrapped)
        action = np.array([p.pop(0) if p else (256, 256) for p in plans], np.float32)
        step = envs.step(action)
        for i in {0, 1} - succeeded:
            seen, reward, terminated, truncated, _ = alone[i].step(action[i])
            assert all(np.array_equal(envs.shown[k][i], v) for k, v in seen.items())
            assert step.reward[i] == np.float32(reward)
            assert step.is_terminal[i] == terminated
            assert not truncated
            succeeded |= {i} if terminated else set()


def test_a_demonstration_in_the_mirror_is_another(bench):
    """Mirrored actions from a mirrored start: the same rewards, and what the mirror shows."""
    columns = bench.episode(SEED, bench.Search())
    other = bench.Mirror()(columns)
    env = pusht.make(obs="keypoints")
    env.reset(seed=SEED)
    base: Any = env.unwrapped
    (x, y), (u, v) = base.agent.position, base.block.position
    base.agent.position = (pusht.WORLD - y, pusht.WORLD - x)
    base.block.angle = np.pi / 2 - base.block.angle
    base.block.position = (pusht.WORLD - v, pusht.WORLD - u)
    for row in range(len(other["action"])):
        seen, reward, terminated, _, _ = env.step(other["action"][row])
        assert reward == pytest.approx(other["next.reward"][row, 0], abs=1e-3)
        if not terminated:
            shown = other["observation.environment_state"][row + 1]
            assert np.allclose(seen["environment_state"], shown, atol=0.1)
    assert terminated


def filmed(folder: Path, length: int = 12) -> Path:
    """Record two short episodes as LeRobot's data set of this task has them."""
    features = {
        "observation.state": Feature("float32", (2,)),
        "observation.image": Feature("video", (96, 96, 3)),
        "action": Feature("float32", (2,)),
    }
    rng = np.random.default_rng(0)
    with LeRobotWriter(folder, Recording(10.0, features, "pusht", "libx264")) as writer:
        for seed in range(2):
            env = pusht.make(obs="pixels")
            seen, actions = [env.reset(seed=seed)[0]], rng.uniform(100, 400, (length, 2))
            for action in actions[1:]:
                seen.append(env.step(action.astype(np.float32))[0])
            state = np.stack([o["state"] for o in seen])
            columns = {"observation.state": state, "action": actions.astype(np.float32)}
            film = np.stack([o["image"] for o in seen])
            writer.add(columns, {"observation.image": film}, "push")
    return folder


@pytest.mark.slow
def test_the_experiment_with_pictures_learns_and_acts(bench, tmp_path, monkeypatch):
    monkeypatch.setenv("DREAMLAB_CACHE", str(tmp_path / "cache"))
    loop = open_loop(
        tmp_path / "run", "+experiment=imitation_pusht_pixels", "device=cpu", "eval.episodes=1",
        f"buffers.demos.path={filmed(tmp_path / 'set')}", "buffers.demos.batch=4",
        "workflow.policy.net.widths=[8, 16]", "workflow.policy.levels=4", "eval.num_envs=1",
        "training.phases.0.duration_updates=3", "log.every_updates=1", "env.time_limit=10",
        "eval.every_updates=0",
    )  # fmt: skip
    assert loop.workflow.spec.obs["image"].shape == (96, 96, 3)
    assert loop.run() == "finished"
    found = metrics(tmp_path / "run")
    assert all(np.isfinite(r["train/loss"]) for r in found if "train/loss" in r)
    assert 0 <= found[-1]["eval/log/score"] <= 1
