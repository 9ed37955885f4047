"""Files that repeat pyproject.toml say the same as it does."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_requirements_of_every_extra_are_up_to_date():
    spec = importlib.util.spec_from_file_location("made", ROOT / "scripts/make_requirements.py")
    assert spec is not None
    made = importlib.util.module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(made)
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
