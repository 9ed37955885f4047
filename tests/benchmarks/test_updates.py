"""The programs that time updates run, also where there is no GPU to time them on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SHORT = ("--updates", "1", "--rounds", "1", "--device", "cpu", "--sizes", "1m")


def printed(script: str, *words: str) -> str:
    command = [sys.executable, str(BENCHMARKS / script), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("tdmpc2_update.py", (*SHORT, "--compile", "false", "--decisions", "1", "--envs", "1")),
        ("dreamer_update.py", (*SHORT, "--compile", "false", "--kinds", "vectors")),
    ],
)
def test_an_update_is_timed(script, words):
    rows = [json.loads(x) for x in printed(script, *words).splitlines() if x.startswith("{")]
    assert [(r["size"], r["ms"] > 0, r["first_s"] > 0) for r in rows] == [("1m", True, True)]


@pytest.mark.slow
def test_the_curves_of_bfloat16_are_followed():
    words = ("--device", "cpu", "--size", "1m", "--kinds", "vectors", "--updates", "2")
    assert "| vectors | `loss/" in printed("bf16_curves.py", *words)


def test_memory_is_read_over_updates():
    words = ("--device", "cpu", "--updates", "3", "--tiny", "--parts", "memory", "--memory")
    assert "| TD-MPC2 | 1m | vectors | 1 to 3 |" in printed("gpu_soak.py", *words, "tdmpc2")


@pytest.mark.slow
def test_training_is_watched():
    words = ("--device", "cpu", "--seconds", "1", "--tiny", "--parts", "busy", "--busy", "atari")
    assert "| atari | None | " in printed("gpu_soak.py", *words)


@pytest.mark.slow
def test_many_runs_are_timed():
    words = ("--device", "cpu", "--tiny", "--kinds", "tdmpc2", "--seconds", "0.1", "--counts", "2")
    text = printed("many_runs.py", *words, "--ways", "processes", "streams")
    assert text.count("| TD-MPC2 | 1m | 2 | ") == 2
