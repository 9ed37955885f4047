"""Files that repeat what another file says agree with it."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def script(name: str) -> Any:
    """Return a script of ours as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_requirements_of_every_extra_are_up_to_date():
    made = script("make_requirements")
    found = {p.name: p.read_text() for p in (ROOT / "requirements").glob("*.txt")}
    assert found == made.files(), "run: python scripts/make_requirements.py"
    assert "ale-py>=0.11" in found["all.txt"]  # what an extra of our own stands for
    assert not any("dreamlab[" in text for text in found.values())


def test_the_citation_names_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == PROJECT["version"]
    assert cited["license"] == PROJECT["license"]


def test_the_workflow_runs_commands_of_the_makefile():
    ci = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    targets = ci["jobs"]["check"]["strategy"]["matrix"]["target"]
    assert {"lint", "test"} <= set(targets)
    known = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(targets) <= set(known)


def test_the_images_install_extras_that_exist():
    lines = re.findall(r"^ARG EXTRAS=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert len(lines) == 2
    for line in lines:
        assert set(line.split(",")) <= PROJECT["optional-dependencies"].keys()


def test_the_table_of_results_is_that_of_the_recorded_files():
    text = (ROOT / "README.md").read_text()
    made = script("results_table")
    assert made.placed(text) == text, "run: python scripts/results_table.py"
    assert made.table().count("| [") >= len(made.RECORDED)
    assert made.table() in text
