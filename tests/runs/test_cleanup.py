"""Cleaning up: what goes, what stays, what is never touched, and what a cleaned run says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dreamlab.cli import main
from dreamlab.core.errors import CheckpointError, LabError
from dreamlab.runs import cleanup
from dreamlab.runs.cleanup import clean, survey, totals
from dreamlab.runs.run import FolderLock, Run
from dreamlab.runs.run_row import read_row
from dreamlab.training import load_policy
from tests.helpers import open_loop

QUICK = (
    "+experiment=dqn_cartpole", "tiny=true", "training.total_frames=200", "eval.episodes=1",
    "eval.every_frames=0", "log.every_frames=100", "device=cpu",
)  # fmt: skip
KEPT = ("config.yaml", "manifest.json", "metrics.jsonl", "events.jsonl", "chain.jsonl")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run with checkpoints, a replay on disk and a video."""
    folder = tmp_path_factory.mktemp("runs") / "trained"
    open_loop(folder, *QUICK).run()
    assert all(cleanup.size(folder / kind) for kind in cleanup.KINDS)
    return folder


def make(trained: Path, root: Path, folder: str, **manifest) -> Path:
    """Return a copy of the run under another name, its manifest changed."""
    shutil.copytree(trained, root / folder)
    data = {**json.loads((root / folder / "manifest.json").read_text()), **manifest}
    (root / folder / "manifest.json").write_text(json.dumps(data))
    return root / folder


def only(root: Path, keep_best: int = 0, keep_recent: int = 0):
    (run,) = survey(root, keep_best, keep_recent)
    return run


def test_a_cleaned_run_keeps_its_records_and_says_what_happened(trained, tmp_path):
    folder = make(trained, tmp_path, "r")
    before = {name: (folder / name).read_bytes() for name in KEPT if name != "manifest.json"}
    run = only(tmp_path)
    freed = clean(run)
    assert freed == sum(totals([run]).values()) > 0
    for name, content in before.items():
        assert (folder / name).read_bytes() == content
    manifest = Run(folder).manifest
    assert manifest["cleaned"]["kinds"] == ["buffers", "checkpoints", "videos"]
    assert manifest["cleaned"]["freed_bytes"] == freed
    assert not [p for p in (folder / "checkpoints").iterdir() if p.name != "cleaned"]
    assert not list((folder / "buffers").iterdir())


def test_a_cleaned_run_is_neither_evaluated_nor_begun_anew(trained, tmp_path):
    folder = make(trained, tmp_path, "r")
    metrics = (folder / "metrics.jsonl").read_bytes()
    clean(only(tmp_path))
    for which in ("latest", "best"):
        with pytest.raises(CheckpointError, match="`dreamlab cleanup` has deleted"):
            load_policy(folder, which)
    with pytest.raises(CheckpointError, match=r"use another run\.dir"):
        open_loop(folder, *QUICK)
    assert (folder / "metrics.jsonl").read_bytes() == metrics


def test_cleaning_twice_changes_nothing(trained, tmp_path):
    folder = make(trained, tmp_path, "r")
    clean(only(tmp_path))
    after = {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.name != ".lock"}
    again = only(tmp_path)
    assert not again.due
    assert again.total == 0
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*") if p.name != ".lock"} == after


def test_the_best_of_each_experiment_and_the_newest_are_kept(trained, tmp_path):
    for i, (name, score) in enumerate([("a", 5.0), ("a", 9.0), ("b", -3.0), ("b", -7.0)]):
        created = f"2026-01-0{i + 1}T00:00:00"
        make(trained, tmp_path, f"{i}", name=name, created=created, last_eval=score)
    kept = {r.folder.name: r.kept for r in survey(tmp_path, keep_best=1, keep_recent=1)}
    assert kept == {"0": None, "1": "best", "2": "best", "3": "recent"}
    assert all(r.kept for r in survey(tmp_path, keep_best=0, keep_recent=4))
    assert not any(r.kept for r in survey(tmp_path, keep_best=0, keep_recent=0))


