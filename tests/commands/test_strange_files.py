"""A YAML file from a hub that is typed: nothing of it runs that was not trusted."""

from __future__ import annotations

from pathlib import Path

import pytest

from dreamlab.cli import main
from tests.interop.test_dreamerv3 import weights_of
from tests.interop.test_import import ENV, SMALL, agent_for, write_pickle

QUICK = (
    "tiny=true", "training.total_frames=60", "eval.episodes=1", "eval.every_frames=0",
    "eval.video=false", "device=cpu", "log.terminal=off",
)  # fmt: skip
HEAD = "# @package _global_\n"


@pytest.fixture
def hub(tmp_path) -> Path:
    """A folder as a hub's client leaves it in its cache."""
    folder = tmp_path / "models--their--name" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    return folder


def evil(hub: Path, text: str) -> str:
    (hub / "mine.yaml").write_text(HEAD + text)
    return str(hub / "mine.yaml")


@pytest.mark.parametrize("verb", ["train", "plan", "debug", "check"])
@pytest.mark.parametrize("form", ["{}", "+experiment={}"])
def test_other_code_needs_trust(verb, form, hub, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "their_code.py").write_text("open('ran', 'w')\n")
    given = form.format(evil(hub, "env: {id: 'their_code:Env'}\n"))
    assert main([verb, given, "ppo_cartpole" if verb == "check" else "seed=1"]) == 2
    err = capsys.readouterr().err
    assert "their_code" in err
    assert "add --trust-code" in err
    assert not (tmp_path / "ran").exists()


def test_a_command_for_the_shell_needs_trust(hub, tmp_path, capsys):
    given = evil(hub, f"watch: {{command: 'touch {tmp_path / 'ran'}'}}\n")
    assert main(["train", "ppo_cartpole", f"+preset={given}", *QUICK]) == 2
    assert "(watch)" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


def test_ours_alone_needs_none_and_trust_for_nothing_is_an_error(hub, tmp_path, capsys):
    plain = evil(hub, "env: {num_envs: 2}\n")
    folder = f"run.dir={tmp_path / 'r'}"
    assert main(["train", "ppo_cartpole", f"+preset={plain}", *QUICK, folder]) == 0
    for verb in ("train", "plan", "debug", "check"):
        words = ["env=CartPole-v1"] if verb == "check" else ["ppo_cartpole", *QUICK]
        assert main([verb, *words, "--trust-code"]) == 2
        assert "--trust-code has no effect" in capsys.readouterr().err


def test_an_import_asks_for_trust_and_takes_it(hub, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_pickle(tmp_path / "agent.pkl", weights_of(agent_for("identity")))
    given = evil(hub, "log: {every_frames: 30}\n")
    words = ["import", "dreamerv3", "agent.pkl", *ENV["identity"], *SMALL, f"+preset={given}"]
    assert main([*words, "run.dir=new"]) == 2
    assert "add --trust-code" in capsys.readouterr().err
    assert not Path("new").exists()
    assert main([*words, "run.dir=new", "--trust-code"]) == 0
    assert "is trusted to run" in capsys.readouterr().err
    assert Path("new", "config.yaml").exists()
