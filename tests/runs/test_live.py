"""Looking at runs while they write."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from dreamlab.cli import main
from dreamlab.runs.live import Tail, View, Watcher, sparkline, total_frames
from dreamlab.runs.run import FolderLock, Run


def make_run(folder, **data):
    run = Run(folder)
    run.create("cart", 3, ["dreamlab", "train"])
    (folder / "config.yaml").write_text("training: {total_frames: 1000}\nenv: {id: CartPole-v1}\n")
    run.update(status="running", env_frames=100, **data)
    return run


def add(folder, **record):
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")


def test_a_tail_reads_whole_lines_once_and_starts_anew_after_a_cut(tmp_path):
    path = tmp_path / "m.jsonl"
    tail = Tail(path)
    assert tail.read() == []
    path.write_text('{"a": 1}\n{"a": 2')
    assert tail.read() == [{"a": 1}]
    with path.open("a") as file:
        file.write("}\nnot json\n")
    assert tail.read() == [{"a": 1}, {"a": 2}]
    path.write_text('{"a": 9}\n')
    assert tail.read() == [{"a": 9}]


def test_a_live_run_shows_returns_speed_time_left_and_alerts(tmp_path):
    run = make_run(tmp_path / "r")
    watcher = Watcher([tmp_path])
    for i in range(4):
        add(run.folder, env_frames=100 * (i + 1), **{"episode/return": i, "time/frames_per_s": 50})
    run.event("alert", alert="stall", text="nothing rises")
    (view,) = watcher.look()
    assert (view.status, view.frames, view.total) == ("running", 400, 1000)
    assert view.returns == [0, 1, 2, 3]
    assert view.eta_s == pytest.approx(12)
    assert view.alerts == ["stall: nothing rises"]
    add(run.folder, env_frames=500, **{"eval/return": 9, "time/frames_per_s": 100})
    (view,) = watcher.look()
    assert (view.best, view.eta_s) == (9, pytest.approx(5))


def test_a_run_that_nobody_runs_has_crashed_and_is_shown_with_all(tmp_path):
    run = make_run(tmp_path / "r")
    run.manifest["heartbeat"] = time.time() - 3600
    (run.folder / "manifest.json").write_text(json.dumps(run.manifest))
    watcher = Watcher([tmp_path])
    assert watcher.look() == []
    assert [v.status for v in watcher.look(everything=True)] == ["crashed"]
    with FolderLock(run.folder):  # a process that writes seldom
        assert [v.status for v in watcher.look()] == ["running"]


def test_a_sparkline_rises_where_the_values_do():
    assert sparkline([]) == ""
    assert sparkline([5.0, 5.0]) == "▁▁"
    line = sparkline([float(i) for i in range(160)], width=16)
    assert len(line) == 16
    assert (line[0], line[-1]) == ("▁", "█")
    assert list(line) == sorted(line)


def test_frames_come_from_the_total_or_the_phases():
    phases = [{"duration_steps": 10}, {"duration_updates": 5}, {"duration_steps": 20}]
    assert total_frames({"training": {"phases": phases}}) == 30
    assert total_frames({"training": {"phases": phases, "total_frames": 99}}) == 99
    assert total_frames({}) is None
    assert View(Path(), "n", 0, "running", 5, None, speed=1.0).eta_s is None


def test_watch_prints_a_look_and_tells_programs(tmp_path, capsys):
    run = make_run(tmp_path / "r")
    add(run.folder, env_frames=300, **{"episode/return": 7.5, "time/frames_per_s": 10})
    assert main(["watch", str(tmp_path), "--once"]) == 0
    text = capsys.readouterr().out
    assert "cart" in text
    assert "7.5" in text
    assert "1 min" in text
    assert main(["watch", str(tmp_path), "--json"]) == 0
    (seen,) = json.loads(capsys.readouterr().out)
    assert (seen["name"], seen["seed"], seen["last"], seen["eta_s"]) == ("cart", 3, 7.5, 70.0)
    assert main(["watch", str(tmp_path / "nothing"), "--once"]) == 1
