"""Every installed suite: spaces hold, and an episode is a function of seed and actions."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from dreamlab.envs import rendering, suites
from dreamlab.envs.check import Limits, _check_resume, _problems, _trace
from dreamlab.envs.vector import EnvConfig, Envs

FAST = {"fast_render": True}


def case(extra: str | None, suite: str, task: str, slow: bool = False, **options: Any) -> Any:
    marks = [pytest.mark.env(extra)] if extra else []
    marks += [pytest.mark.slow] if slow else []
    name = "-".join([suite, task, *(str(v) for v in options.values())])
    return pytest.param(suite, task, options, marks=marks, id=name)


CASES = [
    case(None, "dummy", "pixels"),
    case(None, "dummy", "mixed"),
    case(None, "pinpad", "three"),
    case(None, "pinpad", "eight"),
    case(None, "gym", "CartPole-v1"),
    case("atari", "atari", "pong"),
    case("atari", "atari", "montezuma_revenge", sticky=False, actions="needed"),
    case("atari", "gym", "ALE/Pong-v5"),
    case("dmc", "dmc", "walker_walk"),
    case("dmc", "dmc", "cup_catch", obs="both", **FAST),
    case("dmc", "dmc", "quadruped_run", slow=True, obs="vision", **FAST),
    case("crafter", "crafter", "reward"),
    case("minigrid", "minigrid", "MiniGrid-DoorKey-6x6-v0", obs="symbolic"),
    case("minigrid", "minigrid", "MiniGrid-DoorKey-6x6-v0", obs="partial"),
    case("minigrid", "minigrid", "MiniGrid-MemoryS7-v0", obs="full"),
    case("box2d", "gym", "LunarLander-v3"),
    case("box2d", "gym", "BipedalWalker-v3"),
    case("box2d", "gym", "CarRacing-v3"),
    case("box2d", "car_racing", "CarRacing-v3"),
    case("mujoco", "mujoco", "HalfCheetah-v5"),
    case("mujoco", "mujoco", "Hopper-v5", obs="both", **FAST),
    case("mujoco", "mujoco", "Reacher-v5", obs="vision", **FAST),
    case("memorymaze", "memorymaze", "9x9", slow=True),
    case("procgen", "procgen", "coinrun"),
    case("procgen", "procgen", "maze", mode="easy", num_levels=5),
    case("bsuite", "bsuite", "catch/0"),
    case("bsuite", "bsuite", "cartpole_noise/1"),
    case("bsuite", "bsuite", "memory_len/2"),
    case("metaworld", "metaworld", "reach-v3"),
    case("metaworld", "metaworld", "pick-place-v3", slow=True, obs="both", **FAST),
    case("pusht", "gym", "gym_pusht/PushT-v0"),
    case("pusht", "gym", "gym_pusht/PushT-v0", obs_type="pixels"),
    case("pusht", "pusht", "PushT-v0"),
    case("pusht", "pusht", "PushT-v0", obs="keypoints"),
    case("pusht", "pusht", "PushT-v0", obs="pixels", size=(64, 72)),
    case("robotics", "gym", "FetchReach-v4"),
    case("robotics", "gym", "PointMaze_UMaze-v3"),
    case("ogbench", "gym", "antmaze-medium-v0"),
    case("ogbench", "gym", "cube-single-singletask-v0", slow=True),
    case("ogbench", "gym", "visual-antmaze-medium-v0", slow=True),
    case("vizdoom", "gym", "VizdoomBasic-v1", frame_skip=4),
    case("popgym", "gym", "popgym-RepeatPreviousEasy-v0"),
]


@pytest.mark.parametrize(("suite", "task", "options"), CASES)
def test_observations_lie_in_their_space(suite: str, task: str, options: dict[str, Any]):
    env = suites.make(suite, task, options)
    env.action_space.seed(0)
    obs, info = env.reset(seed=0)
    assert isinstance(info, dict)
    assert not [f for f in _problems("reset", obs, env.observation_space) if f.level == "error"]
    for _ in range(3):
        obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        assert not [f for f in _problems("step", obs, env.observation_space) if f.level == "error"]
        assert np.isfinite(float(reward))
        for flag in (terminated, truncated):
            assert isinstance(flag, bool | np.bool_)
    env.close()


@pytest.mark.parametrize(("suite", "task", "options"), CASES)
def test_an_episode_is_a_function_of_its_seed_and_actions(
    suite: str, task: str, options: dict[str, Any]
):
    env = suites.make(suite, task, options)
    first = _trace(env, 1, 30)
    _trace(env, 2, 5)
    assert _trace(env, 1, 30) == first
    fresh = suites.make(suite, task, options)
    assert _trace(fresh, 1, 30) == first
    env.close()
    fresh.close()


@pytest.mark.parametrize(("suite", "task", "options"), CASES)
def test_a_stopped_episode_resumes_exactly(suite: str, task: str, options: dict[str, Any]):
    config = EnvConfig(task, suite, options)
    found = list(_check_resume(config, Limits(steps=16)))
    assert [f.level for f in found] == ["ok"], found


@pytest.mark.env("atari")
@pytest.mark.parametrize(("sticky", "repeat"), [(True, 4), (False, 1)])
def test_atari_counts_its_own_frames(sticky: bool, repeat: int):
    options = {"sticky": sticky, "repeat": repeat}
    envs = Envs(EnvConfig("pong", "atari", options, size=(64, 64), gray=True), seed=0)
    step = envs.reset()
    assert envs.frames_per_tick == repeat
    assert step.obs["image"].shape == (1, 64, 64, 1)
    envs.close()


def tasks_of(extra: str) -> list[str]:
    """Return every task of a suite that has a closed list of them."""
    if extra == "atari":
        from dreamlab.envs.suites.atari import ATARI_57

        return list(ATARI_57)
    if extra == "dmc":
        rendering.setup_gl(required=False)  # before dm_control is imported
        from dm_control import suite

        return [f"{domain}_{task}" for domain, task in suite.ALL_TASKS]
    if extra == "metaworld":
        from metaworld import ALL_V3_ENVIRONMENTS

        return list(ALL_V3_ENVIRONMENTS)
    from procgen.env import ENV_NAMES

    return list(ENV_NAMES)


@pytest.mark.slow
@pytest.mark.parametrize(
    "extra",
    [pytest.param(n, marks=pytest.mark.env(n)) for n in ("atari", "dmc", "metaworld", "procgen")],
)
def test_every_task_of_a_suite_is_a_function_of_seed_and_actions(extra: str):
    wrong = []
    for task in tasks_of(extra):
        env = suites.make(extra, task, {})
        first = _trace(env, 1, 20)
        _trace(env, 2, 20)
        if _trace(env, 1, 20) != first:
            wrong.append(task)
        env.close()
    assert wrong == []


@pytest.mark.env("mujoco")
@pytest.mark.parametrize("close", [True, False])
def test_a_collected_environment_leaves_the_pictures_of_others_alone(close: bool):
    options = {"obs": "vision", **FAST}
    gone = suites.make("mujoco", "Reacher-v5", options)
    gone.reset(seed=0)
    kept = suites.make("mujoco", "Reacher-v5", options)
    if close:
        gone.close()
    before = kept.reset(seed=0)[0]
    del gone  # which drew before, while the other draws now
    gc.collect()
    assert np.array_equal(kept.reset(seed=0)[0], before)
    kept.close()
