"""Other formats: HDF5 of both styles, Minari, our own replay; all give the same kind of steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
import pytest

from dreamlab.core.config import load
from dreamlab.core.files import CACHE
from dreamlab.data.dataset_source import DatasetConfig, DatasetSource
from dreamlab.data.datasets import frames as caching
from dreamlab.data.datasets.hdf5 import write_d4rl, write_robomimic
from dreamlab.data.datasets.opening import open_dataset
from dreamlab.data.datasets.steps import make_steps, observations
from dreamlab.data.datasets.table import DataError, Dataset, Feature
from dreamlab.data.source import BufferContext
from tests.data.sets import CAMERA, write_v3
from tests.data.streams import EPISODE, feed, replay
from tests.helpers import need


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))


def steps_of(data: Dataset) -> dict[str, np.ndarray]:
    return make_steps(data, observations(data, {}), False, "done").arrays


def d4rl(path: Path, **more: Any) -> Path:
    """Write ten rows: three to a terminal, four to a timeout, three that nothing ends."""
    rows = np.arange(10, dtype=np.float32)
    ends = {"terminals": rows == 2, "timeouts": rows == 6}
    arrays = {"observations": rows[:, None], "actions": -rows[:, None], "rewards": rows + 1}
    with h5py.File(path, "w") as file:
        for name, value in {**arrays, **ends, **more}.items():
            if value is not None:
                file[name] = value
    return path


ENDS = ("next.reward", "next.done", "next.truncated", "next.success")


def with_timeout(data: Dataset) -> Dataset:
    """Return a set whose second episode ran into a time limit."""
    done, episode = data.columns["next.done"], data.columns["episode_index"]
    data.columns["next.truncated"] = done & (episode == 1)
    data.features["next.truncated"] = Feature("bool", (1,))
    return data


def test_d4rl_knows_terminals_from_timeouts(tmp_path: Path):
    data = open_dataset(d4rl(tmp_path / "a.hdf5", **{"infos/qpos": np.zeros((10, 2))}))
    assert data.kind == "d4rl hdf5"
    assert [e.length for e in data.episodes] == [3, 3, 2]  # what follows a timeout is not there
    steps = steps_of(data)
    assert steps["obs/state"][:, 0].tolist() == [0, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9]
    assert steps["reward"].tolist() == [0, 1, 2, 3, 0, 4, 5, 6, 0, 8, 9]
    assert np.flatnonzero(steps["is_last"]).tolist() == [3, 7, 10]
    assert np.flatnonzero(steps["is_terminal"]).tolist() == [3]
    assert data.features["infos.qpos"].shape == (2,)


def test_d4rl_with_next_observations_loses_nothing(tmp_path: Path):
    after = np.arange(1, 11, dtype=np.float32)[:, None]
    after[[2, 6]] = [[50], [60]]
    for timeouts in ({}, {"timeouts": None}):  # without them an episode ends where the next begins
        data = open_dataset(
            d4rl(tmp_path / f"{len(timeouts)}.h5", next_observations=after, **timeouts)
        )
        assert [e.length for e in data.episodes] == [3, 4, 3]
        state = steps_of(data)["obs/state"][:, 0].tolist()
        assert state == [0, 1, 2, 50, 3, 4, 5, 6, 60, 7, 8, 9, 10]


def test_a_set_survives_hdf5_and_back(tmp_path: Path):
    original = with_timeout(open_dataset(write_v3(tmp_path / "set", "image")))
    assert write_robomimic(original, tmp_path / "demos.hdf5") == []
    data = open_dataset(tmp_path / "demos.hdf5")
    assert data.kind == "robomimic hdf5"
    assert (data.fps, data.tasks) == (10, ["task 0", "task 1"])
    for name in ("observation.state", "action", *ENDS):
        assert np.array_equal(data.columns[name], original.columns[name]), name
    assert np.flatnonzero(steps_of(data)["is_terminal"]).tolist() == [5, 18]  # 13 is a timeout
    rows = np.array([3, 15, 0, 7, 7])
    assert np.array_equal(data.camera(CAMERA).read(rows), original.camera(CAMERA).read(rows))
    kept = caching.keep_frames(data, CAMERA, None, 2**30).camera
    assert np.array_equal(kept.read(np.arange(16)), original.camera(CAMERA).read(np.arange(16)))
    flat = open_dataset(write_v3(tmp_path / "flat"))
    (note,) = write_d4rl(flat, tmp_path / "flat.hdf5")
    assert note.endswith("D4RL HDF5 has no place for next.success, the tasks: left out")
    one, two = steps_of(flat), steps_of(open_dataset(tmp_path / "flat.hdf5"))
    assert all(np.array_equal(one[k], two[k]) for k in one)
    with pytest.raises(DataError, match="one observation vector, not"):
        write_d4rl(original, tmp_path / "no.hdf5")


def test_what_a_format_cannot_hold_is_told(tmp_path: Path):
    infos = {"infos/qpos": np.arange(20).reshape(10, 2)}
    data = open_dataset(d4rl(tmp_path / "a.hdf5", **infos))
    data.columns["observation.words"] = np.full(data.num_rows, "push", object)
    data.features["observation.words"] = Feature("string", (1,))
    (note,) = write_robomimic(data, tmp_path / "b.hdf5")
    assert note.endswith("has no place for observation.words, infos.qpos: left out")
    assert "observation.words" not in open_dataset(tmp_path / "b.hdf5").features
    data = open_dataset(d4rl(tmp_path / "c.hdf5", **infos))
    assert write_d4rl(data, tmp_path / "d.hdf5") == []
    again = open_dataset(tmp_path / "d.hdf5")
    assert np.array_equal(again.columns["infos.qpos"], data.columns["infos.qpos"])


def test_robomimic_remembers_the_end(tmp_path: Path):
    with h5py.File(tmp_path / "demos.hdf5", "w") as file:
        for name, length in (("demo_2", 2), ("demo_10", 3)):
            demo = file.create_group(f"data/{name}")
            demo["actions"] = np.zeros((length, 2))
            demo["rewards"], demo["dones"] = np.ones(length), np.arange(length) == length - 1
            demo["obs/eef"] = np.arange(length)[:, None]
            demo["next_obs/eef"] = 1 + np.arange(length)[:, None]
    data = open_dataset(tmp_path / "demos.hdf5")
    assert [e.index for e in data.episodes] == [2, 10]  # by number, not by letter
    assert steps_of(data)["obs/eef"][:, 0].tolist() == [0, 1, 2, 0, 1, 2, 3]


def test_damage_in_hdf5_is_named(tmp_path: Path):
    path = tmp_path / "demos.hdf5"
    write_robomimic(open_dataset(write_v3(tmp_path / "set")), path)
    with h5py.File(path, "a") as file:
        del file["data/demo_1/actions"]
        del file["data/demo_2/rewards"]
        file["data/demo_2/rewards"] = np.zeros(3)
    data = open_dataset(path)
    assert data.broken == {
        1: "data/demo_1: 'actions' is missing", 2: "'next.reward' has 3 frames, 'action' 4",
    }  # fmt: skip
    path.write_bytes(b"not hdf5")
    with pytest.raises(DataError, match=r"demos\.hdf5 is corrupted"):
        open_dataset(path)
    with h5py.File(path, "w") as file:
        file["states"] = np.zeros(3)
    with pytest.raises(DataError, match=r"expected data/demo_N/actions .* found states"):
        open_dataset(path)


def test_a_runs_replay_is_a_data_set(tmp_path: Path):
    made = replay(folder=tmp_path / "run" / "buffers" / "replay", capacity=200)
    feed(made, 2 * EPISODE + 3)
    made.save()
    data = open_dataset(tmp_path / "run")
    assert data.kind == "run replay"
    lengths = [e.length for e in data.episodes]  # those at the edges are parts of episodes
    assert max(lengths) == EPISODE - 1
    assert min(lengths) < EPISODE - 1
    steps = steps_of(data)
    stored = made.store.data  # type: ignore[union-attr]
    for name in ("obs/state", "reward"):
        theirs = stored[name][:, : made.added].flatten(0, 1).numpy()
        later = ~steps["is_first"] if name == "reward" else slice(None)
        assert np.array_equal(steps[name][later], theirs[later]), name
    config = load(DatasetConfig, {"path": str(tmp_path / "run"), "after": 1, "pad": "edge"}, "d")
    spec = DatasetSource.spec_of(config)
    assert spec.obs["state"].shape == made.place.spec.obs["state"].shape
    batch = DatasetSource(config, BufferContext(spec, 1)).sample()
    assert (batch.obs["state"][:, 1, 0] - batch.obs["state"][:, 0, 0] == 1).all()
    with pytest.raises(DataError, match="is not a supported dataset"):
        open_dataset(tmp_path)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    minari = need("minari")
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    rows = [np.arange(n + 1, dtype=np.float32)[:, None] + 10 * n for n in (3, 4)]
    buffers = [
        EpisodeBuffer(
            id=i, seed=None, options=None, observations={"pos": r}, actions=-r[1:],
            rewards=list(np.arange(1.0, len(r))), infos=None,
            terminations=[False] * (len(r) - 2) + [i == 0],
            truncations=[False] * (len(r) - 2) + [i == 1],
        )
        for i, r in enumerate(rows)
    ]  # fmt: skip
    box = gym.spaces.Box(-100, 100, (1,), np.float32)
    minari.create_dataset_from_buffers(
        dataset_id="toy/line-v0", buffer=buffers, env=None, eval_env=None,
        observation_space=gym.spaces.Dict({"pos": box}), action_space=box,
    )  # fmt: skip
    data = open_dataset("minari:toy/line-v0")
    assert [e.length for e in data.episodes] == [3, 4]
    steps = steps_of(data)
    assert np.array_equal(steps["obs/pos"], np.concatenate(rows))
    assert steps["reward"].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4]
    assert np.flatnonzero(steps["is_terminal"]).tolist() == [3]
    assert data.features["action"].low == (-100,)
    with pytest.raises(DataError, match=r"no such local dataset .* toy/line-v0"):
        open_dataset("minari:toy/other-v0")
    assert np.flatnonzero(steps["is_last"]).tolist() == [3, 8]
