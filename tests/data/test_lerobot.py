"""LeRobot data sets: every version is read as it was written, and damage is told by name."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from dreamlab.core.files import CACHE
from dreamlab.data.datasets import frames as caching
from dreamlab.data.datasets import statistics
from dreamlab.data.datasets.lerobot import episode_statistics
from dreamlab.data.datasets.lerobot_write import LeRobotWriter, Recording
from dreamlab.data.datasets.opening import open_dataset
from dreamlab.data.datasets.steps import observations
from dreamlab.data.datasets.table import DataError, Dataset, Feature
from dreamlab.data.datasets.video import Clips, VideoCamera
from tests.data.sets import CAMERA, LENGTHS, SIZE, columns, pictures, shade, write_v2, write_v3

GOLDEN = Path(os.environ.get("DREAMLAB_GOLDEN", "")) / "lerobot_v3"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))


def made(tmp_path: Path, version: str) -> Dataset:
    folder = tmp_path / version
    return open_dataset(
        write_v3(folder, "video") if version == "v3.0" else write_v2(folder, version)
    )


@pytest.mark.parametrize("version", ["v2.0", "v2.1", "v3.0"])
def test_every_version_gives_the_same_frames(version: str, tmp_path: Path):
    data = made(tmp_path, version)
    assert data.kind == f"lerobot {version}"
    assert [e.length for e in data.episodes] == list(LENGTHS)
    assert data.num_frames == 16
    assert data.tasks == ["task 0", "task 1"]
    whole = [columns(e, n) for e, n in enumerate(LENGTHS)]
    for name in whole[0]:
        expected = np.concatenate([c[name] for c in whole])
        assert np.array_equal(data.columns[name], expected), name
    assert data.columns["frame_index"][:6].tolist() == [0, 1, 2, 3, 4, 0]
    assert [data.task(i) for i in (0, 5, 15)] == ["task 0", "task 1", "task 0"]


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_a_row_has_its_own_picture(version: str, tmp_path: Path):
    camera = made(tmp_path, version).camera(CAMERA)
    rows = np.array([15, 0, 4, 5, 11, 12, 5])
    wanted = [shade(2, 3), shade(0, 0), shade(0, 4), shade(1, 0), shade(1, 6), shade(2, 0)]
    found = camera.read(rows)
    assert found.shape == (7, *SIZE, 3)
    assert np.abs(found.mean((1, 2, 3)) - [*wanted, shade(1, 0)]).max() < 2


@pytest.mark.parametrize("kind", ["video", "image"])
def test_pictures_are_decoded_once_into_the_cache(kind: str, tmp_path: Path):
    data = open_dataset(write_v3(tmp_path / "set", kind))
    kept = caching.keep_frames(data, CAMERA, None, 2**30)
    rows = np.arange(16)
    assert isinstance(kept.camera, caching.Mapped)
    assert np.array_equal(kept.camera.read(rows), data.camera(CAMERA).read(rows))
    if kind == "image":
        whole = np.concatenate([pictures(e, n) for e, n in enumerate(LENGTHS)])
        assert np.array_equal(kept.camera.read(rows), whole)
    data.cameras = {}  # a second time nothing is decoded
    data.cameras[CAMERA] = kept.camera
    (file,) = (tmp_path / "cache" / "frames").glob("*.frames")
    before = file.stat().st_ino
    caching.keep_frames(data, CAMERA, None, 2**30)
    assert file.stat().st_ino == before


@pytest.mark.parametrize("channels", [1, 4])
def test_pictures_with_other_channels_are_kept_without_loss(channels: int, tmp_path: Path):
    features = {
        "action": Feature("float32", (1,)),
        "observation.images.a.b": Feature("image", (6, 8, channels)),
    }
    rng = np.random.default_rng(0)
    shown = rng.integers(0, 256, (5, 6, 8, channels), dtype=np.uint8)
    with LeRobotWriter(tmp_path / "set", Recording(10, features)) as writer:
        writer.add({"action": np.zeros((5, 1))}, {"observation.images.a.b": shown})
    data = open_dataset(tmp_path / "set")
    assert np.array_equal(data.camera("observation.images.a.b").read(np.arange(5)), shown)
    assert list(observations(data, {})) == ["a_b"]
    small = caching.Resized(data.camera("observation.images.a.b"), (3, 4)).read(np.arange(5))
    assert np.abs(small.mean((1, 2)) - shown.mean((1, 2))).max() < 20
    with pytest.raises(DataError, match="even sides and 3 channels"):
        LeRobotWriter(tmp_path / "no", Recording(10, {"x": Feature("video", (6, 8, channels))}))


def test_a_depth_map_is_not_taken_for_colours(tmp_path: Path):
    folder = write_v3(tmp_path / "set", "video")
    info = folder / "meta" / "info.json"
    info.write_text(info.read_text().replace('"video.is_depth_map": false', '"is_depth_map": true'))
    with pytest.raises(DataError, match="is a depth map, which is not supported"):
        open_dataset(folder).camera(CAMERA).read(np.array([0]))


def test_the_cache_is_bounded(tmp_path: Path):
    sets = [open_dataset(write_v3(tmp_path / str(n), "image", (n,))) for n in (3, 4, 5)]
    one = 5 * SIZE[0] * SIZE[1] * 3
    for data in sets:
        caching.keep_frames(data, CAMERA, None, 2 * one)
    folder = tmp_path / "cache" / "frames"
    assert sum(p.stat().st_size for p in folder.glob("*.frames")) <= 2 * one
    assert len(list(folder.glob("*.frames"))) == 2
    kept = caching.keep_frames(sets[2], CAMERA, (8, 12), 10)
    assert "decoded for every batch" in kept.notes[0]
    assert kept.camera.read(np.array([4])).shape == (1, 8, 12, 3)
    assert abs(kept.camera.read(np.array([4])).mean() - shade(0, 4)) < 1


def test_many_files_of_data_and_video_are_one_set(tmp_path: Path):
    folder = write_v3(tmp_path / "set", "video", (5, 7, 4, 6), video_mb=1e-4, data_mb=1e-5)
    assert len(list(folder.rglob("*.mp4"))) == 4
    assert len(list((folder / "data").rglob("*.parquet"))) == 4
    data = open_dataset(folder)
    assert data.columns["index"].tolist() == list(range(22))
    shown = data.camera(CAMERA).read(np.arange(22)).mean((1, 2, 3))
    lengths = enumerate((5, 7, 4, 6))
    assert np.abs(shown - [shade(e, i) % 256 for e, n in lengths for i in range(n)]).max() < 2


def test_statistics_are_exact_and_those_of_episodes_add_up(tmp_path: Path):
    data = made(tmp_path, "v3.0")
    state = data.columns["observation.state"].astype(np.float64)
    for stats in (data.stored, statistics.compute(data)):
        about = stats["observation.state"]
        assert np.allclose(about["mean"], state.mean(0))
        assert np.allclose(about["std"], state.std(0))
        assert np.allclose(about["q99"], np.quantile(state, 0.99, axis=0))
        assert about["count"].tolist() == [16]
        assert stats[CAMERA]["mean"].shape == (3, 1, 1)
        assert 0 < stats[CAMERA]["mean"].max() < 1
    each = episode_statistics(data.place)
    assert each[1]["action"]["max"].tolist() == [np.float32(106 / 200)]
    together = statistics.aggregate(list(each.values()))["observation.state"]
    assert np.allclose(together["std"], state.std(0))
    old = made(tmp_path, "v2.1")
    assert np.allclose(old.stored["observation.state"]["std"], state.std(0))
    assert "q01" not in old.stored["observation.state"]


def test_statistics_of_some_episodes_are_their_own(tmp_path: Path):
    data = made(tmp_path, "v3.0")
    whole = statistics.cached(data, ["action"])["action"]["count"]
    data.episodes = data.episodes[:1]
    assert (whole[0], statistics.cached(data, ["action"])["action"]["count"][0]) == (16, 5)


@pytest.mark.parametrize("codec", ["libx264", "libsvtav1"])
def test_frames_that_need_later_ones_are_found(codec: str, tmp_path: Path):
    """With B-frames and few keyframes, the order in the file is not that of presentation."""
    import av

    path, num = tmp_path / "film.mp4", 40
    options = {"g": "17", "crf": "10", **({"bf": "3"} if codec == "libx264" else {"preset": "12"})}
    rng = np.random.default_rng(0)
    shades = rng.permutation(np.linspace(10, 240, num)).astype(np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, 30, options=options)
        stream.height, stream.width, stream.pix_fmt = 64, 64, "yuv420p"
        for shade_ in shades:
            frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), shade_), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    time = (np.arange(num) / 30).astype(np.float32).astype(np.float64)
    rows = np.zeros(num, np.int64)
    camera = VideoCamera("top", (64, 64, 3), Clips([path], rows, time, rows, 30))
    kept = np.zeros((num, 64, 64, 3), np.uint8)
    assert camera.in_order(lambda at, pictures: kept.__setitem__(at, pictures)) == {}
    assert np.abs(kept.mean((1, 2, 3)) - shades).max() < 3
    order = rng.permutation(num)
    for part in np.split(order, 8):
        assert np.array_equal(camera.read(part), kept[part])


def test_statistics_are_kept_by_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    data = made(tmp_path, "v3.0")
    first = statistics.cached(data, ["action"])
    monkeypatch.setattr(statistics, "compute", lambda *_: pytest.fail("it was computed again"))
    again = statistics.cached(open_dataset(data.place), ["action"])
    assert all(np.array_equal(first["action"][k], again["action"][k]) for k in first["action"])


def test_delta_timestamps_stay_inside_the_episode(tmp_path: Path):
    data = made(tmp_path, "v3.0")
    rows, pad = data.at_deltas(6, [-0.5, -0.1, 0.0, 0.2, 0.9])
    assert rows.tolist() == [5, 5, 6, 8, 11]
    assert pad.tolist() == [True, False, False, False, True]
    with pytest.raises(DataError, match="not all multiples of a frame, 1/10 s"):
        data.at_deltas(6, [0.0, 0.15])


def test_a_copy_has_the_same_fingerprint_and_a_change_another(tmp_path: Path):
    one, two = write_v3(tmp_path / "a"), write_v3(tmp_path / "b")
    assert open_dataset(one).fingerprint == open_dataset(two).fingerprint
    info = two / "meta" / "info.json"
    info.write_text(info.read_text().replace("unknown", "other"))
    assert open_dataset(one).fingerprint != open_dataset(two).fingerprint


# -- faults ---------------------------------------------------------------------------------------


def test_a_damaged_data_file_is_named_with_its_episode(tmp_path: Path):
    folder = write_v2(tmp_path / "set")
    (folder / "data" / "chunk-000" / "episode_000001.parquet").write_bytes(b"PAR1 nonsense")
    data = open_dataset(folder)
    assert list(data.broken) == [1]
    with pytest.raises(DataError, match=r"episode 1 is corrupted: .*episode_000001.parquet"):
        data.check_whole(data.broken, skip=False)
    assert [e.index for e in data.episodes] == [0, 2]
    assert "episode 1 is skipped" in data.check_whole(data.broken, skip=True)[0]


def test_a_damaged_video_is_named_with_its_episode(tmp_path: Path):
    folder = write_v2(tmp_path / "set")
    video = folder / "videos" / "chunk-000" / CAMERA / "episode_000002.mp4"
    video.write_bytes(video.read_bytes()[:300])
    data = open_dataset(folder)
    with pytest.raises(DataError, match=r"episode_000002.mp4: episode 2 of .*cam is corrupted"):
        data.camera(CAMERA).read(np.array([13]))
    kept = caching.keep_frames(data, CAMERA, None, 2**30)
    assert list(kept.broken) == [2]
    again = caching.keep_frames(data, CAMERA, None, 2**30)  # found in the cache
    assert again.broken == kept.broken


def test_a_video_that_is_too_short_is_damage(tmp_path: Path):
    folder = write_v2(tmp_path / "set")
    video = folder / "videos" / "chunk-000" / CAMERA
    (video / "episode_000001.mp4").write_bytes((video / "episode_000000.mp4").read_bytes())
    kept = caching.keep_frames(open_dataset(folder), CAMERA, None, 2**30)
    assert list(kept.broken) == [1]
    assert "no frame at a timestamp" in kept.broken[1]


@pytest.mark.parametrize("codec", ["libx264", "libsvtav1"])
def test_damage_in_a_file_of_many_episodes_takes_only_its_own(codec: str, tmp_path: Path):
    import av

    folder = write_v3(tmp_path / "set", "video", (8, 8, 8), codec=codec)
    (video,) = folder.rglob("*.mp4")
    with av.open(str(video)) as container:
        packets = [(p.pos, p.size) for p in container.demux(video=0) if p.size]
    where, size = packets[12]
    content = bytearray(video.read_bytes())
    content[where : where + size] = bytes([0xFF] * size)
    video.write_bytes(content)
    (rows,) = (folder / "data").rglob("*.parquet")
    group = pq.ParquetFile(rows).metadata.row_group(2).column(0)
    content = bytearray(rows.read_bytes())
    content[group.data_page_offset : group.data_page_offset + 24] = bytes([0xFF] * 24)
    rows.write_bytes(content)
    data = open_dataset(folder)
    assert list(data.broken) == [2]
    assert "0 of the episode's 8 frames" in data.broken[2]
    with pytest.raises(DataError, match="episode 1 of"):  # not the first that is asked for
        data.camera(CAMERA).read(np.arange(16))
    kept = caching.keep_frames(data, CAMERA, None, 2**30)
    assert list(kept.broken) == [1]
    assert "cannot be decoded" in kept.broken[1]
    shown = kept.camera.read(np.arange(8)).mean((1, 2, 3))
    assert np.abs(shown - [shade(0, i) for i in range(8)]).max() < 3


def test_missing_frames_are_damage(tmp_path: Path):
    folder = write_v2(tmp_path / "set")
    episodes = folder / "meta" / "episodes.jsonl"
    episodes.write_text(episodes.read_text().replace('"length": 7', '"length": 9'))
    assert "7 of the episode's 9 frames" in open_dataset(folder).broken[1]


def test_what_is_missing_is_named(tmp_path: Path):
    data = made(tmp_path, "v3.0")
    with pytest.raises(DataError, match=r"no camera 'top'.*\n.*observation\.images\.cam"):
        data.camera("top")
    with pytest.raises(DataError, match=r"no feature 'observation.stat'\. Did you mean"):
        data.feature("observation.stat")
    info = data.place / "meta" / "info.json"
    node = json.loads(info.read_text())
    node["features"]["observation.force"] = {"dtype": "float32", "shape": [6], "names": None}
    info.write_text(json.dumps(node))
    with pytest.raises(DataError, match=r"'observation\.force' is missing from its data"):
        open_dataset(data.place)
    del node["features"]["observation.force"]
    info.write_text(json.dumps(node))
    episodes = data.place / "meta" / "episodes" / "chunk-000" / "file-000.parquet"
    table = pq.read_table(episodes)
    pq.write_table(table.drop_columns([f"videos/{CAMERA}/from_timestamp"]), episodes)
    with pytest.raises(DataError, match=rf"the column 'videos/{CAMERA}/from_timestamp' is missing"):
        open_dataset(data.place)
    info.write_text(json.dumps({**node, "codebase_version": "v1.6"}))
    with pytest.raises(DataError, match=r"'v1.6' is not one of v2.0, v2.1, v3.0"):
        open_dataset(data.place)
    with pytest.raises(DataError, match="no such dataset"):
        open_dataset(tmp_path / "nowhere")


def test_a_writer_that_fails_leaves_nothing(tmp_path: Path):
    features = {"action": Feature("float32", (1,))}

    def write() -> None:
        with LeRobotWriter(tmp_path / "set", Recording(10, features)) as writer:
            writer.add({"action": np.zeros((3, 1))}, {})
            writer.add({"act": np.zeros((3, 1))}, {})

    with pytest.raises(DataError, match="'action' is missing from episode 1"):
        write()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.skipif(not GOLDEN.is_dir(), reason="DREAMLAB_GOLDEN names no folder of fixtures")
def test_a_set_that_lerobot_wrote_is_read_as_lerobot_reads_it():
    data = open_dataset(GOLDEN)
    expected = json.loads((GOLDEN / "expected.json").read_text())
    assert (data.num_frames, len(data.episodes), data.fps) == (203, 7, 10)
    kept = caching.keep_frames(data, "observation.images.top", None, 2**30)
    for wanted in expected["samples"]:
        row = wanted["index"]
        assert data.task(row) == wanted["task"]
        for name in ("observation.state", "action", "next.reward", "next.done", "timestamp"):
            assert np.array_equal(data.columns[name][row], np.float32(wanted[name])), name
        for camera in (kept.camera, data.camera("observation.images.top")):
            picture = camera.read(np.array([row]))[0] / 255
            assert np.allclose(picture.mean((0, 1)), wanted["image_mean"], atol=1e-6)
            assert np.allclose(picture[16, :, 0], wanted["image_row16"], atol=1e-6)
