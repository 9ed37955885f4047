"""A reader who leaves (`dreamlab ... | head -1`) is no error, in any verb."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from dreamlab.cli import SUMMARIES, main
from dreamlab.runs.run import Run
from tests.interop.test_dreamerv3 import weights_of
from tests.interop.test_import import ENV, SMALL, agent_for, write_pickle
from tests.runs.made import make

SWEEPS = Path(__file__).parents[2] / "configs" / "sweep"
QUICK = (
    "+experiment=ppo_cartpole", "tiny=true", "training.total_frames=300", "eval.episodes=1",
    "eval.every_frames=0", "eval.video=false", "log.every_frames=100", "device=cpu",
)  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "a"
    assert main(["train", *QUICK, "log.terminal=off", f"run.dir={folder}"]) == 0
    return folder


@pytest.fixture
def left(capfd, monkeypatch):
    """A standard output that nobody reads any more."""
    read, write = os.pipe()
    os.close(read)
    stream = open(write, "w")  # noqa: SIM115
    monkeypatch.setattr(sys, "stdout", stream)
    yield
    stream.close()  # raises if anything was left to be written


WALKED = [
    "", "--version", "help", "list ROOT", "list ROOT --json", "show RUN", "tag RUN", "logs RUN",
    "diff RUN RUN", "index ROOT", "watch ROOT --json", "watch ROOT --all",
    "compare RUN", "export RUN", "report RUN --out ROOT/r.html", "cleanup ROOT",
    "sweep", "sweep SWEEP --dry-run", "sweep SWEEP --show", "tune", "tune TUNE --dry-run",
    "train", "train ppo_cartpole --cfg job", "plan ppo_cartpole", "debug ppo_cartpole --frames 64",
    "eval RUN --episodes 1", "export-policy RUN --format torchscript", "verify RUN",
    "check env=CartPole-v1", "resume RUN", "completion bash",
    "import dreamerv3 AGENT IDENTITY run.dir=NEW", "data record RUN NEW --episodes 1",
]  # fmt: skip
SLOW = ["doctor", "demo training.total_frames=800 log.terminal=plain run.dir=NEW"]


def test_every_verb_is_walked():
    assert {c.split()[0] for c in WALKED + SLOW if c} - {"--version", "help"} == {*SUMMARIES}


@pytest.mark.parametrize(
    "command", [*WALKED, *(pytest.param(c, marks=pytest.mark.slow) for c in SLOW)]
)
def test_no_verb_minds_a_closed_pipe(command, trained, left, capfd, tmp_path):
    if "AGENT" in command:
        write_pickle(tmp_path / "agent.pkl", weights_of(agent_for("identity")))
    small = shlex.join([*ENV["identity"], *SMALL])
    places = {"ROOT": trained.parent, "RUN": trained, "NEW": tmp_path / "new"}
    places |= {"SWEEP": SWEEPS / "ppo_cartpole_grid.yaml", "AGENT": tmp_path / "agent.pkl"}
    places |= {"TUNE": SWEEPS / "ppo_cartpole_tune.yaml", "IDENTITY": small}
    for word, path in places.items():
        command = command.replace(word, str(path))
    assert main(shlex.split(command)) == 0
    assert "Error" not in capfd.readouterr().err


@pytest.mark.parametrize("verb", SUMMARIES)
def test_nor_does_its_help(verb, left, capfd):
    assert main([verb, "--help"]) == 0
    assert capfd.readouterr().err == ""


def test_a_training_goes_on_when_nobody_looks(tmp_path, left):
    assert main(["train", *QUICK, "log.terminal=plain", f"run.dir={tmp_path / 'r'}"]) == 0
    assert Run(tmp_path / "r").manifest["status"] == "finished"


def test_an_error_that_nobody_reads_is_no_traceback(tmp_path):
    make(tmp_path / "a")
    dreamlab = f"{shlex.quote(sys.executable)} -m dreamlab"
    for command in (
        f"{dreamlab} sweep {SWEEPS / 'ppo_cartpole_grid.yaml'} --dry-run | head -1",
        f"{dreamlab} list {tmp_path / 'nothing'} 2>&1 | true",
    ):
        done = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, check=True, cwd=tmp_path
        )
        assert done.stderr == ""
