"""N environments become Steps on one timeline, in one process or several, and resume exactly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from dreamlab.core.errors import EnvError
from dreamlab.core.types import ArraySpec, Step
from dreamlab.envs.check import _copy, _same
from dreamlab.envs.in_turn import InTurn
from dreamlab.envs.normalize import NormalizeConfig
from dreamlab.envs.vector import EnvConfig, Envs, array_spec, make_env, spec_of

COUNT = EnvConfig("counting", "dummy", {"length": 3})


def played(config: EnvConfig, ticks: int, seed: int = 0) -> list[Step]:
    envs = Envs(config, seed)
    envs.vec.action_space.seed(0)
    steps = [_copy(envs.reset())]
    for _ in range(ticks):
        steps.append(_copy(envs.step(np.asarray(envs.vec.action_space.sample()))))
    envs.close()
    return steps


@pytest.mark.parametrize("terminal", [True, False])
def test_the_timeline_is_the_one_drawn_in_step(terminal: bool):
    envs = Envs(replace(COUNT, options={"length": 2, "terminal": terminal}), seed=0)
    steps = [_copy(envs.reset())]
    for value in (0.5, 0.25, 0.75, 0.125):
        steps.append(_copy(envs.step(np.array([[value]], np.float32))))
    # tick             0   1    2 (last)  3 (first, action ignored)  4
    assert [s.obs["state"][0, 0] for s in steps] == [0, 1, 2, 0, 1]
    assert [s.reward[0] for s in steps] == [0, 0.5, 0.25, 0, 0.125]
    assert [bool(s.is_first[0]) for s in steps] == [True, False, False, True, False]
    assert [bool(s.is_last[0]) for s in steps] == [False, False, True, False, False]
    assert [bool(s.is_terminal[0]) for s in steps] == [False, False, terminal, False, False]


def test_environments_end_apart_from_each_other():
    config = replace(COUNT, num_envs=2, options={"length": 4}, time_limit=None)
    envs = Envs(config, seed=0)
    envs.reset()
    envs.vec.envs[0].unwrapped.length = 2
    last = [envs.step(np.zeros((2, 1), np.float32)).is_last.tolist() for _ in range(4)]
    assert last == [[False, False], [True, False], [False, False], [False, True]]


@pytest.mark.parametrize("name", ["mixed", "pixels"])
def test_processes_give_the_same_steps_as_a_loop(name: str):
    config = EnvConfig(name, "dummy", {"length": 4}, num_envs=2)
    one, two = played(config, 12), played(replace(config, vector="async"), 12)
    assert all(_same(a, b) for a, b in zip(one, two, strict=True))
    assert any(s.is_first.any() for s in one[1:])


def test_a_seed_decides_everything_and_environments_differ():
    config = EnvConfig("pixels", "dummy", num_envs=2)
    one, again, other = played(config, 5), played(config, 5), played(config, 5, seed=1)
    assert all(_same(a, b) for a, b in zip(one, again, strict=True))
    assert not all(_same(a, b) for a, b in zip(one, other, strict=True))
    assert not np.array_equal(one[0].obs["image"][0], one[0].obs["image"][1])


@pytest.mark.parametrize("vector", ["sync", "async"])
@pytest.mark.parametrize("ticks", [0, 6, 7])
def test_a_fresh_vector_goes_on_where_the_old_one_was(vector: Any, ticks: int):
    config = EnvConfig("pixels", "dummy", {"length": 7}, num_envs=2, frame_stack=2)
    config = replace(config, normalize_reward=NormalizeConfig(), vector=vector)
    one, two = Envs(config, seed=4), Envs(config, seed=4)
    one.vec.action_space.seed(0)
    step = one.reset()
    for _ in range(ticks):
        step = one.step(np.asarray(one.vec.action_space.sample()))
    back, lost = two.set_state(one.get_state(), _copy(step))
    assert lost == []
    assert _same(back, step)
    for _ in range(10):
        action = np.asarray(one.vec.action_space.sample())
        assert _same(one.step(action), two.step(action))
    one.close()
    two.close()


@pytest.mark.parametrize("vector", ["sync", "async"])
def test_a_used_vector_can_be_set_back(vector: Any):
    """Gymnasium remembers which environments ended; coming back must make it forget."""
    config = EnvConfig("pixels", "dummy", {"length": 4}, vector=vector)
    envs = Envs(config, seed=0)
    envs.reset()
    saved = _copy(envs.step(np.array([1])))
    state = envs.get_state()
    future = [_copy(envs.step(np.array([2]))) for _ in range(3)]
    assert future[-1].is_last.all()
    envs.set_state(state, saved)
    assert all(_same(a, envs.step(np.array([2]))) for a in future)
    envs.close()


def test_environments_that_cannot_come_back_begin_anew():
    config = EnvConfig("identity", "dummy", num_envs=2, normalize_obs=NormalizeConfig())
    one = Envs(config, seed=0)
    one.reset()
    step = _copy(one.step(np.array([0, 0])))
    state = one.get_state()
    state["envs"][1]["obs"] += 1  # as if the second one had gone another way
    two = Envs(config, seed=0)
    back, lost = two.set_state(state, step)
    assert lost == [1]
    assert back.is_first.tolist() == [False, True]
    assert back.reward[1] == 0
    raw = two.vec.envs[1].last_obs
    np.testing.assert_array_equal(back.obs["state"][1], two.normalizer.scale("state", raw))
    assert two.step(np.array([0, 0])).is_first.tolist() == [False, False]


def test_what_is_told_at_the_end_of_an_episode_is_kept_once():
    envs = Envs(EnvConfig("recall", "dummy", {"length": 2}, num_envs=2), seed=0)
    envs.reset()
    envs.step(np.array([0, 0]))
    assert envs.pop_finals() == []
    step = envs.step(np.array([0, 0]))
    assert [f["success"] for f in envs.pop_finals()] == step.reward.tolist()
    assert envs.pop_finals() == []


class LosesLives(gym.Env[Any, Any]):
    """Tells of a termination within the episode at its second step, as Atari's lives do."""

    observation_space = spaces.Box(0, 9, (1,), np.int32)
    action_space = spaces.Discrete(2, start=1)
    actions: tuple[Any, ...] = ()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.int32), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        assert action in (1, 2)
        info = {"is_terminal": True} if self.count == 2 else {}
        return np.full(1, self.count, np.int32), 1.0, False, self.count == 4, info