def test_a_run_with_the_tag_keep_is_kept(trained, tmp_path):
    make(trained, tmp_path, "later", tags=["keep"])
    made = make(trained, tmp_path, "made")
    text = (made / "config.yaml").read_text()
    (made / "config.yaml").write_text(text.replace("tags: []", "tags: [keep]"))
    assert {r.kept for r in survey(tmp_path, 0, 0)} == {"tagged"}


def test_a_run_whose_tag_keep_was_removed_is_released(trained, tmp_path):
    made = make(trained, tmp_path, "made")
    text = (made / "config.yaml").read_text()
    (made / "config.yaml").write_text(text.replace("tags: []", "tags: [keep]"))
    assert only(tmp_path).kept == "tagged"
    assert main(["tag", str(made), "--remove", "keep"]) == 0
    assert only(tmp_path).kept is None
    assert read_row(made)[0]["tags"] == "[]"


@pytest.mark.parametrize("name", ["status", "heartbeat", "created", "tags"])
def test_a_run_whose_manifest_is_damaged_where_it_decides_is_kept(name, trained, tmp_path):
    make(trained, tmp_path, "r", **{name: {"odd": 1}})
    assert only(tmp_path).kept == "unreadable"


def test_a_run_without_its_configuration_is_kept(trained, tmp_path):
    (make(trained, tmp_path, "r") / "config.yaml").unlink()
    assert only(tmp_path).kept == "unreadable"


DAY_S = 86_400.0


def test_runs_younger_than_an_age_are_kept(trained, tmp_path, capsys):
    now = time.time()
    make(trained, tmp_path, "young", heartbeat=now - 29 * DAY_S)
    make(trained, tmp_path, "old", heartbeat=now - 31 * DAY_S)
    make(trained, tmp_path, "unknown", heartbeat=None, created="long ago")
    kept = {r.folder.name: r.kept for r in survey(tmp_path, 0, 0, 30 * DAY_S)}
    assert kept == {"young": "young", "old": None, "unknown": "unreadable"}
    options = ("--older-than", "30d", "--keep-best", "0", "--json")
    assert main(["cleanup", str(tmp_path), *options]) == 0
    due = [r["folder"] for r in json.loads(capsys.readouterr().out) if r["due"]]
    assert due == [str(tmp_path / "old")], "the newest 30 are not kept beside an age"
    assert main(["cleanup", str(tmp_path), *options, "--keep-recent", "30"]) == 0
    assert not any(r["due"] for r in json.loads(capsys.readouterr().out))


@pytest.mark.parametrize("age", ["30", "d", "-1d", "1.5d", "30 days", ""])
def test_an_age_that_cannot_be_read_is_a_mistake(age, tmp_path, capsys):
    assert main(["cleanup", str(tmp_path), "--older-than", age]) == 2
    assert "such as 30d" in capsys.readouterr().err or age.startswith("-")


def test_a_live_run_is_kept(trained, tmp_path):
    make(trained, tmp_path / "beat", "r", status="running", heartbeat=time.time())
    assert only(tmp_path / "beat").kept == "live"
    make(trained, tmp_path / "stale", "r", status="running", heartbeat=time.time() - 1e6)
    assert only(tmp_path / "stale").kept is None
    folder = make(trained, tmp_path / "locked", "r")
    with FolderLock(folder):
        assert only(tmp_path / "locked").kept == "live"
    assert only(tmp_path / "locked").kept is None


def test_a_run_that_comes_alive_after_the_survey_is_left_alone(trained, tmp_path):
    folder = make(trained, tmp_path, "r")
    run = only(tmp_path)
    with FolderLock(folder), pytest.raises(LabError, match="another process is using"):
        clean(run)
    Run(folder).update(status="running")
    with pytest.raises(LabError, match="in use"):
        clean(run)
    assert cleanup.size(folder / "checkpoints") == run.sizes["checkpoints"]


def test_a_run_that_cannot_be_read_is_kept_and_does_not_stop_the_rest(trained, tmp_path):
    broken = make(trained, tmp_path, "broken")
    (broken / "manifest.json").write_text("{")
    make(trained, tmp_path, "whole")
    assert {r.folder.name: r.kept for r in survey(tmp_path, 0, 0)} == {
        "broken": "unreadable",
        "whole": None,
    }


