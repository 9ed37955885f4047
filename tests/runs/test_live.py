"""Looking at runs while they write."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import sys
import termios
import time
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from dreamlab.cli import main
from dreamlab.commands.dashboard import picture
from dreamlab.core.readers import Tail
from dreamlab.runs.live import Alert, RunView, Watcher, recent_speed, sparkline
from dreamlab.runs.readers import planned_count
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
    tail = Tail(path, lambda record: True)
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
    for i in range(1, 5):
        add(run.folder, env_frames=100 * i, **{"episode/return": i, "time/wall_s": 2 * i})
    run.event("alert", alert="stall", text="nothing rises")
    (view,) = watcher.look()
    assert (view.status, view.frames, view.total) == ("running", 400, 1000)
    assert view.returns == [1, 2, 3, 4]
    assert view.eta_s == pytest.approx(12)
    assert [(a.kind, a.text) for a in view.alerts] == [("stall", "nothing rises")]
    assert time.time() - view.alerts[0].time < 60
    add(run.folder, env_frames=500, **{"eval/return": 9, "time/wall_s": 20})
    (view,) = watcher.look()
    assert (view.last, view.best, view.eval) == (4, 4, 9), "an evaluation is not of the curve"
    assert view.eta_s == pytest.approx(20), "the time that it takes counts"


def test_the_speed_is_that_of_the_last_records():
    slow = [{"env_frames": i, "time/wall_s": float(i)} for i in range(1, 30)]
    fast = [{"env_frames": 29 + 10 * i, "time/wall_s": 29.0 + i} for i in range(1, 10)]
    assert recent_speed([]) is None
    assert recent_speed(slow[:1]) == 1
    assert recent_speed([*slow, *fast]) == 10


def test_what_has_ended_is_not_read_again(tmp_path):
    run = make_run(tmp_path / "r")
    run.update(status="finished")
    watcher = Watcher([tmp_path])
    assert watcher.look() == []
    assert watcher.tails == {}
    first = watcher.rows[run.folder]
    assert watcher.look() == []
    assert watcher.rows[run.folder] is first
    run.update(status="running")
    assert [v.status for v in watcher.look()] == ["running"]


def test_a_run_that_is_still_being_built_is_shown(tmp_path, capsys):
    Run(tmp_path / "r").create("cart", 3, [])
    assert main(["watch", str(tmp_path), "--once"]) == 0
    assert "starting" in capsys.readouterr().out


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
    assert planned_count({"training": {"phases": phases}}) == 30
    assert planned_count({"training": {"phases": phases, "total_frames": 99}}) == 99
    assert planned_count({}) is None
    assert RunView(Path(), "n", 0, "running", 5, None, speed=1.0).eta_s is None


# -- what is drawn --------------------------------------------------------------------------------


def a_view(i: int, **data) -> RunView:
    folder, curve = Path(f"experiments/long_name_{i:02d}"), [float(x) for x in range(100)]
    options = {"name": f"run{i}", "seed": 0, "status": "running", "frames": 123_456_789, **data}
    return RunView(folder, total=200_000_000, returns=curve, speed=12_345.6, **options)


def drawn(views: list[RunView], width: int, height: int | None = None) -> list[str]:
    console = Console(width=width, file=StringIO())
    console.print(picture(views, width, height))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


@pytest.mark.parametrize("width", [80, 140])
def test_every_number_is_whole_at_any_width(width):
    views = [a_view(1), a_view(2, status="interrupted"), a_view(3, name="a" * 99)]
    head, first, second, third = drawn(views, width)
    assert first.split()[:3] == ["run1/0", "123,456,789", "62%"]
    assert first.split()[-3:] == ["12,346", "103", "min"]
    assert second.endswith("interrupted")
    assert {"best", "eval"} <= set(head.split()) or width == 80
    assert third.startswith("…")
    assert {line.index("▁") for line in (first, second, third)} == {head.index("curve")}
    assert max(map(len, (head, first, second, third))) <= width
    assert "…" not in first + second


def test_runs_of_one_name_and_seed_go_by_their_folders():
    lines = drawn([a_view(1, name="a"), a_view(2, name="a"), a_view(3, name="[b]")], 140)
    names = [line.split()[0] for line in lines[1:]]
    assert names == ["long_name_01", "long_name_02", "[b]/0"]


def test_a_low_terminal_shows_as_many_as_fit_and_the_alerts():
    alerts = [
        Alert("disk", "full " * 50, 0.0),
        Alert("nan", "bad", 1.0),
        Alert("nan", "worse", 2.0),
    ]
    views = [a_view(i, alerts=alerts if i == 7 else []) for i in range(30)]
    lines = drawn(views, 80, height=12)
    assert len(lines) < 12
    assert "and 24 more" in lines
    assert lines[-2].startswith("nan")
    assert lines[-2].endswith("run7/0: worse"), "the last of each kind"
    assert lines[-1].startswith("disk")


def test_a_terminal_is_drawn_until_ctrl_c(tmp_path):
    run = make_run(tmp_path / "r")
    add(run.folder, env_frames=300, **{"episode/return": 7.5, "time/wall_s": 30})
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-m", "dreamlab", "watch", str(tmp_path)])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    text = b""
    while b"cart/3" not in text or b"70 s" not in text:
        text += os.read(terminal, 4096)
    os.kill(child, signal.SIGINT)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_watch_prints_a_look_and_tells_programs(tmp_path, capsys):
    run = make_run(tmp_path / "r")
    add(run.folder, env_frames=300, **{"episode/return": 7.5, "time/wall_s": 30})
    assert main(["watch", str(tmp_path), "--once"]) == 0
    row = capsys.readouterr().out.splitlines()[1].split()
    assert row == ["cart/3", "300", "30%", "7.5", "7.5", "-", "▁", "10", "70", "s"]
    assert main(["watch", str(tmp_path), "--json"]) == 0
    (seen,) = json.loads(capsys.readouterr().out)
    assert (seen["name"], seen["seed"], seen["last"], seen["eta_s"]) == ("cart", 3, 7.5, 70.0)
    assert main(["watch", str(tmp_path / "nothing"), "--once"]) == 1
