"""A run that is killed at any moment goes on from a whole checkpoint as if nothing had been."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers import metrics, open_loop, some_of

KILLS = 24


def options(name: str) -> list[str]:
    common = [
        f"+experiment={name}", "tiny=true", "env.num_envs=2", "training.total_frames=4_000",
        "log.every_frames=50", "eval.episodes=1", "eval.every_frames=0", "eval.video=false",
        "checkpoint.every_s=0", "device=cpu",
    ]  # fmt: skip
    return [*common, "checkpoint.every_frames=60"]


def train_in_child(folder: Path, name: str) -> int:
    """Train in a forked process and return its id; it exits with 0 when the run is finished."""
    pid = os.fork()
    if pid:
        return pid
    try:
        status = open_loop(folder, *options(name)).run()
        os._exit(0 if status == "finished" else 3)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(4)


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the child makes no progress"
        time.sleep(0.002)


def checkpointed(folder: Path) -> int:
    names = [int(p.name) for p in (folder / "checkpoints").glob("[0-9]*")]
    return max(names, default=0)


@pytest.mark.parametrize("name", some_of(["dqn_cartpole", "ppo_cartpole"]))
def test_a_run_killed_many_times_equals_one_that_was_not(name, tmp_path):
    rng = random.Random(0)
    assert open_loop(tmp_path / "whole", *options(name)).run() == "finished"
    folder, reached = tmp_path / "killed", 0
    for kill in range(KILLS):
        pid = train_in_child(folder, name)
        if kill % 3:  # let it save once more, then kill it around the next save
            wait_for(lambda: checkpointed(folder) > reached)  # noqa: B023
            time.sleep(rng.uniform(0, 0.03))
        else:  # kill it anywhere: while it starts, loads or trains
            time.sleep(rng.uniform(0, 0.3))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status), f"the child ended by itself: {status}"
        assert checkpointed(folder) >= reached, "a step that was saved has been lost"
        reached = checkpointed(folder)
    assert reached > 0
    assert os.WEXITSTATUS(os.waitpid(train_in_child(folder, name), 0)[1]) == 0
    assert metrics(folder) == metrics(tmp_path / "whole")
    assert not list((folder / "checkpoints").glob("damaged*"))
