"""Films, and pictures instead of them where `av` is not there."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dreamlab.cli import main
from dreamlab.engine.video import Films, contact_sheet, no_films, write_video
from dreamlab.results.html_report import newest_media
from dreamlab.runs import cleanup

TINY = ["tiny=true", "device=cpu", "training.total_frames=160", "log.terminal=off"]


@pytest.fixture
def without_av(monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)


def frames(count, side=64):
    return [np.full((side, side, 3), i, np.uint8) for i in range(count)]


def messages(folder: Path) -> list[str]:
    lines = (folder / "events.jsonl").read_text().splitlines()
    return [text for line in lines if "image sheets" in (text := json.loads(line).get("text", ""))]


def test_with_av_a_film_is_a_film(tmp_path):
    assert write_video(tmp_path / "a.mp4", frames(3)) == tmp_path / "a.mp4"
    assert no_films() is None
    assert [p.name for p in tmp_path.iterdir()] == ["a.mp4"]


def test_without_av_frames_become_one_picture(tmp_path, without_av):
    path = write_video(tmp_path / "new" / "eval_1.mp4", frames(100))
    assert path == tmp_path / "new" / "eval_1.frames.png"
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    sheet = np.asarray(Image.open(path))
    assert (sheet[0, 0] == 0).all()
    assert {0, 50, 99, 255} <= set(np.unique(sheet))  # first, middle and last, and the gap


def test_without_pillow_too_they_become_an_array(tmp_path, without_av, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    path = write_video(tmp_path / "eval_1.mp4", frames(4))
    assert path.name == "eval_1.frames.npy"
    assert set(np.unique(np.load(path))) == {0, 1, 2, 3, 255}


@pytest.mark.parametrize("shape", [(64, 64, 3), (501, 301, 3), (32, 48, 1), (2000, 3000, 3)])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_picture_of_frames_stays_small(shape, count, tmp_path, without_av):
    path = write_video(tmp_path / "a.mp4", [np.zeros(shape, np.uint8)] * count)
    high, wide = np.asarray(Image.open(path)).shape[:2]
    assert 100 < wide <= 1700
    assert 100 < high <= 1700


def test_frames_are_read_from_the_upper_left():
    sheet = contact_sheet(frames(3, 10))
    assert [sheet[5, 5, 0], sheet[5, 19, 0], sheet[19, 5, 0]] == [0, 1, 2]
    assert (sheet[14:, 14:] == 255).all()


def test_it_is_said_once(tmp_path, without_av):
    said: list[str] = []
    films = Films(said.append)
    for name in "ab":
        films.write(tmp_path / f"{name}.mp4", frames(2))
    assert len(said) == 1
    assert "av" in said[0]


def test_a_run_is_trained_measured_shown_and_cleaned_without_av(tmp_path, capsys, without_av):
    folder = tmp_path / "r"
    options = ["report.every_frames=80", "eval.every_frames=80", "eval.video_every=true"]
    arguments = ["train", "dreamer_cartpole", *TINY, *options, f"run.dir={folder}"]
    assert main(arguments) == 0
    assert len(messages(folder)) == 1
    assert len(list((folder / "videos").glob("eval_*.frames.png"))) >= 2
    assert list((folder / "report").glob("openloop_state_*.frames.png"))
    assert len(list((folder / "report").glob("openloop_state_*.png"))) >= 4  # the curves stay
    capsys.readouterr()
    assert main(["eval", str(folder), "--episodes", "1", "--video"]) == 0
    told = capsys.readouterr()
    assert "eval_seed20000.frames.png" in told.out
    assert told.err.count("av cannot be imported") == 1
    assert main(["report", str(folder), "--out", str(tmp_path / "page.html")]) == 0
    assert ".frames.png" in (tmp_path / "page.html").read_text()
    (run,) = cleanup.survey(tmp_path, 0, 0)
    cleanup.clean(run)
    assert not list((folder / "videos").iterdir())


def test_the_demo_shows_pictures_without_av(tmp_path, capsys, without_av):
    options = ["training.total_frames=160", "tiny=true", f"run.dir={tmp_path / 'r'}"]
    assert main(["demo", *options, "log.terminal=plain"]) == 0
    told = capsys.readouterr().out
    assert told.count("av cannot be imported") == 1
    for line in ("open-loop prediction", "episode video"):
        (shown,) = (x for x in told.splitlines() if x.startswith(line))
        assert shown.endswith(".frames.png")


def test_the_newest_picture_of_each_kind_is_shown(tmp_path):
    names = [f"report/openloop_state_{n:02d}{e}" for n in (1, 2) for e in (".png", ".frames.png")]
    for name in (*names, "videos/eval_03.frames.png", "videos/eval_04.frames.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert {p.name for p in newest_media(tmp_path)} == {
        "openloop_state_02.png",
        "openloop_state_02.frames.png",
        "eval_04.frames.png",
    }
