"""The lerobot package opens what we wrote, and gives what we give.

DREAMLAB_LEROBOT_PYTHON names the Python that has it: it asks for other versions than ours.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from dreamlab.core.config import load
from dreamlab.core.files import CACHE
from dreamlab.data.dataset_source import DatasetConfig, DatasetSource
from dreamlab.data.datasets.convert import to_lerobot
from dreamlab.data.datasets.opening import open_dataset
from dreamlab.data.source import BufferContext
from tests.data.sets import write_v2, write_v3

PEER = os.environ.get("DREAMLAB_LEROBOT_PYTHON", "")
SCRIPT = Path(__file__).parents[2] / "scripts" / "lerobot_peer.py"
GOLDEN = Path(os.environ.get("DREAMLAB_GOLDEN", "")) / "lerobot_v3"
DELTAS = [-0.2, -0.1, 0.0, 0.1, 0.2, 0.3]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PEER, reason="DREAMLAB_LEROBOT_PYTHON names no Python with lerobot"),
]


def theirs(
    folder: Path, out: Path, rows: list[int], **deltas: list[float]
) -> dict[str, np.ndarray]:
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    words = [PEER, str(SCRIPT), "dump", str(folder), str(out), ",".join(map(str, rows))]
    env |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(out.parent / "hf")}
    subprocess.run([*words, json.dumps(deltas)] if deltas else words, check=True, env=env)
    return dict(np.load(out, allow_pickle=True))


@pytest.fixture(params=["video", "image", "converted", "golden"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    if request.param == "converted":
        old = open_dataset(write_v2(tmp_path / "old"))
        return to_lerobot(old, tmp_path / "set", "libx264")
    if request.param != "golden":
        return write_v3(tmp_path / "set", request.param)
    if not GOLDEN.is_dir():
        pytest.skip("DREAMLAB_GOLDEN names no folder of fixtures")
    return GOLDEN


def test_lerobot_gives_the_same_frames(folder: Path, tmp_path: Path):
    data, rows = open_dataset(folder), [0, 3, 4, 5, 11, 12, 15]
    found = theirs(folder, tmp_path / "out.npz", rows)
    assert found["count"].tolist() == [data.num_frames, len(data.episodes), data.fps]
    for row in rows:
        for name in data.columns:
            wanted, got = data.columns[name][row], found[f"{row}/{name}"]
            assert np.array_equal(np.ravel(wanted), np.ravel(got)), (row, name)
        assert str(found[f"{row}/task"]) == data.task(row)
        for name, camera in data.cameras.items():
            picture = found[f"{row}/{name}"].transpose(1, 2, 0)
            assert np.allclose(picture, camera.read(np.array([row]))[0] / 255, atol=0.01), (
                row,
                name,
            )


def test_a_window_is_what_lerobot_gives_for_delta_timestamps(folder: Path, tmp_path: Path):
    options = {"path": str(folder), "before": 2, "after": 3, "pad": "edge", "batch": 16}
    config = load(DatasetConfig, options, "demos")
    made = DatasetSource(config, BufferContext(DatasetSource.spec_of(config), 1))
    batch = made.sample()
    camera = next(iter(made.data.cameras))
    keys = {"observation.state": DELTAS, "action": DELTAS, camera: DELTAS}
    rows = [int(made.steps.row[i]) for i in batch.index[:, 2]]  # the drawn frames
    found = theirs(folder, tmp_path / "out.npz", rows, **keys)
    name = camera.removeprefix("observation.images.")
    for i, row in enumerate(rows):
        pad = batch.extras["pad"][i].numpy()
        assert np.array_equal(found[f"{row}/action_is_pad"], pad), row
        got = found[f"{row}/action"].reshape(batch.action[i].shape)
        assert np.array_equal(got, batch.action[i].numpy()), row
        assert np.array_equal(found[f"{row}/observation.state"], batch.obs["state"][i].numpy()), row
        shown = found[f"{row}/{camera}"].transpose(0, 2, 3, 1)
        assert np.allclose(shown, batch.obs[name][i].numpy() / 255, atol=0.01), row


def test_times_apart_are_what_lerobot_gives(folder: Path, tmp_path: Path):
    data, deltas = open_dataset(folder), [-0.5, -0.2, 0.0, 0.3]
    found = theirs(folder, tmp_path / "out.npz", [0, 4, 5, 8], **{"observation.state": deltas})
    for row in (0, 4, 5, 8):
        rows, pad = data.at_deltas(row, deltas)
        wanted = data.columns["observation.state"][rows]
        assert np.array_equal(found[f"{row}/observation.state"], wanted), row
        assert np.array_equal(found[f"{row}/observation.state_is_pad"], pad), row
