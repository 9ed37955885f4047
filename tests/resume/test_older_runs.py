"""Runs of an older version go on: folders that commit daa857d (schema 1) made and interrupted.

`runs_of_schema_1.json` holds what that commit recorded for the same runs without an interruption.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from dreamlab.cli import main
from tests.helpers import metrics

HERE = Path(__file__).parent
WHOLE = json.loads((HERE / "runs_of_schema_1.json").read_text())

RENAMED = {"dreamer_v3": ("train/loss/state",)}
"""Of DreamerV3: what is lost of an observation is `train/loss/rec/NAME` now."""


@pytest.fixture
def runs(tmp_path, monkeypatch):
    with tarfile.open(HERE / "runs_of_schema_1.tar.xz") as tar:
        tar.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def recorded(name):
    """Return what that commit recorded; it wrote the last record before the last updates, too.

    The means of the training in that one are over all of these updates today.
    """
    *most, early, last = WHOLE[name]
    if early["env_frames"] != last["env_frames"]:
        return WHOLE[name]
    return [*most, {k: v for k, v in last.items() if not k.startswith("train/")}]


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_an_older_run_goes_on_as_it_would_have_then(name, runs, capsys):
    before = metrics(runs / name)
    assert before == WHOLE[name][: len(before)]
    assert main(["resume", f"runs/{name}"]) == 0, capsys.readouterr().err
    after, whole = metrics(runs / name), recorded(name)
    assert len(after) == len(whole) > len(before)
    for found, then in zip(after, whole, strict=True):
        assert found["env_frames"] == then["env_frames"]
        same = {k: v for k, v in then.items() if k not in RENAMED.get(name, ())}
        known = {k: v for k, v in found.items() if k in same}
        assert known == pytest.approx(same, rel=1e-4, abs=1e-6)
    assert json.loads((runs / name / "manifest.json").read_text())["exact_resume"] is True


@pytest.mark.parametrize("name", ["dreamer_v3", "sac"])
def test_an_older_run_is_evaluated_and_shown(name, runs, capsys):
    assert main(["eval", f"runs/{name}", "--episodes", "1"]) == 0
    assert main(["show", f"runs/{name}"]) == 0
    assert "eval/return" in capsys.readouterr().out
