"""Pages of recorded benchmarks say what the numbers beside them say."""

from __future__ import annotations

import importlib
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RESULTS = BENCHMARKS / "results"


@pytest.fixture
def program(monkeypatch):
    """Return the function that imports a benchmark, which imports its neighbours by name."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def record(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def test_the_model_of_many_gpus_is_made_of_the_recorded_updates(program):
    model = program("scaling_model")
    page = (RESULTS / "scaling_model.md").read_text()
    assert page == model.table(model.rows()), "run python benchmarks/scaling_model.py"
    taken = {r["size"]: r["ms"] for r in record("dreamer_update")
             if r["kind"] == "images" and r["form"] == "default"}  # fmt: skip
    shown = {row.split(" | ")[0].strip("| "): row.split(" | ")[4] for row in page.splitlines()
             if row.startswith("| ") and "NVLink" in row}  # fmt: skip
    assert {k: v for k, v in shown.items() if k in taken} == {
        k: f"{taken[k]:.1f}" for k in shown if k in taken
    }
    assert "captured updates of one process" in page
    assert "not a measurement" in page


@pytest.mark.parametrize(("name", "script"), [("sharding", "table"), ("distributed", "page")])
def test_a_page_is_that_of_its_record(name, script, program):
    page = (RESULTS / f"{name}.md").read_text()
    assert page == getattr(program(name), script)(record(name))
    assert "Commit and machine:" in page


@pytest.mark.parametrize("name", ["world_models", "world_models_pixels"])
def test_a_page_of_dreams_is_that_of_its_record(name, program):
    assert (RESULTS / f"{name}.md").read_text() == program("world_models").page(record(name))


def test_recorded_commands_of_learning_can_be_given_again(program):
    parsed, program_name = program("learning").parsed, "python benchmarks/learning.py "
    found = [r for path in RESULTS.glob("*.json") if isinstance(r := record(path.stem), dict)]
    made = [r for r in found if r.get("command", "").startswith(program_name)]
    assert len(made) > 5
    for r in made:
        words = shlex.split(r["command"])[2:]
        options = parsed(words)
        assert options.name == r["experiment"]
        assert options.seeds == [run["seed"] for run in r["runs"]]
        assert options.overrides == [w for w in words if "=" in w]


def test_a_model_is_named_for_its_size():
    for model, sizes in record("sharding").items():
        if model.startswith("unet_"):
            (whole,) = sizes["1"]
            assert model == f"unet_{whole['parameters'] / 1e6:.0f}m"
