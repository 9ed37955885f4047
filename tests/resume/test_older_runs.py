"""Runs of an older version go on: folders that commit daa857d (schema 1) made and interrupted.

`runs_of_schema_1.json` holds what that commit recorded for the same runs without an interruption.
"""

from __future__ import annotations

import json
import tarfile
from itertools import pairwise
from pathlib import Path

import pytest

from dreamlab.cli import main
from tests.helpers import metrics

HERE = Path(__file__).parent
WHOLE = json.loads((HERE / "runs_of_schema_1.json").read_text())


@pytest.fixture
def runs(tmp_path, monkeypatch):
    with tarfile.open(HERE / "runs_of_schema_1.tar.xz") as tar:
        tar.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


COUNTS = ("env_frames", "decisions", "updates", "episodes")


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_an_older_run_goes_on_as_it_would_have_then(name, runs, capsys):
    before, whole = metrics(runs / name), WHOLE[name]
    assert before == whole[: len(before)]
    assert main(["resume", f"runs/{name}"]) == 0, capsys.readouterr().err
    after = metrics(runs / name)
    # the last record, after the last updates, was written twice then: its averages were of fewer
    records = [r for r, n in pairwise(whole) if r["env_frames"] < n["env_frames"]]
    assert len(after) == len(records) + 1 > len(before)
    for found, then in zip(after, records, strict=False):
        known = {k: v for k, v in found.items() if k in then}
        assert known == pytest.approx(then, rel=1e-4, abs=1e-6)
    for key in (*COUNTS, "eval/return"):
        assert after[-1][key] == pytest.approx(whole[-1][key], rel=1e-4)
    assert json.loads((runs / name / "manifest.json").read_text())["exact_resume"] is True


@pytest.mark.parametrize("name", ["dreamer_v3", "sac"])
def test_an_older_run_is_evaluated_and_shown(name, runs, capsys):
    assert main(["eval", f"runs/{name}", "--episodes", "1"]) == 0
    assert main(["show", f"runs/{name}"]) == 0
    assert "eval/return" in capsys.readouterr().out
