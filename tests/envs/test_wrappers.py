"""Each wrapper does what it says, on arrays and on dictionaries."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from dreamlab.core.errors import EnvError
from dreamlab.core.rng import derive
from dreamlab.envs import wrappers
from dreamlab.envs.dummy import Counting, Mixed, Pixels


class Spaces(gym.Env[Any, Any]):
    """Has the spaces it is given, shows samples of them and remembers the actions it gets."""

    def __init__(self, obs: spaces.Space[Any], action: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = obs, action
        self.got: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        self.got.append(action)
        return self.observation_space.sample(), 0.0, False, False, {}


BOX = spaces.Box(-1, 1, (2,), np.float32)


class Drawn(Counting):
    """Counts how often it was asked to draw."""

    drawing, drawn = True, 0

    def step(self, action: Any) -> Any:
        result = super().step(action)
        self.drawn += self.drawing or result[2] or result[3]
        return result


def act(value: float) -> Any:
    return np.array([value], np.float32)


def test_action_repeat_sums_rewards_and_counts_frames():
    env = wrappers.ActionRepeat(Counting(length=10), 3)
    env.reset()
    obs, reward, terminated, truncated, _ = env.step(act(0.5))
    assert (obs[0], reward, terminated, truncated) == (3, 1.5, False, False)


def test_action_repeat_stops_where_the_episode_ends():
    env = wrappers.ActionRepeat(Counting(length=4, terminal=True), 3)
    env.reset()
    env.step(act(1))
    obs, reward, terminated, *_ = env.step(act(1))
    assert (obs[0], reward, terminated) == (4, 1, True)


def test_action_repeat_draws_only_what_is_seen():
    env = wrappers.ActionRepeat(Drawn(length=10), 3)
    env.reset()
    env.step(act(0))
    assert env.unwrapped.drawn == 1
    assert env.unwrapped.drawing


def test_scale_action_spans_the_range_and_clips():
    inner = Spaces(BOX, spaces.Box(np.array([0, -4], np.float32), np.array([1, 4], np.float32)))
    env = wrappers.ScaleAction(inner)
    for unit in ([-1, -1], [0, 0], [1, 1], [9, -9]):
        env.step(np.array(unit, np.float32))
    np.testing.assert_allclose(inner.got, [[0, -4], [0.5, 0], [1, 4], [1, -4]])
    assert inner.got[0].dtype == np.float32


def test_discrete_actions_that_start_elsewhere_count_from_zero():
    inner = Spaces(BOX, spaces.Discrete(3, start=5))
    env = wrappers.FromZero(inner)
    env.step(np.int64(0))
    assert inner.got == [5]
    assert env.action_space == spaces.Discrete(3)


def test_images_are_resized_and_gray_and_the_rest_is_left_alone():
    env = wrappers.MapImages(Mixed(size=16), (8, 6), gray=True)
    obs, _ = env.reset(seed=0)
    assert obs["image"].shape == (8, 6, 1)
    assert obs["vector"].shape == (4,)
    assert env.observation_space.contains(obs)


def test_a_plain_image_is_mapped_too():
    env = wrappers.MapImages(Pixels(size=16), (8, 8))
    obs, _ = env.reset(seed=0)
    assert obs.shape == (8, 8, 3)
    assert env.observation_space.contains(obs)


def test_gray_keeps_gray_and_weighs_colours():
    levels = np.arange(256, dtype=np.uint8)[None, :, None].repeat(3, 2)
    assert (wrappers.to_gray(levels)[..., 0] == levels[..., 0]).all()
    red = np.zeros((1, 1, 3), np.uint8)
    red[..., 0] = 255
    assert wrappers.to_gray(red)[0, 0, 0] == 76  # 0.299 * 255


@pytest.mark.parametrize("channels", [1, 3, 6])
def test_resize_keeps_the_channels(channels: int):
    image = np.full((10, 12, channels), 7, np.uint8)
    assert (wrappers.resize(image, (5, 6)) == 7).all()
    assert wrappers.resize(image, (5, 6)).shape == (5, 6, channels)


def test_frame_stack_repeats_the_first_frame_then_slides():
    env = wrappers.FrameStack(Counting(length=10), 3)
    obs, _ = env.reset()
    assert obs.tolist() == [0, 0, 0]
    for want in ([0, 0, 1], [0, 1, 2], [1, 2, 3]):
        obs, *_ = env.step(act(0))
        assert obs.tolist() == want
    obs, _ = env.reset()
    assert obs.tolist() == [0, 0, 0]


def test_frame_stack_of_a_dictionary_stacks_boxes_only():
    env = wrappers.FrameStack(Mixed(size=4), 2)
    first, _ = env.reset(seed=0)
    obs, *_ = env.step(np.array([0, 0]))
    assert obs["image"].shape == (4, 4, 6)
    assert (obs["image"][..., :3] == first["image"][..., 3:]).all()
    assert (obs["vector"][:4] == first["vector"][4:]).all()
    assert np.ndim(obs["token"]) == 0
    assert env.observation_space.contains(obs)


def test_frame_stack_keeps_the_bounds_of_each_entry():
    low, high = np.array([0, -5], np.float32), np.array([1, 5], np.float32)
    env = wrappers.FrameStack(Spaces(spaces.Box(low, high), BOX), 2)
    assert env.observation_space.low.tolist() == [0, -5, 0, -5]  # type: ignore[attr-defined]


def test_nested_observations_get_flat_names():
    nested = spaces.Dict(
        {
            "arm": spaces.Dict({"joint/0": BOX, "touch": spaces.MultiBinary(2)}),
            "pair": spaces.Tuple((spaces.Discrete(3, start=2), BOX)),
            "words": spaces.Text(5),
            "nothing": spaces.Box(-1, 1, (0,), np.float32),
        }
    )
    env = wrappers.NameObs(Spaces(nested, BOX))
    obs, _ = env.reset(seed=0)
    assert set(obs) == {"arm_joint_0", "arm_touch", "pair_0", "pair_1"}
    assert 0 <= obs["pair_0"] < 3
    assert env.observation_space.contains(obs)


def test_two_observations_of_one_name_are_an_error():
    clash = spaces.Dict({"a_b": BOX, "a": spaces.Dict({"b": BOX})})
    with pytest.raises(EnvError, match="duplicate observation name"):
        wrappers.NameObs(Spaces(clash, BOX))


def test_discrete_parts_become_one_multidiscrete():
    action = spaces.Dict(
        {
            "keys": spaces.MultiBinary(2),
            "move": spaces.Tuple((spaces.Discrete(3), spaces.Discrete(2, start=1))),
        }
    )
    inner = Spaces(BOX, action)
    env = wrappers.FlatActions(inner)
    assert env.action_space == spaces.MultiDiscrete([2, 2, 3, 2])
    env.step(np.array([1, 0, 2, 1]))
    got = inner.got[0]
    assert got["keys"].tolist() == [1, 0]
    assert got["move"] == (2, 2)
    assert action.contains(got)


def test_continuous_parts_become_one_box():
    action = spaces.Dict({"a": spaces.Box(0, 2, (1,)), "b": spaces.Box(-3, 3, (2, 1))})
    inner = Spaces(BOX, action)
    env = wrappers.FlatActions(inner)
    assert env.action_space.high.tolist() == [2, 3, 3]  # type: ignore[attr-defined]
    env.step(np.array([1, 2, 3], np.float32))
    assert action.contains(inner.got[0])


def test_mixed_actions_are_refused_with_a_remedy():
    mixed = spaces.Tuple((spaces.Discrete(2), BOX))
    with pytest.raises(EnvError, match="use only one kind"):
        wrappers.FlatActions(Spaces(BOX, mixed))


def test_every_episode_has_its_own_seed():
    seeds: list[int] = []

    class Heard(Counting):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            assert seed is not None
            seeds.append(seed)
            return super().reset(seed=seed, options=options)

    env = wrappers.Episodes(Heard(), seed=7, index=2)
    env.reset()
    env.reset()
    assert seeds == [derive(7, 2, 0) % 2**31, derive(7, 2, 1) % 2**31]


def test_only_success_and_logs_are_kept_and_only_at_the_end():
    class Telling(Counting):
        def step(self, action: Any) -> Any:
            info = {"is_success": np.array([True]), "log/x": 3, "other": "text"}
            return (*super().step(action)[:4], info)

    env = wrappers.Episodes(Telling(length=2), seed=0, index=0)
    env.reset()
    assert env.step(act(0))[4] == {}
    assert env.step(act(0))[4] == {"success": 1.0, "log/x": 3.0}


def pixels_episode(steps: int) -> wrappers.Episodes:
    env = wrappers.Episodes(Pixels(), seed=3, index=0)
    env.action_space.seed(0)
    env.reset()
    for _ in range(steps):
        env.step(env.action_space.sample())
    return env


@pytest.mark.parametrize("steps", [0, 9, 32])
def test_an_episode_is_replayed_from_its_actions(steps: int):
    env = pixels_episode(steps)
    state = env.get_state()
    other = wrappers.Episodes(Pixels(), seed=3, index=0)
    same, obs = other.set_state([state])
    assert same
    assert np.array_equal(obs, env.last_obs)
    assert other.ended == (steps == 32)


def test_an_ended_episode_is_followed_by_the_next_one_after_replay():
    env = pixels_episode(32)
    other = wrappers.Episodes(Pixels(), seed=3, index=0)
    other.set_state([env.get_state()])
    want = env.reset()[0]
    obs, reward, terminated, truncated, _ = other.step(0)
    assert np.array_equal(obs, want)
    assert (reward, terminated, truncated) == (0.0, False, False)


def test_replay_draws_only_the_last_frames():
    env = wrappers.Episodes(wrappers.FrameStack(Drawn(length=99), 2), seed=0, index=0, context=2)
    env.reset()
    for _ in range(20):
        env.step(act(0))
    other = wrappers.Episodes(wrappers.FrameStack(Drawn(length=99), 2), 0, 0, context=2)
    same, _ = other.set_state([env.get_state()])
    assert same
    assert other.unwrapped.drawn == 2
    assert other.unwrapped.drawing


def test_a_changed_environment_begins_a_new_episode():
    env = pixels_episode(5)
    other = wrappers.Episodes(Pixels(grid=8), seed=3, index=0)
    same, obs = other.set_state([env.get_state()])
    assert not same
    assert other.episode == 1
    assert np.array_equal(obs, other.last_obs)


def test_checksums_tell_observations_apart():
    a = {"x": np.zeros(3), "y": np.int64(1)}
    assert wrappers.checksum(a) == wrappers.checksum({"y": np.int64(1), "x": np.zeros(3)})
    assert wrappers.checksum(a) != wrappers.checksum({**a, "y": np.int64(2)})
