"""Nonsense is refused before anything is made: the option, its value and its limit are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from dreamlab import build
from dreamlab.cli import main
from dreamlab.config import choices, compose, load_config, to_yaml

DQN, PPO, DREAMER = "dqn_cartpole", "ppo_cartpole", "dreamer_cartpole"

REFUSED = [
    (PPO, "workflow.gamma=2", "workflow.gamma: must be between 0 and 1, got 2"),
    (PPO, "workflow.optimizer.lr=-1", "workflow.optimizer.lr: must be at least 0, got -1"),
    (PPO, "workflow.optimizer.lr=nan", "workflow.optimizer.lr: must be a finite number, got nan"),
    (PPO, "workflow.epochs=0", "workflow.epochs: must be at least 1, got 0"),
    (PPO, "workflow.network.hidden=[0]", "workflow.network.hidden[0]: must be between 1 and 65536"),
    (
        PPO,
        "workflow.network={_target_: transformer, dim: 65}",
        "dim=65 must be a multiple of heads=4",
    ),
    (PPO, "env.num_envs=0", "env.num_envs: must be between 1 and 65536, got 0"),
    (PPO, "env.repeat=0", "env.repeat: must be between 1 and 1000, got 0"),
    (PPO, "env.time_limit=0", "env.time_limit: must be at least 1, got 0"),
    (PPO, "env.size=[0,64]", "env.size[0]: must be between 1 and 4096, got 0"),
    (PPO, "env.normalize_obs={clip: -1}", "env.normalize_obs.clip: must be above 0, got -1"),
    (PPO, "training.total_frames=-5", "training.total_frames: must be at least 1, got -5"),
    (PPO, "training.accumulate=0", "training.accumulate: must be at least 1, got 0"),
    (
        PPO,
        "training.phases.0.collect_ticks=0",
        "training.phases[0].collect_ticks: must be at least 1",
    ),
    (PPO, "training.phases.0.duration_steps=0", "duration_steps: must be at least 1, got 0"),
    (PPO, "training.phases.0.workflow_hooks=[]", "workflow_hooks: must have at least 1 value"),
    (PPO, "seed=-1", "seed: must be between 0 and 4294967295, got -1"),
    (PPO, "device=zzz", "device: there is no device 'zzz'"),
    (PPO, "precision=zzz", "precision: there is no choice 'zzz'"),
    (PPO, "threads=-1", "threads: must be between 0 and 1024, got -1"),
    (PPO, "run.on_memory_shortage=zzz", "run.on_memory_shortage: there is no choice 'zzz'"),
    (PPO, "eval.episodes=0", "eval.episodes: must be at least 1, got 0"),
    (PPO, "log.every_frames=-1", "log.every_frames: must be at least 0, got -1"),
    (PPO, "checkpoint.every_s=-1", "checkpoint.every_s: must be at least 0, got -1"),
    (PPO, "checkpoint.keep=1", "checkpoint.keep: must be at least 2, got 1"),
    (PPO, "report.length=1", "report.length: must be at least 2, got 1"),
    (PPO, "watch.memory_share=90", "watch.memory_share: must be above 0 and at most 1, got 90"),
    (PPO, "env.suite=zzz", "env.suite: there is no suite 'zzz'"),
    (DQN, "training.phases.1.train_ratio=nan", "train_ratio: must be a finite number, got nan"),
    (DQN, "training.phases.1.train_ratio=0", "train_ratio: must be above 0, got 0"),
    (DQN, "buffers.replay.capacity=1", "buffers.replay.capacity: must be at least 2, got 1"),
    (
        DQN,
        "workflow.readout={_target_: c51, low: 3, high: 2}",
        "workflow.readout: low=3 must be below high=2",
    ),
    (
        DQN,
        "buffers.replay.sampler={_target_: prioritised, beta: 2}",
        "sampler.beta: must be between",
    ),
    (DREAMER, "workflow.rssm.deter=100", "workflow.rssm: deter=100 must be a multiple of blocks="),
    (DREAMER, "workflow.encoder.mults=[]", "workflow.encoder.mults: must have at least 1 value"),
    (DREAMER, "workflow.scales.rec=-1", "workflow.scales.rec: must be at least 0, got -1"),
    # what could never train
    (DQN, "buffers.replay.capacity=2", "buffers.replay: length=2 must be below capacity=2"),
    (DQN, "buffers.replay.capacity=40", "fits 39 windows of length=2, but a batch has 8192"),
    (DQN, "buffers.replay.context=2", "buffers.replay: context=2 must be below length=2"),
    (DQN, "buffers.replay.min_steps=1_000_000", "min_steps=1000000 is more than capacity="),
    (DQN, "buffers.replay.min_steps=60_000", "but the first batch needs 60,000"),
    (DQN, "env.num_envs=50_000", "stores 2 steps of each of 50000 environments"),
    (DQN, "training.total_frames=500", "leaves nothing for phase 'learn'"),
    (PPO, "training.phases.0.collect_ticks=5", "length=32 must be a multiple of collect_ticks=5"),
    (PPO, "training.phases.0.train_ratio=1", "a rollout is sampled once, when full"),
]


@pytest.mark.parametrize(("name", "argument", "message"), REFUSED)
def test_nonsense_is_refused_before_anything_is_made(name, argument, message, tmp_path, capsys):
    folder = tmp_path / "r"
    assert main(["train", f"+experiment={name}", argument, f"run.dir={folder}"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("ConfigError: ")
    assert message in err
    assert not folder.exists()


@pytest.mark.parametrize("argument", ["repeat=0", "noops=-1", "sticky=maybe", "lives=nine"])
def test_options_of_a_suite_are_checked_before_anything_is_made(argument, tmp_path, capsys):
    folder, key = tmp_path / "r", argument.split("=")[0]
    given = ["+experiment=dqn_pong", f"env.options.{argument}", f"run.dir={folder}"]
    assert main(["train", *given]) == 2
    assert f"env.options.{key}: " in capsys.readouterr().err
    assert not folder.exists()


def test_options_of_a_dummy_are_checked_too(tmp_path, capsys):
    for options, message in (
        ("{length: 0}", "env.options.length: must be at least 1, got 0"),
        ("{lenght: 1}", "Did you mean 'length'?"),
        ("{grid: 20}", "env.options.grid: must be at most size=16, got 20"),
    ):
        given = ["+experiment=ppo_cartpole", "env=dummy", "env.id=pixels", f"env.options={options}"]
        assert main(["train", *given, f"run.dir={tmp_path / 'r'}"]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", choices("experiment"))
def test_every_experiment_of_ours_can_train_tiny_or_whole(name: str):
    for extra in ([], ["+preset=debug"]):
        build.check(load_config(compose([f"+experiment={name}", *extra])))


# -- numbers of the verbs -------------------------------------------------------------------------

NUMBERS = [
    (["eval", "X", "--episodes", "0"], "eval: argument --episodes: must be at least 1, got 0"),
    (["eval", "X", "--episodes", "many"], "argument --episodes: expected int, got 'many'"),
    (["eval", "X", "--episodes", "1.5"], "argument --episodes: expected int, got 1.5"),
    (["eval", "X", "--seed", "-1"], "argument --seed: must be between 0 and 4294967295, got -1"),
    (["verify", "X", "--frames", "-1"], "argument --frames: must be at least 0, got -1"),
    (["debug", "--frames", "-1"], "argument --frames: must be at least 1, got -1"),
    (["logs", "X", "--last", "-3"], "argument --last: must be at least 0, got -3"),
    (["list", "--limit", "-1"], "argument --limit: must be at least 1, got -1"),
    (["cleanup", "--keep-best", "-1"], "argument --keep-best: must be at least 0, got -1"),
    (["cleanup", "--keep-recent", "x"], "argument --keep-recent: expected int, got 'x'"),
    (["compare", "X", "--at", "-1"], "argument --at: must be at least 1, got -1"),
    (["compare", "X", "--at", "nan"], "argument --at: expected int, got nan"),
    (["watch", "--every", "0"], "argument --every: must be above 0, got 0"),
    (["watch", "--every", "inf"], "argument --every: must be a finite number, got inf"),
    (["export-policy", "X", "--batch", "0"], "argument --batch: must be at least 1, got 0"),
    (["export-policy", "X", "--tolerance", "-1"], "argument --tolerance: must be above 0, got -1"),
    (["eval"], "eval: argument FOLDER is missing"),
    (["list", "--limt", "3"], "list: there is no option '--limt'. Did you mean '--limit'?"),
    (["train", "--cfg", "hydra"], "train: argument --cfg: only `--cfg job` is supported"),
    (["export-policy", "X", "--format", "onx"], "export-policy: argument --format: 'onx' is not"),
    (["show", "X", "Y"], "show: Got unexpected extra argument (Y)"),
    (["logs", "X", "--last"], "logs: Option '--last' requires an argument."),
    (["tag", "X", "--remove"], "tag: --remove needs a tag"),
    (["tag", "X", "--remove", "--json"], "tag: --remove needs a tag"),
    (["doctor", "now"], "doctor: Got unexpected extra argument (now)"),
    (["completion", "csh"], "completion: argument"),
    (["trian"], "there is no command 'trian'. Did you mean 'train'?"),
    (["--verson"], "dreamlab: there is no option '--verson'. Did you mean '--version'?"),
]


@pytest.mark.parametrize(("arguments", "message"), NUMBERS, ids=[" ".join(a) for a, _ in NUMBERS])
def test_a_number_of_a_verb_has_limits(arguments, message, capsys, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1


def test_a_check_of_no_environment_is_one_message(tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text("# @package _global_\nenv:\n")
    assert main(["check", str(tmp_path / "mine.yaml")]) == 2
    assert "env: expected a mapping of EnvConfig options, got None" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argument", ["seed=[", "seed=-1", "workflow.optimizer.lr=nan", "workflow=null"]
)
def test_options_of_a_second_run_are_read_or_refused(argument, tmp_path, capsys):
    config = load_config(compose(["+experiment=ppo_cartpole"]))
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert main(["verify", str(tmp_path), argument]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_length_of_a_resumed_run_has_limits(tmp_path, capsys):
    config = load_config(compose(["+experiment=ppo_cartpole"]))
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    for value, message in (("0", "must be at least 1, got 0"), ("\u00b2", "only training.total")):
        assert main(["resume", str(tmp_path), f"training.total_frames={value}"]) == 2
        assert message in capsys.readouterr().err
