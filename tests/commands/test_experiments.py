"""Experiments by their names: listed, described, chosen with one word."""

from __future__ import annotations

import pytest

from dreamlab.cli import main
from dreamlab.config import compose
from dreamlab.config_files import choices, experiments
from dreamlab.core.errors import ConfigError

PPO = "+experiment=ppo_cartpole"


def test_every_experiment_says_what_it_is():
    for experiment in experiments():
        assert len(experiment.about.split()) >= 3, f"{experiment.name}.yaml: no comment at the top"
        assert experiment.env, experiment.name


@pytest.mark.slow
def test_the_environment_that_is_listed_is_the_one_that_is_composed():
    for experiment in experiments():
        env = compose([experiment.name])["env"]
        assert experiment.env.split()[-1] == env["id"], experiment.name


def test_train_alone_lists_them_one_line_each(capsys):
    assert main(["train"]) == 0
    title, *lines = capsys.readouterr().out.splitlines()
    assert title.split() == ["experiment", "environment"]
    assert [line.split()[0] for line in lines] == choices("experiment")
    row = next(line for line in lines if line.startswith("ppo_cartpole "))
    assert row.split()[:4] == ["ppo_cartpole", "CartPole-v1", "PPO", "on"]


def test_a_name_is_an_experiment():
    assert compose(["ppo_cartpole", "seed=3"]) == compose([PPO, "seed=3"])
    assert compose(["seed=3", "ppo_cartpole"]) == compose([PPO, "seed=3"])
    assert compose(["ppo_cartpole", "+preset=debug"]) == compose([PPO, "+preset=debug"])


@pytest.mark.parametrize("verb", ["train", "plan", "debug"])
def test_a_name_that_is_none_names_the_nearest(verb, capsys):
    assert main([verb, "ppo_cartpol"]) == 2
    err = capsys.readouterr().err
    assert "there is no experiment 'ppo_cartpol'. Did you mean 'ppo_cartpole'?" in err
    assert "a YAML file or key=value" in err


@pytest.mark.parametrize("word", ["seed", "", "+seed", "a b", "x" * 20_000, "\x1b[2J"])
def test_a_word_that_is_nothing_is_refused(word):
    with pytest.raises(ConfigError) as error:
        compose([PPO, word])
    assert len(str(error.value).splitlines()[0]) < 300


def test_a_sweep_takes_a_name_too(tmp_path, capsys):
    file = tmp_path / "mine.yaml"
    file.write_text(f"dir: {tmp_path / 'sweep'}\nparameters: {{seed: [1, 2]}}\n")
    assert main(["sweep", str(file), "random_cartpole", "--dry-run"]) == 0
    assert capsys.readouterr().out.count("random_cartpole") >= 2
