"""The comparison with peers compares like with like, and says how it came out."""

from __future__ import annotations

import importlib

import pytest

from dreamlab.config import compose, load_config
from tests.benchmarks.test_gpu_learning import BENCHMARKS


@pytest.fixture
def command(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("vs_peers")


@pytest.fixture
def peers(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("peers")


def test_ppo_is_given_what_ours_has(peers):
    c, theirs = load_config(compose(["+experiment=ppo_cartpole"])), peers.OPTIONS["ppo"]
    w = c.workflow.config
    assert theirs["n_steps"] == c.buffers["rollout"].config.length
    assert (theirs["batch_size"], theirs["n_epochs"]) == (w.minibatch, w.epochs)
    assert (theirs["gamma"], theirs["gae_lambda"]) == (w.gamma, w.returns.config.lam)
    assert theirs["learning_rate"](0.5) == 0.5 * w.optimizer.config.lr
    assert theirs["clip_range"](0.5) == 0.5 * w.clip
    assert theirs["ent_coef"] == w.entropy_coef
    assert w.anneal_clip


def test_dqn_is_given_what_ours_has(peers):
    c, theirs = load_config(compose(["+experiment=dqn_cartpole"])), peers.OPTIONS["dqn"]
    w, replay, phase = c.workflow.config, c.buffers["replay"].config, c.training.phases[-1]
    assert (theirs["batch_size"], theirs["gamma"]) == (w.minibatch, w.gamma)
    assert theirs["learning_rate"] == w.optimizer.config.lr
    assert theirs["train_freq"] == phase.collect_ticks
    replayed = phase.collect_ticks * phase.train_ratio / replay.length
    assert theirs["gradient_steps"] * theirs["batch_size"] == replayed == replay.batch
    assert theirs["buffer_size"] == replay.capacity
    assert theirs["policy_kwargs"]["net_arch"] == list(w.network.config.hidden)
    assert theirs["exploration_final_eps"] == w.epsilon_final
    frames = sum(p.duration_steps for p in c.training.phases)
    assert theirs["exploration_fraction"] * frames == w.epsilon_decisions


def test_sac_is_given_what_ours_has(peers):
    c = load_config(compose(["+experiment=sac_pendulum"]))
    assert peers.OPTIONS["sac"]["learning_rate"] == c.workflow.config.optimizer.config.lr


def test_the_last_lines_are_ratios_of_ours_to_theirs(command):
    run = {"speed": 300.0, "warm_up_s": 7.0, "shares": {"collect": 0.25, "update": 0.75}}
    slow, fast = {**run, "speed": 100.0}, {**run, "speed": 240.0}
    threads = {"sb3": 1, "sbx": 2}
    one = {"compiled": run, "plain": fast, "sb3": slow, "sbx": fast, "threads": threads}
    assert command.ratios({"ppo": one, "sac": one}, "compiled", "sb3") == "sb3 ppo=3.00 sac=3.00"
    assert command.ratios({"dqn": one}, "plain", "sbx") == "sbx dqn=1.00"
    row = command.table({"ppo": one})[-1]
    assert "| 100 (1 thread) | 240 (2 threads) | 7 / 7 / 7 / 7 | 25% / 75% / 0% |" in row


def test_a_python_that_is_not_there_is_named(command, tmp_path):
    with pytest.raises(SystemExit, match="no_python"):
        command.peer_python(tmp_path / "no_python")