CLEAN = """
import sys, resource
from pathlib import Path
from dreamlab.runs import cleanup
if sys.argv[2] == "full":  # no file can grow: as on a full disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
else:
    remove, left = cleanup._remove, [int(sys.argv[2])]
    def dying(path):
        if not left[0]:
            import os
            os._exit(9)
        left[0] -= 1
        remove(path)
    cleanup._remove = dying
try:
    cleanup.clean(cleanup.survey(Path(sys.argv[1]), 0, 0)[0])
except cleanup.LabError as error:
    print(error)
"""


def clean_in_child(root: Path, how: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CLEAN, str(root), how]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("removed", [0, 1, 3])
def test_an_interrupted_cleanup_is_marked_and_can_be_finished(removed, trained, tmp_path):
    folder = make(trained, tmp_path, "r")
    assert clean_in_child(tmp_path, str(removed)).returncode == 9
    with pytest.raises(CheckpointError, match="`dreamlab cleanup` has deleted"):
        load_policy(folder)
    run = only(tmp_path)
    assert run.due
    clean(run)
    assert "checkpoints" in Run(folder).manifest["cleaned"]["kinds"]
    assert not only(tmp_path).due


def test_on_a_full_disk_space_is_freed_and_the_manifest_stays_whole(trained, tmp_path):
    folder = make(trained, tmp_path, "r")
    done = clean_in_child(tmp_path, "full")
    assert "the next cleanup continues from here" in done.stdout, done.stderr
    assert cleanup.size(folder / "checkpoints") == 0
    assert Run(folder).manifest["id"]
    assert "cleaned" not in Run(folder).manifest
    run = only(tmp_path)
    assert run.due
    clean(run)
    assert Run(folder).manifest["cleaned"]["kinds"] == ["checkpoints"]


def test_what_a_run_has_not_made_is_left_alone(trained, tmp_path):
    folder = make(trained, tmp_path / "root", "r")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "data").write_text("x")
    os.symlink(tmp_path / "precious", folder / "videos" / "elsewhere")
    own = ("videos/talk.mp4", "checkpoints/notes.txt", "buffers/replay/labels.csv")
    own += ("checkpoints/mine/weights.pt", "buffers/demonstrations.hdf5")
    for name in own:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("mine")
    clean(only(tmp_path / "root"))
    assert (tmp_path / "precious" / "data").read_text() == "x"
    assert [(folder / name).read_text() for name in own] == ["mine"] * len(own)
    assert not list(folder.glob("checkpoints/[0-9]*"))
    assert not list(folder.glob("buffers/*/*.pt"))
    assert not list(folder.glob("videos/eval*"))
    assert not only(tmp_path / "root").due


def test_what_another_program_calls_a_manifest_makes_no_run(tmp_path, capsys):
    for name in ("extension", "no config"):
        (tmp_path / name / "checkpoints" / "1000").mkdir(parents=True)
        (tmp_path / name / "checkpoints" / "1000" / "weights.bin").write_text("days of work")
        manifest = {"name": name, "id": "x", "version": 3}
        (tmp_path / name / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "extension" / "config.yaml").write_text("a: 1\n")
    assert {run.kept for run in survey(tmp_path, 0, 0)} == {"unreadable"}
    assert main(["cleanup", str(tmp_path), "--keep-best", "0", "--keep-recent", "0", "--yes"]) == 0
    assert len(list(tmp_path.rglob("weights.bin"))) == 2


def test_checkpoints_kept_while_training(tmp_path):
    options = [o for o in QUICK if "total_frames" not in o]
    every = ("checkpoint.every_frames=50", "checkpoint.keep=2", "checkpoint.keep_best=false")
    loop = open_loop(
        tmp_path / "r", *options, *every, "training.total_frames=600",
        "checkpoint.keep_every_frames=200",
    )  # fmt: skip
    loop.run()
    names = [int(n) for n in reversed(loop.checkpoints.names())]
    assert [n // 200 for n in names[:-2]] == [1, 2]  # the first after 200 and after 400
    assert all(n % 200 < 50 for n in names[:-2])
    assert len(names) == 4
    assert load_policy(tmp_path / "r", f"{names[0]:012d}").env_frames == names[0]
