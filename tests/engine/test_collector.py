"""Environments work while the training goes on, and nobody can tell from what is stored."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from dreamlab.core.errors import EnvError
from dreamlab.core.types import Decision, Mode, Obs, Spec, Tree
from dreamlab.core.workflow import Workflow
from dreamlab.data.replay import Replay, ReplayConfig
from dreamlab.data.rollout import Rollout, RolloutConfig
from dreamlab.data.source import BufferContext
from dreamlab.engine.collector import Collected, Collector
from dreamlab.envs.normalize import NormalizeConfig
from dreamlab.envs.vector import EnvConfig, Envs
from tests.data.streams import through_disk
from tests.helpers import metrics, open_loop, run_for


class Adder(Workflow[None]):
    """Acts on what it sees and on what it remembers, so that any mistake shows in the future."""

    def build(self, spec: Spec) -> None:
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def initial_state(self, num_envs: int) -> Tree:
        return torch.zeros(num_envs)

    def decide(self, obs: Obs, is_first: torch.Tensor, state: Tree, mode: Mode) -> Decision:
        count = torch.where(is_first, 0.0, state) + obs["state"].sum(1).float()
        return Decision(torch.sin(count)[:, None], count, {"count": count})


class Life:
    """A collector with its replay, one tick at a time."""

    def __init__(self, vector: Any, folder: Path) -> None:
        config = EnvConfig("counting", "dummy", {"length": 5}, num_envs=3, vector=vector, repeat=2)
        normalize = NormalizeConfig()
        config = replace(config, normalize_obs=normalize, normalize_reward=normalize)
        self.envs = Envs(config, seed=0)
        workflow = Adder(None, self.envs.spec)
        self.collector = Collector(self.envs, workflow, seed=0)
        place = BufferContext(self.envs.spec, 3, folder=folder)
        self.replay = Replay(ReplayConfig(capacity=300, batch=4, length=3), place)

    def live(self, ticks: int, random_actions: bool = False) -> list[Collected]:
        collect = self.collector.collect
        return [collect(1, self.replay, random_actions) for _ in range(ticks)]

    def stored(self) -> dict[str, torch.Tensor]:
        assert self.replay.store is not None
        return {k: v[:, : self.replay.added] for k, v in self.replay.store.data.items()}


def assert_same_steps(a: Life, b: Life) -> None:
    one, two = a.stored(), b.stored()
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert torch.equal(value, two[name]), name


def test_environments_that_work_meanwhile_give_the_same_steps(tmp_path: Path):
    lives = [Life("sync", tmp_path / "a"), Life("async", tmp_path / "b")]
    seen = [life.live(4, random_actions=True) + life.live(30) for life in lives]
    assert [life.envs.pending for life in lives] == [False, True]
    assert_same_steps(*lives)
    for one, two in zip(*seen, strict=True):
        assert (one.frames, one.decisions) == (two.frames, two.decisions)
    assert sum(c.frames for c in seen[0]) < 34 * 3 * 2  # beginning an episode takes none
    returns = [[c.returns for c in life] for life in seen]
    assert any(returns[0])
    assert returns[1][1:] == returns[0][:-1]  # an episode is reported by the tick that follows
    assert returns[1][0] == []
    for life in lives:
        life.envs.close()


def test_a_rollout_gets_the_step_that_follows_it(tmp_path: Path):
    life = Life("async", tmp_path)
    rollout = Rollout(RolloutConfig(length=4), life.replay.place)
    life.live(1)
    assert life.envs.pending
    life.collector.collect(4, rollout)
    assert not life.envs.pending
    batch = rollout.sample()
    following = life.collector.step
    assert following is not None
    np.testing.assert_array_equal(batch.obs["state"][:, -1].numpy(), following.obs["state"])
    life.envs.close()


@pytest.mark.parametrize("vector", ["sync", "async"])
@pytest.mark.parametrize("ticks", [1, 3, 4])  # the third step is the last of the first episodes
def test_a_state_saved_while_they_work_leads_to_the_same_future(
    vector: str, ticks: int, tmp_path: Path
):
    whole, cut = Life(vector, tmp_path / "a"), Life(vector, tmp_path / "b")
    whole.live(ticks)
    reported = whole.live(12)
    cut.live(ticks)
    saved = through_disk(cut.collector.get_state(), tmp_path)
    assert not cut.envs.pending
    steps = through_disk(cut.replay.save(), tmp_path)
    cut.live(2)  # what happens after the last save is forgotten
    again = Life(vector, tmp_path / "b")
    again.live(2)
    for life in (cut, again):
        assert life.collector.set_state(saved) == []
        life.replay.load(steps)
        assert life.live(12) == reported
        assert_same_steps(whole, life)
    for life in (whole, cut, again):
        life.envs.close()


@pytest.mark.parametrize("vector", ["sync", "async"])
def test_fresh_episodes_begin_with_every_collection(vector: Any, tmp_path: Path):
    life = Life(vector, tmp_path)
    first = life.collector.collect(2, life.replay, fresh=True)
    second = life.collector.collect(2, life.replay, fresh=True)
    stored = life.stored()
    assert stored["is_first"][0].tolist() == [True, False, True, False]
    assert not stored["is_last"].any()
    assert [first.returns, second.returns] == [[], []]  # what was dropped is not reported
    assert first.frames == second.frames == 2 * 3 * 2
    third = life.collector.collect(8, life.replay, fresh=True)
    life.collector.wait()
    lengths = third.lengths + life.collector.ended.lengths
    assert lengths
    assert set(lengths) == {3}  # five frames of the environment, two per decision
    life.envs.close()


class Fragile(gym.Env[Any, Any]):
    """Breaks at its third step."""

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Box(-1, 1, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        if self.count == 3:
            raise ArithmeticError("the gearbox is gone")
        return np.zeros(2, np.float32), 0.0, False, False, {}


@pytest.mark.parametrize("vector", ["sync", "async"])
def test_an_environment_that_breaks_says_why(vector: Any):
    envs = Envs(EnvConfig("tests.engine.test_collector:Fragile", num_envs=2, vector=vector), 0)
    collector = Collector(envs, Adder(None, envs.spec), seed=0)
    replay = Replay(ReplayConfig(capacity=60, length=2), BufferContext(envs.spec, 2))
    # both break in the same step: which of two processes is heard first is not ours to say
    with pytest.raises(EnvError, match=r"env [01]: step 3.*ArithmeticError: the gearbox is gone"):
        collector.collect(4, replay)
    assert replay.added == 3
    assert not envs.pending


def test_an_error_on_the_way_is_told_when_the_state_is_asked_for():
    envs = Envs(EnvConfig("tests.engine.test_collector:Fragile", vector="async"), 0)
    collector = Collector(envs, Adder(None, envs.spec), seed=0)
    collector.collect(3, Replay(ReplayConfig(capacity=60, length=2), BufferContext(envs.spec, 1)))
    with pytest.raises(EnvError, match=r"env 0: step 3.*ArithmeticError: the gearbox is gone"):
        collector.get_state()


def test_ctrl_c_does_not_reach_the_environments(tmp_path: Path):
    life = Life("async", tmp_path)
    life.live(2)
    for process in life.envs.vec.processes:
        os.kill(process.pid, signal.SIGINT)
    life.live(20)
    assert len(life.collector.get_state()["envs"]["envs"]) == 3
    life.envs.close()


def test_a_run_with_pending_steps_goes_on_as_if_nothing_had_been(tmp_path: Path):
    options = (
        "+experiment=dqn_cartpole", "tiny=true", "env.num_envs=2", "env.vector=async",
        "training.total_frames=300", "log.every_frames=20", "eval.every_frames=60", "device=cpu",
        "eval.episodes=1", "eval.video=false", "checkpoint.every_s=0", "++env.normalize_obs={}",
    )  # fmt: skip
    whole = open_loop(tmp_path / "a", *options)
    assert whole.run() == "finished"
    for actions in (1, 3, 8):
        assert run_for(open_loop(tmp_path / "b", *options), actions) == "interrupted"
    resumed = open_loop(tmp_path / "b", *options)
    assert resumed.run() == "finished"
    assert resumed.counters == whole.counters
    assert metrics(tmp_path / "b") == metrics(tmp_path / "a")
