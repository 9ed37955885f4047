"""What could never train is refused; what can, if only just, is not."""

from __future__ import annotations

from typing import Any

import pytest

from dreamlab.core.config import Part
from dreamlab.core.errors import ConfigError
from dreamlab.core.phase import Phase
from dreamlab.data.source import Buffer
from dreamlab.engine.feasible import check_feasible, check_windows
from dreamlab.envs.vector import EnvConfig
from dreamlab.workflows.dqn import DQN
from dreamlab.workflows.mpc import MPC
from dreamlab.workflows.tdmpc import TDMPC
from dreamlab.workflows.tdmpc2 import TDMPC2
from dreamlab.workflows.tdmpc_square import TDMPCSquare
from tests.helpers import open_loop

COLLECT, LEARN = ("collect",), ("collect", "update_controller")


def replay(**options: Any) -> dict[str, Part]:
    node = {"capacity": 1_000, "batch": 4, "length": 8, **options}
    return {"replay": Part.load("replay", node, "dreamlab.data", Buffer)}


def rollout(length: int) -> dict[str, Part]:
    return {"replay": Part.load("rollout", {"length": length}, "dreamlab.data", Buffer)}


def learn(**options: Any) -> Phase:
    return Phase("learn", options.pop("workflow_hooks", LEARN), **options)


def check(phases: list[Phase], buffers: dict[str, Part], total: int | None = None, **env: Any):
    check_feasible(phases, total, buffers, EnvConfig(**env))


def test_a_replay_must_hold_a_window_of_each_environment():
    check([learn(duration_steps=500)], replay(capacity=36), num_envs=4)
    with pytest.raises(ConfigError, match="stores 8 steps of each of 4 environments"):
        check([learn(duration_steps=500)], replay(capacity=35), num_envs=4)


def test_a_replay_must_hold_as_many_windows_as_a_batch_has():
    check([learn(duration_steps=500)], replay(capacity=19, batch=12))
    with pytest.raises(ConfigError, match="fits 12 windows of length=8, but a batch has 13"):
        check([learn(duration_steps=500)], replay(capacity=19, batch=13))


@pytest.mark.parametrize(("frames", "enough"), [(100, True), (99, False)])
def test_a_phase_must_outlast_the_filling(frames: int, enough: bool):
    for phases, total in (
        ([learn(duration_steps=frames)], None),
        ([learn(duration_steps=10_000)], frames),
        ([Phase("fill", COLLECT, duration_steps=50), learn(duration_steps=frames - 50)], None),
        ([Phase("fill", COLLECT, duration_cycles=50), learn(duration_steps=frames - 50)], None),
    ):
        if enough:
            check(phases, replay(min_steps=100), total)
        else:
            with pytest.raises(ConfigError, match="but the first batch needs 100"):
                check(phases, replay(min_steps=100), total)


def test_frames_that_are_repeated_are_no_decisions():
    check([learn(duration_steps=199)], replay(min_steps=100), repeat=2)
    with pytest.raises(ConfigError, match="holds 99 steps"):
        check([learn(duration_steps=198)], replay(min_steps=100), repeat=2)


def test_a_phase_ends_with_a_whole_collection():
    check([learn(duration_steps=60, collect_ticks=64)], replay(min_steps=60))
    check([learn(duration_steps=60, collect_ticks=64)], replay(min_steps=64))


def test_the_length_of_updates_cannot_be_told_and_is_let_through():
    check([learn(duration_updates=10)], replay(min_steps=500))


def test_an_offline_phase_needs_what_was_collected_before():
    fill = Phase("fill", COLLECT, duration_steps=100)
    wake = learn(workflow_hooks=("update_controller",), type="offline", duration_updates=5)
    check([fill, wake], replay(min_steps=50))
    with pytest.raises(ConfigError, match=r"phase 'learn': it ends when buffers\.replay holds 0"):
        check([wake, fill], replay())


def test_a_training_that_ends_before_its_first_update_is_refused():
    phases = [Phase("fill", COLLECT, duration_steps=1_000), learn(duration_steps=9_000)]
    with pytest.raises(ConfigError, match="ends before phase 'learn' starts"):
        check(phases, replay(), 800)
    check(phases, replay(), 1_200)


def test_a_curriculum_may_be_cut_short_after_its_first_update():
    phases = [learn(duration_steps=500), Phase("more", LEARN, duration_cycles=10)]
    check(phases, replay(), 300)


def test_what_learns_nothing_on_purpose_is_let_through():
    check([Phase("look", ("evaluate",), type="eval_only", duration_cycles=1)], replay())
    check([Phase("fill", COLLECT, duration_steps=10)], replay(min_steps=500))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"collect_ticks": 5}, "length=32 must be a multiple of collect_ticks=5"),
        ({"collect_ticks": 64}, "length=32 must be a multiple of collect_ticks=64"),
        ({"train_ratio": 1.0}, "a rollout is sampled once"),
        ({"workflow_hooks": COLLECT}, "a rollout is sampled once"),
    ],
)
def test_a_rollout_is_filled_exactly_and_used_once(options: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        check([learn(duration_steps=500, **options)], rollout(32))
    check([learn(duration_steps=500, collect_ticks=16)], rollout(32))


def test_what_is_just_enough_does_train(tmp_path):
    """The bound is the loop's own: one frame fewer would draw no batch."""
    small = ("+experiment=sac_pendulum", "tiny=true", "device=cpu", "eval.episodes=1",
             "eval.video=false", "buffers.replay.min_steps=100")  # fmt: skip
    phase = "training.phases=[{name: learn, duration_steps: 100, train_ratio: 16, workflow_hooks: "
    hooks = "[collect, update_controller]}]"
    loop = open_loop(tmp_path / "r", *small, "tiny=false", phase + hooks)
    loop.run()
    assert loop.counters.updates > 0
    with pytest.raises(ConfigError, match="no update would happen"):
        open_loop(tmp_path / "s", *small, "tiny=false", (phase + hooks).replace("100", "99"))


def test_frames_are_those_of_all_processes_and_steps_those_of_each():
    phases = [Phase("fill", ("collect",), duration_steps=80), learn(duration_steps=900)]
    for processes in (1, 2):
        check_feasible(phases, 160, replay(), EnvConfig(), processes)
    filled = [learn(duration_steps=100)]
    check_feasible(filled, None, replay(min_steps=50), EnvConfig(), 2)
    with pytest.raises(ConfigError, match="holds 34 steps, but the first batch needs 50"):
        check_feasible(filled, None, replay(min_steps=50), EnvConfig(), 3)


@pytest.mark.parametrize("workflow", [TDMPC, TDMPC2, TDMPCSquare])
def test_dynamics_are_not_rolled_out_from_one_episode_into_the_next(workflow):
    phases = [learn(duration_steps=500)]
    check_windows(phases, replay(windows="inside"), workflow)
    check_windows(phases, replay(windows="transitions", length=2), workflow)
    check_windows(phases, replay(), DQN)  # it masks what crosses
    for windows in ("across", "transitions"):
        with pytest.raises(ConfigError, match=r"'learn': buffers\.replay: .* use windows: inside"):
            check_windows(phases, replay(windows=windows), workflow)
    check_windows([learn(workflow_hooks=COLLECT)], replay(), workflow)  # nothing is learnt from it


@pytest.mark.parametrize("workflow", [TDMPC, TDMPC2, MPC])
def test_a_window_of_one_step_has_no_transition(workflow):
    short = replay(windows="inside", length=1)
    with pytest.raises(ConfigError, match=r"length=1: \w+ needs windows of at least 2 steps"):
        check_windows([learn(duration_steps=500)], short, workflow)
