"""What is composed of files and words: the user's words win."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dreamlab import training
from dreamlab.config import compose, load_config, read_yaml, to_yaml
from dreamlab.core.config import Part, dump
from dreamlab.core.errors import ConfigError
from dreamlab.core.optim import optimizer_part
from dreamlab.workflows.dreamer_v3 import DreamerV3Config
from dreamlab.workflows.random import RandomConfig
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


# -- one rule: options merge, and naming a class begins anew ---------------------------------------

FILE = """# @package _global_
defaults: [dreamer_cartpole, _self_]
workflow: {workflow}
"""
GIVEN = {"lr": 1e-3, "warmup_steps": 50, "agc": 0.3}  # by the experiment, and by the code


def optimizer(folder: Path, in_file: str, *words: str) -> tuple[dict[str, Any], Any]:
    """Return what an optimizer has of a file on top of another, and of words on top of that."""
    (folder / "mine.yaml").write_text(FILE.replace("{workflow}", in_file))
    found = config_of(str(folder / "mine.yaml"), *words).workflow.config.optimizer
    return {k: getattr(found.config, k) for k in GIVEN}, found.config.schedule


def schedule(kind: str, **options: Any) -> Part:
    return optimizer_part("laprop", schedule={"_target_": kind, **options}).config.schedule


def test_options_merge_in_files_and_words_alike(tmp_path):
    want = (GIVEN, schedule("linear", final=0.2))
    assert optimizer(tmp_path, "{optimizer: {schedule: {final: 0.2}}}") == want
    for word in (
        "workflow.optimizer.schedule.final=0.2",
        "workflow.optimizer.schedule={final: 0.2}",
        "workflow.optimizer={schedule: {final: 0.2}}",
        "workflow={optimizer: {schedule: {final: 0.2}}}",
    ):
        assert optimizer(tmp_path, "{}", word) == want


@pytest.mark.parametrize("named", ["linear", "{_target_: linear}"])
def test_naming_a_class_begins_anew_in_files_and_words_alike(tmp_path, named):
    want = (GIVEN, schedule("linear"))
    assert optimizer(tmp_path, f"{{optimizer: {{schedule: {named}}}}}") == want
    for word in (f"optimizer.schedule={named}", f"optimizer={{schedule: {named}}}"):
        assert optimizer(tmp_path, "{}", f"workflow.{word}") == want
    assert optimizer(tmp_path, "{}", "workflow.optimizer.schedule._target_=linear") == want


@pytest.mark.parametrize("option", ["schedule.final=0.3", "schedule={final: 0.3}"])
def test_options_after_a_name_are_those_of_what_it_names(tmp_path, option):
    want = (GIVEN, schedule("cosine", final=0.3))
    name, more = "workflow.optimizer.schedule=cosine", f"workflow.optimizer.{option}"
    assert optimizer(tmp_path, "{}", name, more) == want
    assert optimizer(tmp_path, "{}", "workflow={optimizer: {schedule: cosine}}", more) == want
    assert optimizer(tmp_path, "{optimizer: {schedule: cosine}}", more) == want


def test_the_same_holds_for_the_workflow_and_for_buffers():
    words = ("+experiment=dqn_cartpole", "buffers.replay={_target_: rollout, length: 9}")
    assert compose(words)["buffers"]["replay"] == {"_target_": "rollout", "length": 9}
    target = "dreamlab.workflows.random.Random"
    for word in (f"workflow={target}", f"workflow={{_target_: {target}}}"):
        found = load_config(compose(["+experiment=dqn_cartpole", word])).workflow
        assert (found.target, found.config) == (target, RandomConfig())


def test_an_entry_of_a_list_is_changed_by_its_number_and_a_removed_option_is_gone():
    words = ("+experiment=dreamer_pixels", "workflow.encoder.mults.1=3", "~workflow.actor")
    found = config_of(*words).workflow.config
    assert (found.encoder.config.mults, found.actor.config.layers) == ((2, 3), 3)


def test_what_an_interpolation_stands_for_is_found_in_parts_too(tmp_path):
    text = FILE.replace("{workflow}", "{rssm: {hidden: '${workflow.rssm.deter}'}}")
    (tmp_path / "mine.yaml").write_text(text)
    found = config_of(str(tmp_path / "mine.yaml"), "workflow.rssm.deter=48").workflow.config
    assert (found.rssm.config.hidden, found.rssm.config.deter) == (48, 48)


# -- sizes ----------------------------------------------------------------------------------------


def test_a_size_typed_wins_over_that_of_the_experiment_and_over_tiny():
    for more in ([], ["tiny=true"]):
        c = config_of("+experiment=dreamer_minigrid", "workflow.size=25m", *more).workflow.config
        assert (c.size, c.rssm.config.deter, c.actor.config.units) == ("25m", 3072, 384)
    assert c.rssm.config.stoch == 4  # of tiny: a size says nothing of it
    c = config_of("+experiment=dreamer_minigrid", "workflow.size=25m", "workflow.rssm.deter=64")
    assert (c.workflow.config.rssm.config.deter, c.workflow.config.rssm.config.hidden) == (64, 384)


def test_a_size_without_effect_is_refused():
    whole = dump(config_of("+experiment=dreamer_minigrid"))
    whole["workflow"]["size"] = "50m"  # every number of 12m is written out
    with pytest.raises(ConfigError, match=r"workflow: size=50m has no effect"):
        load_config(whole)
    with pytest.raises(ValueError, match="size=1m has no effect"):
        DreamerV3Config(size="1m")  # a size stands for its options where it is loaded


def test_tiny_shrinks_the_usual_parts_of_a_configuration_that_was_written_out(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "# @package _global_\n" + to_yaml(config_of("+experiment=dreamer_cartpole"))
    )
    found = config_of(str(tmp_path / "mine.yaml"), "tiny=true").workflow.config
    assert found == config_of("+experiment=dreamer_cartpole", "tiny=true").workflow.config


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
    assert training.train(config)[1] == "finished"