USER = EnvConfig("tests.envs.test_vector:LosesLives")


def test_a_suite_may_cut_the_bootstrap_within_an_episode():
    steps = played(USER, 5)
    assert [bool(s.is_terminal[0]) for s in steps] == [False, False, True, False, False, False]
    assert [bool(s.is_last[0]) for s in steps] == [False, False, False, False, True, False]


def test_observations_have_the_type_of_the_spec():
    assert played(USER, 1)[1].obs["state"].dtype == np.float32


@pytest.mark.parametrize(
    ("space", "spec"),
    [
        (spaces.Discrete(3), ArraySpec((), "int64", classes=3)),
        (spaces.MultiDiscrete([2, 5]), ArraySpec((2,), "int64", classes=(2, 5))),
        (spaces.MultiBinary(4), ArraySpec((4,), "float32", low=0, high=1)),
        (spaces.Box(-2, 3, (2,), np.float64), ArraySpec((2,), "float32", low=-2, high=3)),
        (spaces.Box(-np.inf, 1, (2,)), ArraySpec((2,), "float32")),
        (spaces.Box(-3e38, 3e38, (2,)), ArraySpec((2,), "float32")),
        (spaces.Box(0, 255, (4, 4, 3), np.uint8), ArraySpec((4, 4, 3), "uint8", low=0, high=255)),
    ],
)
def test_spaces_become_specs(space: spaces.Space[Any], spec: ArraySpec):
    assert array_spec(space) == spec


def test_a_space_that_is_not_numbers_is_refused():
    with pytest.raises(EnvError, match="Text"):
        array_spec(spaces.Text(3))


def test_a_lone_image_is_called_image_and_a_lone_number_state():
    assert set(spec_of(make_env(EnvConfig("pixels", "dummy"), 0, 0)).obs) == {"image"}
    assert set(spec_of(make_env(EnvConfig("FrozenLake-v1"), 0, 0)).obs) == {"state"}


def test_an_unbounded_action_says_what_to_do():
    class Wild(LosesLives):
        action_space = spaces.Box(-np.inf, np.inf, (1,))  # type: ignore[assignment]

    globals()["Wild"] = Wild
    with pytest.raises(EnvError, match="scale_actions=false"):
        make_env(EnvConfig("tests.envs.test_vector:Wild"), 0, 0)


def test_a_time_limit_counts_decisions_and_truncates():
    config = replace(COUNT, options={"length": 100}, repeat=2, time_limit=3)
    steps = played(config, 3)
    assert steps[-1].obs["state"][0, 0] == 6
    assert steps[-1].is_last[0]
    assert not steps[-1].is_terminal[0]
    assert Envs(config, 0).frames_per_tick == 2


def test_pictures_come_from_the_first_environment_or_not_at_all():
    envs = Envs(EnvConfig("pixels", "dummy", num_envs=3), seed=0)
    envs.reset()
    frame = envs.render()
    assert frame is not None
    assert (frame == envs.vec.envs[0].render()).all()
    silent = Envs(COUNT, seed=0)
    silent.reset()
    assert silent.render() is None


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Blackjack-v1"])
def test_steps_in_turn_as_gymnasium_does(name: str) -> None:
    """Observations, rewards, ends and reports of 300 steps with many episodes."""
    makers = [lambda: gym.wrappers.RecordEpisodeStatistics(gym.make(name)) for _ in range(3)]
    ours = InTurn(makers)
    theirs = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.NEXT_STEP)
    ours.action_space.seed(1)
    assert_close(ours.reset(seed=5), theirs.reset(seed=5))
    ends = 0
    for _ in range(300):
        action = ours.action_space.sample()
        a, b = ours.step(action), theirs.step(action)
        for info in (a[-1], b[-1]):
            info.get("episode", {}).pop("t", None)  # seconds
        assert_close(a, b)
        ends += int((a[2] | a[3]).sum())
    assert ends >= 3


def test_an_observation_of_another_shape_is_refused() -> None:
    """It is not copied to every entry."""
    envs = InTurn([lambda: gym.make("CartPole-v1", disable_env_checker=True)])
    envs.reset()
    envs.envs[0].step = lambda action: (np.zeros(1, np.float32), 0.0, False, False, {})
    with pytest.raises(ValueError, match="shape"):
        envs.step(np.zeros(1, np.int64))


def assert_close(a: Any, b: Any) -> None:
    """Compare what two vectors returned."""
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        a, b = list(a.values()), list(b.values())
    if isinstance(a, tuple | list):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_close(x, y)
    else:
        assert np.asarray(a).dtype == np.asarray(b).dtype
        np.testing.assert_array_equal(a, b)
