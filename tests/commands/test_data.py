"""`dreamlab data`: what a set holds, one frame, statistics, pictures, conversions, recordings."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

from dreamlab import cli
from dreamlab.cli import main
from dreamlab.commands.arguments import Verb
from dreamlab.core.files import CACHE
from dreamlab.data.datasets.frames import keep_frames
from dreamlab.data.datasets.opening import open_dataset
from dreamlab.data.datasets.video import VideoWriter
from tests.data.sets import CAMERA, LENGTHS, SIZE, pictures, shade, write_v2, write_v3
from tests.data.streams import feed, replay

RANDOM = (
    "+experiment=random_cartpole", "tiny=true", "training.total_frames=40", "device=cpu",
    "eval.episodes=1", "eval.video=false", "log.terminal=off",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]):
    def run(*words: str | Path) -> Any:
        assert main(["data", *map(str, words)]) == 0, capsys.readouterr().err
        text = capsys.readouterr().out
        return json.loads(text) if "--json" in words else text

    return run


@pytest.mark.parametrize("make", [write_v2, lambda p: write_v3(p, "video")])
def test_info_and_sample(make: Any, said: Any, tmp_path: Path):
    folder = make(tmp_path / "set")
    about = said("info", folder, "--json")
    assert about["num_frames"] == sum(LENGTHS)
    assert about["num_episodes"] == 3
    assert about["fps"] == 10
    assert about["features"]["observation.state"]["shape"] == [2]
    assert about["features"][CAMERA]["dtype"] == "video"
    assert about["success"] == 2 / 3
    assert about["tasks"] == ["task 0", "task 1"]
    frame = said("sample", folder, 7, "--json")
    assert frame["observation.state"] == [102.0, 1.0]
    assert (frame["episode_index"], frame["frame_index"], frame["task"]) == (1, 2, "task 1")
    assert frame["action"] == [np.float32(102 / 200).item()]
    assert (frame["next.reward"], frame["next.done"]) == (3.0, False)
    assert frame[CAMERA]["shape"] == [32, 48, 3]
    assert np.allclose(frame[CAMERA]["mean"], shade(1, 2) / 255, atol=0.01)
    assert "num_frames       16" in said("info", folder)
    assert "observation.state" in said("sample", folder, 0)


def test_a_frame_keeps_its_number_where_an_episode_is_damaged(
    said: Any, tmp_path: Path, capsys: Any
):
    folder = write_v2(tmp_path / "set")
    (folder / "data" / "chunk-000" / "episode_000001.parquet").unlink()
    assert said("sample", folder, 13, "--json")["observation.state"] == [201.0, 2.0]
    assert main(["data", "sample", str(folder), "6"]) == 2
    assert "episode 1: " in capsys.readouterr().err
    assert list(said("info", folder, "--json")["damaged"]) == ["1"]


def test_statistics_are_told(said: Any, tmp_path: Path):
    folder = write_v2(tmp_path / "set")
    assert set(said("stats", folder, "--json")["action"]) >= {"mean", "std", "q01", "q99"}
    assert set(said("stats", folder, "--stored", "--json")["action"]) == {
        "min", "max", "mean", "std", "count",
    }  # fmt: skip
    assert "q99" in said("stats", folder)


@pytest.mark.parametrize("kind", ["sheet", "curves", "video"])
def test_an_episode_is_drawn(kind: str, said: Any, tmp_path: Path):
    folder, out = write_v3(tmp_path / "set", "video"), tmp_path / f"x{kind[0]}.bin"
    said("view", folder, 1, "--as", kind, "--out", out)
    head = out.read_bytes()[:12]
    assert head.startswith(b"\x89PNG") or head[4:8] == b"ftyp"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("info", "nowhere"), "nowhere: no such dataset"),
        (("sample", "SET", "16"), "there is no frame 16: it has 16"),
        (("view", "SET", "9"), "there is no episode 9; it has 3 episodes, of number 0 to 2"),
        (("view", "SET", "0", "--as", "video"), "has no images: use --as curves"),
        (("convert", "SET", "SET"), "is not empty"),
        (("convert", "SET", "x.hdf5", "--to", "rlds"), "'rlds' is not one of"),
        (("convert", "SET", "x.h5", "--to", "lerobot"), "is a folder: choose a name without .hdf5"),
        (("convert", "SET", "x", "--to", "d4rl"), "is a file: end its name with .hdf5 or .h5"),
        (("sample", "SET"), "argument INDEX is missing"),
    ],
)  # fmt: skip
def test_mistakes_are_one_message(
    words: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = write_v3(tmp_path / "set")
    assert main(["data", *(str(folder) if w == "SET" else w for w in words)]) == 2
    assert message in capsys.readouterr().err


def test_a_damaged_set_is_converted_only_if_asked(tmp_path: Path, capsys: Any):
    folder = write_v2(tmp_path / "set")
    (folder / "data" / "chunk-000" / "episode_000001.parquet").unlink()
    line = ["data", "convert", str(folder), str(tmp_path / "new"), "--codec", "libx264"]
    assert main(line) == 2
    assert "episode 1 is corrupted" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    assert main([*line, "--skip-damaged"]) == 0
    assert "episode 1 is skipped" in capsys.readouterr().err
    assert [e.length for e in open_dataset(tmp_path / "new").episodes] == [5, 4]


@pytest.mark.parametrize("verb", ["convert", "stats"])
def test_a_damaged_video_is_left_out_only_if_asked(verb: str, tmp_path: Path, capsys: Any):
    folder = write_v2(tmp_path / "set")
    (video,) = folder.rglob("episode_000001.mp4")
    video.write_bytes(video.read_bytes()[:300])
    target = [str(tmp_path / "new"), "--codec", "libx264"] if verb == "convert" else []
    line = ["data", verb, str(folder), *target]
    assert main(line) == 2
    assert "episode_000001.mp4: episode 1 of" in capsys.readouterr().err
    assert main([*line, "--skip-damaged"]) == 0
    assert "episode 1 is skipped" in capsys.readouterr().err


def test_formats_become_each_other(said: Any, tmp_path: Path):
    """v2.1 to v3.0 to robomimic to v3.0: the same numbers, the same pictures."""
    old = open_dataset(write_v2(tmp_path / "old"))
    said("convert", tmp_path / "old", tmp_path / "new", "--codec", "libx264")
    said("convert", tmp_path / "new", tmp_path / "demos.hdf5", "--to", "robomimic")
    said("convert", tmp_path / "demos.hdf5", tmp_path / "last", "--codec", "libx264")
    rows = np.arange(16)
    for name in ("new", "demos.hdf5", "last"):
        data = open_dataset(tmp_path / name)
        for column in ("observation.state", "action", "next.reward", "next.done", "task_index"):
            assert np.array_equal(data.columns[column], old.columns[column]), (name, column)
        shown = data.camera(CAMERA).read(rows).mean((1, 2, 3))
        assert np.abs(shown - old.camera(CAMERA).read(rows).mean((1, 2, 3))).max() < 3
    assert open_dataset(tmp_path / "last").kind == "lerobot v3.0"


def test_the_name_tells_the_format(said: Any, tmp_path: Path):
    folder = write_v3(tmp_path / "set")
    for name, kind in (("a.hdf5", "robomimic hdf5"), ("b.h5", "robomimic hdf5"), ("c", "lerobot")):
        said("convert", folder, tmp_path / name)
        assert open_dataset(tmp_path / name).kind.startswith(kind)
    assert (tmp_path / "a.hdf5").is_file()


def test_what_a_format_cannot_hold_is_told(tmp_path: Path, capsys: Any):
    folder = write_v3(tmp_path / "set")
    assert main(["data", "convert", str(folder), str(tmp_path / "a.h5"), "--to", "d4rl"]) == 0
    assert "warning: " in (told := capsys.readouterr().err)
    assert "D4RL HDF5 has no place for next.success, the tasks: left out" in told


def test_timeouts_survive_the_way_to_robomimic_and_back(said: Any, tmp_path: Path):
    run = trained(tmp_path / "run", "env.id=Pendulum-v1", "env.time_limit=5")
    said("record", run, tmp_path / "set", "--episodes", "2")
    said("convert", tmp_path / "set", tmp_path / "demos.hdf5")
    for name in ("set", "demos.hdf5"):
        data = open_dataset(tmp_path / name)
        assert data.columns["next.done"].sum() == data.columns["next.truncated"].sum() == 2


@pytest.mark.parametrize("odd", [False, True])
def test_videos_of_episodes_are_copied_not_encoded_anew(odd: bool, said: Any, tmp_path: Path):
    folder = write_v2(tmp_path / "old")
    if odd:  # of another encoder: it cannot follow the others in one file
        path = folder / "videos" / "chunk-000" / CAMERA / "episode_000001.mp4"
        film = VideoWriter(path, 10, SIZE, "libsvtav1")
        for picture in pictures(1, LENGTHS[1]):
            film.add(picture)
        film.close()
    old, rows = open_dataset(folder), np.arange(16)
    said("convert", folder, tmp_path / "new")
    new = open_dataset(tmp_path / "new")
    assert np.array_equal(new.camera(CAMERA).read(rows), old.camera(CAMERA).read(rows))
    assert keep_frames(new, CAMERA, None, 2**30).broken == {}
    assert len(list((tmp_path / "new").rglob("*.mp4"))) == (3 if odd else 1)
    assert new.features[CAMERA].info["video.codec"] == "h264"
    assert 0 < new.stored[CAMERA]["mean"].max() < 1


def test_a_replay_becomes_a_data_set(said: Any, tmp_path: Path):
    made = replay(folder=tmp_path / "run" / "buffers" / "replay", capacity=200)
    feed(made, 17)
    made.save()
    said("convert", tmp_path / "run", tmp_path / "set")
    data = open_dataset(tmp_path / "set")
    assert data.num_frames == open_dataset(tmp_path / "run").num_frames > 20


# -- recording ------------------------------------------------------------------------------------


def trained(folder: Path, *more: str) -> Path:
    assert main(["train", *RANDOM, *more, f"run.dir={folder}"]) == 0
    return folder


def test_recorded_actions_are_those_that_the_environment_took(said: Any, tmp_path: Path):
    run = trained(tmp_path / "run", "env.id=Pendulum-v1", "env.time_limit=15")
    about = said("record", run, tmp_path / "set", "--episodes", "3", "--json")
    assert (about["episodes"], about["frames"]) == (3, 45)
    data = open_dataset(tmp_path / "set")
    action = data.columns["action"][:, 0]
    assert np.abs(action).max() > 1.2  # the policy's own are within [-1, 1]
    assert (data.features["action"].low, data.features["action"].high) == ((-2,), (2,))
    cos, sin, speed = data.columns["observation.state"].T
    faster = speed + (15 * sin + 3 * action) * 0.05
    inside = data.columns["frame_index"] < 14
    expected = np.clip(faster, -8, 8)[inside]
    assert np.allclose(expected, speed[1:][inside[:-1]], atol=1e-4)
    angle = np.arctan2(sin, cos)
    cost = angle**2 + 0.1 * speed**2 + 0.001 * action**2
    assert np.allclose(data.columns["next.reward"], -cost, atol=1e-4)
    assert about["return"] == pytest.approx(data.columns["next.reward"].sum() / 3, rel=1e-5)
    ends = np.flatnonzero(data.columns["next.done"])
    assert ends.tolist() == [14, 29, 44]
    assert data.columns["next.truncated"][ends].all()
    assert data.fps == 30
    assert len(set(cos[data.columns["frame_index"] == 0].tolist())) == 3  # new episodes
    again = tmp_path / "again"
    said("record", run, again, "--episodes", "3")
    assert np.array_equal(open_dataset(again).columns["action"], data.columns["action"])


def test_success_is_recorded(said: Any, tmp_path: Path):
    run = trained(tmp_path / "run", "env=dummy", "env.id=recall")
    about = said("record", run, tmp_path / "set", "--episodes", "6", "--json")
    data = open_dataset(tmp_path / "set")
    told = [data.columns["next.success"][e.first : e.end] for e in data.episodes]
    assert about["success"] == np.mean([t.any() for t in told])
    assert 0 < about["success"] < 1
    assert not any(t[:-1].any() for t in told)
    assert said("info", tmp_path / "set", "--json")["success"] == about["success"]


def test_a_recording_that_cannot_end_leaves_nothing(tmp_path: Path, capsys: Any):
    run = trained(tmp_path / "run", "env.id=Pendulum-v1", "eval.max_steps=5")
    assert main(["data", "record", str(run), str(tmp_path / "set")]) == 2
    assert "episode 0 did not end within 5 decisions" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir() if p.name not in ("run", "cache")] == []


def test_success_is_told_beside_the_return(tmp_path: Path, capsys: Any):
    run = trained(tmp_path / "run", "env=dummy", "env.id=recall", "log.terminal=plain")
    told = capsys.readouterr().out
    rate = json.loads((run / "manifest.json").read_text())["final_eval"]["eval/success"]
    assert f", success {rate:.4g}" in told
    assert main(["list", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["success"] == rate
    assert main(["list", str(tmp_path)]) == 0
    assert "success" in capsys.readouterr().out.splitlines()[0]
    assert main(["compare", str(run), "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["metrics"]) == ["return", "success"]
    assert main(["export", str(run)]) == 0
    assert "success" in capsys.readouterr().out


def test_pictures_are_recorded(said: Any, tmp_path: Path):
    pixels = trained(tmp_path / "pixels", "env=dummy", "env.id=pixels")
    said("record", pixels, tmp_path / "set", "--episodes", "2", "--codec", "libx264")
    assert list(open_dataset(tmp_path / "set").cameras) == ["observation.image"]
    pole = trained(tmp_path / "pole", "env.time_limit=4")
    assert "episodes 1" in said("record", pole, tmp_path / "film", "--render", "--episodes", "1")
    shown = open_dataset(tmp_path / "film")
    assert shown.camera("observation.images.render").read(np.array([0])).std() > 0
    assert shown.features["action"].classes == 2


def test_verbs_of_the_verb_tell_examples_that_can_be_read():
    group = cli.app.get_command(click.Context(cli.app), "data")
    assert isinstance(group, click.Group)
    assert list(group.commands) == ["info", "sample", "stats", "view", "convert", "record"]
    for name, command in group.commands.items():
        assert isinstance(command, Verb)
        for example in command.examples:
            assert example.startswith(f"dreamlab data {name} ")
            words = re.findall(r"\S+", example.split("#")[0])[3:]
            command.make_context(name, words)
