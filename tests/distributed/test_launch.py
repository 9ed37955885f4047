"""The command line starts several processes, and says so when one of them is gone."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dreamlab.core.errors import ConfigError
from dreamlab.engine.accelerate import pick_device
from tests.helpers import config_of, metrics

PATIENCE_S = 240.0
OPTIONS = (
    "dqn_cartpole", "tiny=true", "training.total_frames=100_000", "checkpoint.every_frames=100",
    "checkpoint.every_s=0", "log.every_frames=100", "eval.episodes=1", "eval.video=false",
    "eval.every_frames=0", "device=cpu",
)  # fmt: skip
PYTHON = (sys.executable, "-m", "dreamlab")


def start(*words: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, cwd=Path.cwd())


def wait_for(condition, what: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.05)


def checkpoints(folder: Path) -> set[str]:
    return {p.parent.name for p in folder.glob("checkpoints/0*/meta.json")}


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(p) for p in task.read_text().split()]
    return found


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_process_ends_all_with_the_reason_and_the_same_command_goes_on(tmp_path):
    folder, rng = tmp_path / "run", random.Random(0)
    command = (*PYTHON, "train", *OPTIONS, f"run.dir={folder}", "distributed.processes=2")
    for number in range(2):
        before, child = checkpoints(folder), start(*command)
        wait_for(lambda: checkpoints(folder) - before, "no new checkpoint")  # noqa: B023
        time.sleep(rng.uniform(0, 0.5))
        workers = children(child.pid)
        assert len(workers) == 2
        os.kill(workers[number], signal.SIGKILL)
        killed = time.monotonic()
        _, said = child.communicate(timeout=PATIENCE_S)
        print(f"ended after {time.monotonic() - killed:.1f} s")
        assert child.returncode == 2
        assert f"rank {number}" in said
        assert "was killed by signal 9 (SIGKILL)" in said
        assert "the same command resumes" in said
        assert said.count("LabError") == 1
        assert "Traceback" not in said
        assert all(map(ended, workers))
    last = start(*command)
    wait_for(lambda: b"resuming" in os.read(last.stdout.fileno(), 10_000), "it does not resume")
    last.send_signal(signal.SIGTERM)
    last.communicate(timeout=PATIENCE_S)
    assert last.returncode == 130
    frames = [r["env_frames"] for r in metrics(folder)]
    assert frames == sorted(set(frames))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_torchrun_starts_the_same_run(tmp_path):
    short = [*OPTIONS, "training.total_frames=600"]
    ours = start(*PYTHON, "train", *short, f"run.dir={tmp_path / 'a'}", "distributed.processes=2")
    _, said = ours.communicate(timeout=PATIENCE_S)
    assert ours.returncode == 0, said
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    theirs = start(
        *torchrun, "--nproc-per-node", "2", "-m", "dreamlab", "train", *short,
        f"run.dir={tmp_path / 'b'}",
    )  # fmt: skip
    _, said = theirs.communicate(timeout=PATIENCE_S)
    assert theirs.returncode == 0, said
    assert metrics(tmp_path / "a") == metrics(tmp_path / "b")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_compiled_updates_keep_the_weights_of_two_processes_the_same(tmp_path):
    words = (
        "ppo_cartpole", "tiny=true", "training.total_frames=600", "compile=true", "device=cpu",
        "distributed.check_every_updates=1",
        "distributed.processes=2", "eval.episodes=1", "eval.video=false",
    )  # fmt: skip
    child = start(*PYTHON, "train", *words, f"run.dir={tmp_path / 'run'}")
    _, said = child.communicate(timeout=800)
    assert child.returncode == 0, said


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("device=gpu", "there is no device 'gpu'. Did you mean 'cuda'"),
        ("devices=2 device=cpu", "devices: has no effect with device=cpu"),
        ("devices=2 distributed.processes=3", "contradict each other"),
        ("distributed.timeout_s=5", "timeout_s has no effect with processes=1"),
        ("distributed.check_every_updates=5", "check_every_updates has no effect"),
        ("distributed.processes=0", "distributed.processes: must be between 1 and 4096"),
    ],
)
def test_an_option_without_effect_is_refused(word, text):
    with pytest.raises(ConfigError, match=text):
        config_of("+experiment=ppo_cartpole", *word.split())


def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="cuda:97 is not"):
        pick_device("cuda:97")
