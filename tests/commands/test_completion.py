"""What a shell is offered: verbs, experiments, runs; quickly."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dreamlab.cli import COMPLETE, SUMMARIES, main
from dreamlab.config_files import choices
from tests.runs.made import make


@pytest.fixture
def completed(monkeypatch, capsys, tmp_path):
    """What a shell would offer for a line whose last word is not whole yet."""
    monkeypatch.chdir(tmp_path)

    def offer(*words: str) -> list[str]:
        monkeypatch.setenv(COMPLETE, "bash_complete")
        monkeypatch.setenv("COMP_WORDS", " ".join(["dreamlab", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        assert main([]) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        lines = (line.partition(",") for line in captured.out.splitlines())
        return [value for kind, _, value in lines if kind == "plain"]

    return offer


def test_verbs_and_their_options(completed):
    assert completed("") == [*SUMMARIES]
    assert completed("ex") == ["export", "export-policy"]
    assert completed("eval", "--ep") == ["--episodes"]
    assert completed("export-policy", "X", "--format", "") == ["onnx", "torchscript"]
    assert completed("nothing", "x") == []


@pytest.mark.parametrize("verb", ["train", "plan", "debug"])
def test_experiments(verb, completed):
    assert completed(verb, "") == choices("experiment")
    assert completed(verb, "seed=1", "ppo_c") == ["ppo_cartpole"]
    assert completed(verb, "+experiment=sac_p") == ["+experiment=sac_pendulum"]
    assert completed(verb, "env=at") == ["env=atari", "env=atari100k"]
    # as bash has it: `+experiment=sac_p` is three words
    assert completed(verb, "+experiment", "=", "sac_p") == ["sac_pendulum"]


def test_run_folders(completed, tmp_path):
    for name in ("first", "second"):
        make(tmp_path / "experiments" / name)
    make(tmp_path / "elsewhere" / "third")
    make(tmp_path / "experiments" / "odd\nname")
    (tmp_path / "experiments" / "no_run").mkdir()
    for verb in ("resume", "eval", "show", "verify", "export-policy"):
        assert completed(verb, "") == ["experiments/first", "experiments/second"]
        assert completed(verb, "sec") == ["experiments/second"]
        assert completed(verb, "experiments/f") == ["experiments/first"]
        assert completed(verb, "elsewhere/") == ["elsewhere/third"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell(shell, capsys):
    assert main(["completion", shell]) == 0
    assert f"{COMPLETE}={shell}_complete" in capsys.readouterr().out


def test_bash_completes(tmp_path):
    """The real thing: bash reads the script, and its function calls the command."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "dreamlab"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m dreamlab "$@"\n')
    program.chmod(0o755)
    script = (
        'eval "$(dreamlab completion bash)"; COMP_WORDS=(dreamlab train dqn_r); COMP_CWORD=2\n'
        '_dreamlab_completion dreamlab; echo "${COMPREPLY[@]}"'
    )
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=True,
        env={**os.environ, "PATH": path}, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout.split() == ["dqn_rainbow_cartpole"]


def test_nothing_heavy_is_loaded(tmp_path: Path):
    code = (
        "import os, sys; from dreamlab.cli import SUMMARIES, main\n"
        "for verb in SUMMARIES:\n"
        "    os.environ |= {'COMP_WORDS': f'dreamlab {verb} e', 'COMP_CWORD': '2'}\n"
        "    assert main([]) == 0\n"
        "found = {'torch', 'hydra', 'matplotlib', 'gymnasium', 'omegaconf'} & set(sys.modules)\n"
        "assert not found, found"
    )
    env = {**os.environ, COMPLETE: "bash_complete"}
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
