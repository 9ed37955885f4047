"""Sweeps that are killed, interrupted, or meet another on the same folder."""

from __future__ import annotations

import json
import signal

import pytest

from dreamlab.sweeps.job import Job
from tests.sweeps.many import LONG, begun, kill_all, overrides_of, saved, wait_for, write_sweep

pytestmark = pytest.mark.slow


def test_a_sweep_that_is_killed_finishes_what_is_missing(tmp_path):
    frames = ("training.total_frames=30_000", "checkpoint.every_frames=500")
    path = write_sweep(tmp_path, *frames, seeds=[0, 1, 2], parallel_jobs=2)
    jobs = [
        Job(tmp_path / "s", ("+experiment=ppo_cartpole", *overrides_of(path), f"seed={s}"), {})
        for s in range(3)
    ]
    with begun("sweep", path) as first:
        wait_for(lambda: len({p.parts[-3] for p in saved(tmp_path / "s")}) == 2)
        kill_all(first, jobs)
    assert [j.status() for j in jobs] == ["interrupted", "interrupted", "waiting"]
    with begun("sweep", path) as again:
        out, _ = again.communicate(timeout=200)
    assert again.returncode == 0, out
    assert [j.status() for j in jobs] == ["finished"] * 3
    assert [j.record()["attempts"] for j in jobs] == [2, 2, 1]
    events = [(j.run_folder / "events.jsonl").read_text() for j in jobs]
    assert ['"resumed"' in e for e in events] == [True, True, False]


def test_ctrl_c_lets_the_runs_save_and_says_how_to_go_on(tmp_path):
    path = write_sweep(tmp_path, *LONG, seeds=[0, 1], parallel_jobs=2)
    with begun("sweep", path) as sweep:
        wait_for(lambda: len({p.parts[-3] for p in saved(tmp_path / "s")}) == 2)
        sweep.send_signal(signal.SIGINT)
        out, _ = sweep.communicate(timeout=60)
    assert sweep.returncode == 130, out
    assert f"Resume with: dreamlab sweep {path}" in out
    for run in (tmp_path / "s" / "runs").glob("*_seed*"):
        assert json.loads((run / "manifest.json").read_text())["status"] == "interrupted"
        assert '"interrupted"' in (run / "events.jsonl").read_text()


def test_two_sweeps_on_one_folder_share_the_jobs(tmp_path):
    path = write_sweep(tmp_path, seeds=[0, 1, 2, 3])
    with begun("sweep", path) as one, begun("sweep", path) as other:
        outs = [p.communicate(timeout=200)[0] for p in (one, other)]
    assert (one.returncode, other.returncode) == (0, 0), outs
    records = [json.loads(p.read_text()) for p in (tmp_path / "s").glob("jobs/*/job.json")]
    assert [r["attempts"] for r in records] == [1] * 4
    assert sum(out.count("start  ") for out in outs) == 4
