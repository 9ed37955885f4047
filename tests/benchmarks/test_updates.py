"""The programs that time updates run, also where there is no GPU to time them on."""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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


@pytest.fixture
def benchmark(monkeypatch) -> Any:
    """Return what imports one of the programs."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def test_a_record_keeps_what_was_not_measured_again(benchmark, tmp_path):
    path, old, other = tmp_path / "r.json", {"size": "1m", "ms": 2}, {"size": "5m", "ms": 9}
    keep = benchmark("recorded").with_earlier
    assert keep(path, [old], ["size"]) == [old]
    path.write_text(json.dumps([old, other]))
    new = [{"size": "12m", "ms": 7}, {"size": "1m", "ms": 1}]
    assert keep(path, new, ["size"]) == [new[1], other, new[0]]


def test_without_nvidia_smi_nothing_is_metered(benchmark, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    meter = benchmark("gpu_soak").Meter(tmp_path, "cuda")
    meter.start()
    assert meter.stop() == []


def test_a_meter_that_was_stopped_keeps_what_it_read(benchmark, tmp_path, monkeypatch):
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\necho 40\necho ' 60'\necho ERR\nexec sleep 60\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    meter = benchmark("gpu_soak").Meter(tmp_path, "cuda")
    meter.start()
    until = time.monotonic() + 20
    while "ERR" not in meter.path.read_text() and time.monotonic() < until:
        time.sleep(0.01)
    assert meter.stop() == [40, 60]
    meter.path.write_text("99\n")
    assert meter.stop() == [40, 60]


@pytest.mark.parametrize("warm", [False, True])
def test_runs_have_their_time_after_caches_are_filled(warm, benchmark, monkeypatch):
    module, clock, given = benchmark("many_runs"), [100.0], []

    def filling(args: Any, until: float) -> None:
        given.append(until)
        clock[0] = until  # as long as it may take

    def ready(children: Any, until: float, say: str) -> list[Any]:
        given.append(until)
        return []

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    for name, value in {"fill_caches": filling, "get_ready": ready, "start": lambda *x: x}.items():
        monkeypatch.setattr(module, name, value)
    args = argparse.Namespace(
        warm=warm, patience=240.0, counts=[1], ways=["streams"], kinds=["tdmpc2"]
    )
    assert module.measure_all(args, {}) == []
    assert given == ([340.0] if warm else [340.0, 580.0])


def test_losses_of_streams_are_read_after_all_have_finished(benchmark, monkeypatch, capsys):
    """What another stream computes is only there once that stream was waited for."""
    module, done = benchmark("many_runs"), []

    class Loss:
        def __init__(self, seed: int) -> None:
            self.seed = seed

        def __float__(self) -> float:
            assert self.seed in done
            return 1.5

    class Seed:
        def __init__(self, args: Any, kind: str, seed: int, check: bool) -> None:
            self.seed = seed

        def launch(self, i: int) -> dict[str, Loss]:
            assert not done
            return {"loss": Loss(self.seed)}

        def wait(self) -> None:
            done.append(self.seed)

    monkeypatch.setattr(module, "Seed", Seed)
    monkeypatch.setattr(sys, "stdin", [])
    module.serve(argparse.Namespace(kinds=["tdmpc2"], counts=[2], device="cpu"))
    assert json.loads(capsys.readouterr().out.removeprefix("@"))["loss"] == [1.5, 1.5]


@pytest.mark.slow
def test_training_is_watched():
    words = ("--device", "cpu", "--seconds", "1", "--tiny", "--parts", "busy", "--busy", "atari")
    assert "| atari | None | " in printed("gpu_soak.py", *words)


@pytest.mark.slow
def test_many_runs_are_timed():
    words = ("--device", "cpu", "--tiny", "--kinds", "tdmpc2", "--seconds", "0.1", "--counts", "2")
    text = printed("many_runs.py", *words, "--ways", "processes", "streams")
    assert text.count("| TD-MPC2 | 1m | 2 | ") == 2
