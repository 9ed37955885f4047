"""What trackers are given is read back with their own readers."""

from __future__ import annotations

import importlib
import io
import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dreamlab.build import about_run
from dreamlab.core.errors import LabError
from dreamlab.engine.logger import About, LogConfig, Logger
from dreamlab.engine.media import MOST_FRAMES, Media, gif, read_film
from dreamlab.engine.tensorboard_sink import TensorBoard
from dreamlab.engine.video import write_video
from dreamlab.engine.wandb_sink import WandB, run_options
from dreamlab.runs.run import Run
from dreamlab.training import train
from tests.helpers import config_of

RECORD = {"env_frames": 64.0, "decisions": 64.0, "updates": 2.0, "episode/return": 3.5}
FINAL = {"eval/return": 7.0, "eval/length": 20.0}
SMALL = (
    "dreamer_cartpole", "+preset=debug", "training.total_frames=400", "report.every_frames=200",
    "eval.video_every=true", "device=cpu", "log.terminal=off",
)  # fmt: skip


@pytest.fixture
def about(tmp_path: Path) -> About:
    options = {"workflow.gamma": 0.9, "workflow.network.hidden": [64, 64], "start": None}
    text = "workflow:\n  gamma: 0.9\n"
    return About("ppo_cartpole", tmp_path / "first", text, options, options, ("night",))


def film(folder: Path, count: int = 6) -> Path:
    frames = [np.full((32, 48, 3), 40 * i % 255, np.uint8) for i in range(count)]
    return write_video(folder / "videos" / "eval_000000000064.mp4", frames, 10)


def picture(folder: Path) -> Path:
    path = folder / "report" / "openloop_state_000000000064.png"
    path.parent.mkdir(parents=True)
    Image.fromarray(np.zeros((20, 30, 3), np.uint8)).save(path)
    return path


def tracked(tracker: Any, folder: Path) -> None:
    """Let a tracker hear of a whole small run."""
    logger = Logger([tracker])
    logger.flush(RECORD)
    logger.media([film(folder), picture(folder), folder / "videos" / "eval.frames.npy"], 64)
    logger.ended(FINAL)
    logger.close()


# -- media ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "name", "kind"),
    [
        ("videos/eval_000000006008.mp4", "videos/eval", "video"),
        ("videos/eval_000000006008.frames.png", "videos/eval", "image"),
        ("report/openloop_state_000000000010_000000000200.mp4", "report/openloop_state", "video"),
        ("report/learning_curve.png", "report/learning_curve", "image"),
        ("videos/eval_000000006008.frames.npy", "videos/eval", "other"),
    ],
)
def test_a_file_has_the_same_name_every_time(path: str, name: str, kind: str) -> None:
    media = Media(Path("run") / path, 10)
    assert (media.name, media.kind) == (name, kind)


def test_a_long_and_large_film_becomes_a_small_gif(tmp_path: Path) -> None:
    frames = [np.full((700, 500, 3), i % 255, np.uint8) for i in range(300)]
    encoded, height, width = gif(frames, 30.0)
    with Image.open(io.BytesIO(encoded)) as animated:
        assert animated.size == (width, height) == (167, 234)
        assert 1 < animated.n_frames <= MOST_FRAMES  # type: ignore[attr-defined]
    shown, fps = read_film(film(tmp_path))
    assert (len(shown), fps) == (6, 10.0)


# -- TensorBoard ----------------------------------------------------------------------------------


