"""Rates are those of training: the last line of a run does not fall to nothing."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from dreamlab.engine.speed import Speed
from dreamlab.engine.terminal import Terminal
from tests.helpers import open_loop, run_for


def test_time_away_is_no_time_of_training() -> None:
    speed = Speed()
    speed.restart(0, 0)
    time.sleep(0.05)
    with speed.paused():
        time.sleep(0.5)
    record = speed.record(1_000, 10)
    assert record["time/frames_per_s"] > 1_000 / 0.5
    assert record["time/frames_per_s"] == pytest.approx(100 * record["time/updates_per_s"])
    assert record["time/wall_s"] >= 0.55


def test_seconds_of_the_processor_are_those_of_threads_and_of_ended_processes() -> None:
    speed = Speed()
    speed.restart(0, 0)
    time.sleep(0.3)
    assert speed.record(1, 1)["time/cpu_s"] < 0.2  # it slept
    before = speed.cpu_s
    thread = threading.Thread(target=compute, args=(0.2,))
    thread.start()
    thread.join()
    after = speed.record(2, 2)["time/cpu_s"]
    assert 0.15 < after - before < 2.0
    subprocess.run([sys.executable, "-c", "sum(range(10_000_000))"], check=True)
    assert speed.record(3, 3)["time/cpu_s"] - after > 0.05


def test_seconds_of_the_processor_go_on_with_a_resumed_run(tmp_path: Path) -> None:
    words = (
        "ppo_cartpole", "tiny=true", "training.total_frames=300", "env.num_envs=2",
        "log.every_frames=100", "eval.every_frames=0", "eval.video=false", "device=cpu",
    )  # fmt: skip
    first = open_loop(tmp_path / "run", *words)
    first.speed.cpu_s = 1e4  # of an earlier part
    assert run_for(first, 5) == "interrupted"
    again = open_loop(tmp_path / "run", *words)
    assert again.run() == "finished"
    assert 1e4 < again.speed.cpu_s < 1.1e4


def compute(seconds: float) -> None:
    """Keep a core busy."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_where_nothing_was_trained_since_the_last_rates_hold() -> None:
    speed = Speed()
    first = speed.record(1_000, 10)
    again = speed.record(1_000, 10)
    assert again["time/frames_per_s"] == first["time/frames_per_s"] > 0
    assert again["time/wall_s"] > first["time/wall_s"]
    assert speed.record(1_000, 20)["time/frames_per_s"] == 0  # it learnt, and collected nothing


def test_the_last_record_of_a_run_has_a_rate(tmp_path: Path) -> None:
    words = ("training.total_frames=512", "log.every_frames=256", "eval.every_frames=0")
    loop = open_loop(tmp_path / "run", "ppo_cartpole", *words, "eval.video=false", "device=cpu")
    evaluate = loop.parts.evaluator
    assert evaluate is not None
    play = evaluate.run

    def slow(*args: object, **kwargs: object) -> object:
        time.sleep(1.0)
        return play(*args, **kwargs)  # type: ignore[arg-type]

    evaluate.run = slow  # type: ignore[assignment, method-assign]
    assert loop.run() == "finished"
    before, last = loop.run_log.metrics()[-2:]  # type: ignore[attr-defined]
    assert last["time/wall_s"] - before["time/wall_s"] > 1.0
    frames = last["env_frames"] - before["env_frames"]
    assert last["time/frames_per_s"] > frames / 0.9


def test_a_line_of_a_phase_that_only_learns_tells_updates() -> None:
    out = StringIO()
    terminal = Terminal("plain", "x", Console(file=out, width=200))
    record = {"env_frames": 1_000.0, "decisions": 1_000.0, "updates": 5.0}
    terminal.write({**record, "time/frames_per_s": 0.0, "time/updates_per_s": 12.34})
    terminal.write({**record, "time/frames_per_s": 0.4, "time/updates_per_s": 12.34})
    assert out.getvalue().splitlines() == [
        "x: 1,000 frames | 12.3 updates/s",
        "x: 1,000 frames | 0.4 frames/s",
    ]
