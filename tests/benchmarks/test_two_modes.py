"""The benchmark of two modes runs, and judges ways as it says."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

FILE = Path(__file__).parents[2] / "benchmarks" / "two_modes.py"


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("two_modes", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["two_modes"] = module
    spec.loader.exec_module(module)
    return module


def test_the_expert_arrives_both_ways(bench):
    torch.manual_seed(0)
    ways, _ = bench.expert(200)
    found = bench.judged(ways)
    assert found["success"] == 1.0
    assert found["above"] == pytest.approx(0.5, abs=0.15)


def test_a_way_through_the_disc_does_not_count(bench):
    line = torch.linspace(bench.START, bench.GOAL, bench.STEPS + 1)
    ways = torch.stack([line, torch.zeros_like(line)], -1)[None]
    assert bench.judged(ways)["success"] == 0.0


@pytest.mark.slow
def test_it_measures_every_policy(bench):
    numbers, shown = bench.measure(1, 2)
    assert set(numbers) == set(shown) == set(bench.CASES)
    assert "| diffusion |" in bench.table(numbers, 2)
