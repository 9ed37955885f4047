"""The ant's mazes."""

from __future__ import annotations

import numpy as np
import pytest

from dreamlab.core.errors import ConfigError
from dreamlab.envs import suites
from dreamlab.envs.check import Limits, _check_resume, _problems, _trace
from dreamlab.envs.suites.loconav import MAZES, layout
from dreamlab.envs.vector import EnvConfig


@pytest.mark.parametrize("name", MAZES)
def test_a_way_leads_from_the_start_to_the_goal(name: str):
    lines = layout(MAZES[name]).splitlines()
    assert len({len(line) for line in lines}) == 1
    grid = np.array([list(line) for line in lines])
    assert all(c.isdigit() for c in "".join((*grid[0], *grid[-1], *grid[:, 0], *grid[:, -1])))
    reached = grid == "P"
    for _ in range(grid.size):
        grown = np.zeros_like(reached)
        for axis in (0, 1):
            for shift in (1, -1):
                grown |= np.roll(reached, shift, axis)
        reached = reached | (grown & ~np.char.isdigit(grid))
    assert reached[grid == "G"].all()


def test_rooms_that_do_not_touch_have_a_wall_between_them():
    lines = layout(("G..", "##.", "P..")).splitlines()
    assert [line[2].isdigit() for line in lines[3:10]] == [False, *[True] * 5, False]


@pytest.mark.env("dmc")
def test_an_episode_is_a_function_of_its_seed_and_actions():
    env = suites.make("loconav", "ant_maze_s", {})
    obs, _ = env.reset(seed=1)
    assert not list(_problems("reset", obs, env.observation_space))
    assert obs["walker_egocentric_camera"].shape == (64, 64, 3)
    first = _trace(env, 1, 20)
    _trace(env, 2, 3)
    assert _trace(env, 1, 20) == first
    env.close()


@pytest.mark.slow
@pytest.mark.env("dmc")
def test_a_stopped_episode_resumes_exactly():
    found = list(_check_resume(EnvConfig("ant_maze_s", "loconav"), Limits(steps=8)))
    assert [f.level for f in found] == ["ok"], found


@pytest.mark.env("dmc")
def test_the_goal_once_touched_rewards_until_time_is_out():
    env = suites.make("loconav", "ant_maze_s", {"seconds": 0.2})
    env.reset(seed=0)
    still = np.zeros(8)
    assert env.step(still)[1] == 0.0
    goal = env.unwrapped.env.task._target_position
    env.unwrapped.walker.set_pose(env.unwrapped.env.physics, (*goal[:2], 0.75))
    rewards, truncated = [], False
    while not truncated:
        _, reward, terminated, truncated, info = env.step(still)
        rewards.append(reward)
        assert not terminated
    assert rewards[-1] == rewards[-2] == 1.0
    assert info["log/coverage"] >= 2
    env.close()


def test_an_unknown_maze_is_named():
    with pytest.raises(ConfigError, match="Did you mean 'ant_maze_s'"):
        suites.make("loconav", "ant_mazes", {})
