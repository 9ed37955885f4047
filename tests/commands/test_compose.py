"""What is composed of files and words: the user's words win."""

from __future__ import annotations

import pytest

from dreamlab import train
from dreamlab.config import compose, load_config, read_yaml, to_yaml
from tests.helpers import config_of, open_loop

# -- tiny -----------------------------------------------------------------------------------------


def test_tiny_leaves_what_was_typed():
    config = config_of(
        "+experiment=dreamer_cartpole", "+preset=debug", "workflow.rssm.deter=24",
        "workflow.imagine=9",
        "buffers.replay.batch=32", "training.phases.0.collect_ticks=40",
    )  # fmt: skip
    options = config.workflow.config
    assert (options.rssm.config.deter, options.imagine) == (24, 9)
    assert options.rssm.config.hidden == 8  # nobody asked for another
    assert config.buffers["replay"].config.batch == 32
    assert config.buffers["replay"].config.length == 16
    phase = config.training.phases[0]
    assert phase.collect_ticks == 40
    assert phase.train_ratio == 64 * 16 / 17  # as many updates per decision


@pytest.mark.parametrize(
    ("word", "hidden"),
    [
        ("workflow.network.hidden=[20]", (20,)),
        ("workflow.network={hidden: [20]}", (20,)),
        ("workflow.network={act: relu}", (8, 8)),
    ],
)
def test_tiny_leaves_the_options_of_a_part_that_were_typed(word, hidden):
    config = config_of("+experiment=ppo_cartpole", "tiny=true", word)
    assert config.workflow.config.network.config.hidden == hidden


def test_tiny_leaves_phases_and_durations_that_were_typed():
    words = ("+experiment=dqn_cartpole", "+preset=debug", "training.phases.0.duration_steps=700")
    first, last = config_of(*words).training.phases
    assert first.duration_steps == 700
    assert last.collect_ticks == 16
    assert config_of(*words, "training.total_frames=900").training.total_frames == 900


def test_a_tiny_run_is_read_as_it_was_written(tmp_path):
    config = config_of("+experiment=ppo_cartpole", "tiny=true", "workflow.network.hidden=[20]")
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    again = load_config(read_yaml(tmp_path / "config.yaml"))
    assert to_yaml(again) == to_yaml(config)
    (tmp_path / "mine.yaml").write_text("# @package _global_\n" + to_yaml(config))
    assert to_yaml(config_of(str(tmp_path / "mine.yaml"))) == to_yaml(config)


@pytest.mark.parametrize("name", ["dreamer_v1_cartpole_swingup", "dreamer_v2_cartpole_swingup"])
def test_the_debug_preset_fills_a_replay_before_it_learns_offline(name, tmp_path):
    # Pendulum with the experiment's four environments and two frames per decision
    env = ("env=gym", "env.id=Pendulum-v1", "env.num_envs=4", "env.repeat=2")
    short = ("training.total_frames=400", "eval.episodes=1", "device=cpu")
    loop = open_loop(tmp_path / "r", f"+experiment={name}", "+preset=debug", *env, *short)
    assert loop.run() == "finished"
    assert loop.counters.updates > 8


def test_a_suite_that_repeats_actions_by_itself_fills_a_replay_too():
    words = ("+experiment=dreamer_v2_cartpole_swingup", "env=atari", "tiny=true", "env.num_envs=3")
    fill = config_of(*words).training.phases[0]
    assert fill.duration_steps == 3 * 4 * (16 + 2)
    slow = config_of(*words, "env.options.repeat=8").training.phases[0]
    assert slow.duration_steps == 3 * 8 * (16 + 2)


# -- environments ---------------------------------------------------------------------------------


def test_a_chosen_environment_replaces_the_experiments():
    env = compose(["+experiment=dqn_pong", "env=minigrid"])["env"]
    assert env == {"suite": "minigrid", "id": "MiniGrid-DoorKey-6x6-v0", "num_envs": 4}


def test_what_an_experiment_says_of_its_training_stays():
    env = compose(["+experiment=ppo_halfcheetah", "env=dmc", "env.num_envs=3"])["env"]
    assert env == {
        "suite": "dmc", "id": "walker_walk", "repeat": 2, "num_envs": 3, "normalize_obs": {},
        "normalize_reward": {},
    }  # fmt: skip


def test_what_was_typed_wins_over_a_chosen_environment():
    words = ["+experiment=dqn_pong", "env.size=[32,32]", "env=dummy", "env.options.length=9"]
    env = compose([*words, "env.id=pixels"])["env"]
    assert env == {
        "suite": "dummy", "id": "pixels", "num_envs": 4, "size": [32, 32], "options": {"length": 9},
    }  # fmt: skip


def test_without_a_choice_the_experiments_environment_stays():
    assert compose(["+experiment=dqn_pong"])["env"]["frame_stack"] == 4
    env = compose(["+experiment=dqn_cartpole", "env=Acrobot-v1"])["env"]
    assert env == {"suite": "gym", "id": "Acrobot-v1"}


def test_an_experiment_trains_on_a_chosen_environment(tmp_path):
    words = ("+experiment=ppo_cartpole", "env=dummy", "tiny=true", "training.total_frames=80")
    config = config_of(*words, f"run.dir={tmp_path / 'r'}", "log.terminal=off", "device=cpu")
    assert train.train(config)[1] == "finished"