def events_of(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return events


def hparams_of(events: Any) -> tuple[dict[str, Any], list[str]]:
    """Return the hyperparameters and the names of the metrics, by TensorBoard's own messages."""
    messages: Any = importlib.import_module("tensorboard.plugins.hparams.plugin_data_pb2")
    contents = events.summary_metadata
    data: dict[str, Any] = {
        tag: messages.HParamsPluginData.FromString(contents[tag].plugin_data.content)
        for tag in contents
        if contents[tag].plugin_data.plugin_name == "hparams"
    }
    start = data["_hparams_/session_start_info"].session_start_info.hparams
    infos = data["_hparams_/experiment"].experiment.metric_infos
    kinds = ("number_value", "string_value", "bool_value")
    values = {
        k: next(getattr(v, kind) for kind in kinds if v.HasField(kind)) for k, v in start.items()
    }
    return values, [m.name.tag for m in infos]


def test_tensorboard_has_the_configuration_the_results_and_the_films(about: About) -> None:
    tracked(TensorBoard(about), about.folder)
    events = events_of(about.folder)
    assert [(e.step, e.value) for e in events.Scalars("episode/return")] == [(64, 3.5)]
    text = events.Tensors("config/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "gamma: 0.9" in text
    shown = events.Images("videos/eval")[0]
    assert (shown.step, shown.width, shown.height) == (64, 240, 160)
    with Image.open(io.BytesIO(shown.encoded_image_string)) as animated:
        assert (animated.format, animated.n_frames) == ("GIF", 6)  # type: ignore[attr-defined]
    assert events.Images("report/openloop_state")[0].encoded_image_string[1:4] == b"PNG"
    options, metrics = hparams_of(events)
    assert options == {
        "workflow.gamma": 0.9, "workflow.network.hidden": "[64, 64]", "start": "None",
    }  # fmt: skip
    assert metrics == ["eval/return", "eval/length"]


def test_a_run_shows_its_last_episode_and_its_curve(tmp_path: Path) -> None:
    words = ("training.total_frames=512", "eval.every_frames=0", "eval.episodes=1")
    words = (*words, "eval.video_frames=20", "device=cpu", "log.terminal=off")
    run, _ = train(
        config_of("ppo_cartpole", *words, "log.tensorboard=true", f"run.dir={tmp_path}/r")
    )
    events = events_of(run.folder)
    frames = run.metrics()[-1]["env_frames"]
    for name in ("videos/eval", "report/learning_curve"):
        assert [e.step for e in events.Images(name)] == [frames]
    assert "eval/return" in hparams_of(events)[1]


@pytest.mark.slow
def test_a_run_shows_its_episodes_its_dreams_and_its_curve(tmp_path: Path) -> None:
    config = config_of(*SMALL, "log.tensorboard=true", f"run.dir={tmp_path / 'run'}")
    run, status = train(config)
    assert status == "finished"
    events = events_of(run.folder)
    images = {tag: [e.step for e in events.Images(tag)] for tag in events.Tags()["images"]}
    assert {"videos/eval", "report/openloop_state", "report/learning_curve"} <= set(images)
    frames = run.metrics()[-1]["env_frames"]
    assert images["report/openloop_state"][-1] == images["report/learning_curve"][-1] == frames
    options, metrics = hparams_of(events)
    assert options["workflow.imagine"] == config.workflow.config.imagine
    assert "run.dir" not in options
    assert "eval/return" in metrics


# -- W&B ------------------------------------------------------------------------------------------


BLOCK = 32_768
HEADER = struct.Struct("<IHB")
"""Checksum, length, and whether it is whole (1), the first (2), a middle (3) or last (4) part."""


def chunks(data: bytes) -> Iterator[bytes]:
    """Yield what a `.wandb` file holds: a log of LevelDB's kind behind seven bytes of its own."""
    assert data[:4] == b":W&B"
    at, parts = 7, b""
    while at + HEADER.size <= len(data):
        if BLOCK - at % BLOCK < HEADER.size:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = HEADER.unpack_from(data, at)
        at += HEADER.size + length
        parts += data[at - length : at]
        if kind in (1, 4):
            yield parts
            parts = b""


def records_of(folder: Path) -> list[Any]:
    """Return what an offline run has written, by W&B's own messages."""
    messages: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    files = list((folder / "wandb").glob("offline-run-*/*.wandb"))
    end = time.monotonic() + 60.0  # its process writes the last of it after the run has ended
    while time.monotonic() < end:
        found = [messages.Record.FromString(c) for f in files for c in chunks(f.read_bytes())]
        if found and found[-1].HasField("exit"):
            return found
        time.sleep(0.05)
    raise AssertionError(f"{files}: the run has no end")


def items(record: Any) -> dict[str, Any]:
    """Return the keys and values of a record's items."""
    return {i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in record.item}


def clear(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [n for n in os.environ if n.startswith("WANDB_")]:
        monkeypatch.delenv(name)


def test_wandb_has_the_configuration_the_results_and_the_films(
    about: About, monkeypatch: pytest.MonkeyPatch
) -> None:
    clear(monkeypatch)
    monkeypatch.setenv("WANDB_NOTES", "what it is for")
    monkeypatch.setenv("WANDB_PROJECT", "another")
    about.folder.mkdir()
    tracked(
        WandB(LogConfig(wandb=True, wandb_project="lab", wandb_entity="us"), about), about.folder
    )
    records = records_of(about.folder)
    run = next(r.run for r in records if r.HasField("run"))
    assert (run.project, run.entity, run.run_group) == ("lab", "us", "ppo_cartpole")
    assert (run.display_name, run.job_type) == ("ppo_cartpole first", "train")
    assert (run.notes, list(run.tags)) == ("what it is for", ["night"])
    given = {u.key: json.loads(u.value_json) for u in run.config.update}
    assert given["workflow.gamma"] == 0.9
    assert given["workflow.network.hidden"] == [64, 64]
    history = [items(r.history) for r in records if r.HasField("history")]
    assert {"_step": 64, "episode/return": 3.5}.items() <= _whole(history).items()
    kinds = {k: v for k, v in _whole(history).items() if k.endswith("._type")}
    assert kinds == {"videos/eval._type": "video-file", "report/openloop_state._type": "image-file"}
    files = list(about.folder.glob("wandb/offline-run-*/files/media/**/*.*"))
    assert sorted(f.suffix for f in files) == [".mp4", ".png"]
    ended = {k: v for r in records if r.HasField("summary") for k, v in _updates(r).items()}
    assert ended["final/return"] == 7.0


def _whole(history: list[dict[str, Any]]) -> dict[str, Any]:
    return {k: v for line in history for k, v in line.items()}


def _updates(record: Any) -> dict[str, Any]:
    update = record.summary.update
    return {u.key or ".".join(u.nested_key): json.loads(u.value_json) for u in update}


def test_an_option_comes_before_a_variable_and_a_variable_before_the_default(about: About) -> None:
    variables = {
        "WANDB_PROJECT": "p", "WANDB_ENTITY": "e", "WANDB_MODE": "online", "WANDB_NAME": "n",
        "WANDB_RUN_GROUP": "g", "WANDB_TAGS": "a,b", "WANDB_NOTES": "why", "WANDB_DIR": "d",
        "WANDB_JOB_TYPE": "j",
    }  # fmt: skip
    plain = run_options(LogConfig(wandb=True), about, {})
    assert plain == {
        "project": "dreamlab", "entity": None, "group": "ppo_cartpole", "notes": None,
        "name": "ppo_cartpole first", "job_type": "train", "tags": ("night",),
        "dir": str(about.folder), "mode": "offline", "config": about.options,
    }  # fmt: skip
    told = run_options(LogConfig(wandb=True), About("x", about.folder), variables)
    assert {k: told[k] for k in ("project", "entity", "mode", "name", "group")} == {
        "project": "p", "entity": "e", "mode": "online", "name": "n", "group": "g",
    }  # fmt: skip
    assert (told["tags"], told["notes"], told["dir"], told["job_type"]) == (
        ("a", "b"), "why", "d", "j",
    )  # fmt: skip
    own = LogConfig(
        wandb=True, wandb_project="P", wandb_entity="E", wandb_mode="offline", wandb_name="N",
        wandb_group="G", wandb_notes="W", wandb_job_type="J",
    )  # fmt: skip
    asked = run_options(own, about, variables)
    names = ("project", "entity", "mode", "name", "group", "notes", "job_type")
    assert [asked[k] for k in names] == ["P", "E", "offline", "N", "G", "W", "J"]
    assert asked["tags"] == ("night",)


def test_an_option_of_a_tracker_that_is_off_is_refused() -> None:
    with pytest.raises(LabError, match=r"wandb_entity has no effect without log\.wandb=true"):
        config_of("ppo_cartpole", "log.wandb_entity=us")
    older = config_of("ppo_cartpole", "log.wandb_project=dreamlab", "log.wandb_mode=offline")
    assert not older.log.wandb  # as the configurations of older runs have it


def test_a_run_tells_trackers_its_experiment_and_every_option(tmp_path: Path) -> None:
    config = config_of("ppo_cartpole", "run.tags=[night]", "seed=3")
    about = about_run(config, Run(tmp_path / "20260101-ppo_cartpole-s3"))
    assert (about.name, about.tags) == ("20260101-ppo_cartpole-s3", ("night",))
    assert about.options["workflow.optimizer.lr"] == 1e-3
    assert about.options["log.tensorboard"] is False
    assert "log.tensorboard" not in about.telling
    assert "seed: 3" in about.text


@pytest.mark.slow
def test_a_whole_run_reaches_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clear(monkeypatch)
    run, status = train(config_of(*SMALL, "log.wandb=true", f"run.dir={tmp_path / 'run'}"))
    assert status == "finished"
    history = _whole([items(r.history) for r in records_of(run.folder) if r.HasField("history")])
    names = {k.partition(".")[0] for k in history}
    assert {"videos/eval", "report/openloop_state", "report/learning_curve"} <= names
    assert "train/loss" in names
