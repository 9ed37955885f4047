"""What cannot be kept with another number of processes is said, and written into the manifest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dreamlab.core.files import CACHE
from tests.distributed.ranks import run_ranks
from tests.engine.test_from_data import write
from tests.helpers import open_loop, run_for, some_of

COMMON = ("tiny=true", "device=cpu", "eval.episodes=1", "eval.video=false", "eval.num_envs=1",
          "eval.every_frames=0", "eval.every_updates=0", "checkpoint.every_s=0")  # fmt: skip
CLONE = (
    "training.phases=[{name: clone, type: offline, duration_updates: 12,"
    " workflow_hooks: [update_policy], buffer: replay}]"
)
RUNS = {
    "ppo": ("ppo_cartpole", "training.total_frames=700", "training.phases.0.collect_ticks=8"),
    "dataset": ("imitation_dataset_pendulum",),
    "run_replay": ("imitation_pendulum", CLONE),
    "rainbow": ("dqn_rainbow_cartpole", "training.total_frames=700"),
}
STOP_AFTER = {"rainbow": 60, "ppo": 1}
EPISODES, STREAMS, METRICS = (
    "running episodes", "random streams", "metrics of ranks above 0 since the last record"
)  # fmt: skip


def words_of(kind: str, folder: Path) -> list[str]:
    """Return the options of a run; what it reads is made first."""
    words = [*RUNS[kind], *COMMON]
    if kind == "dataset":
        path = write(folder / "data", "Pendulum-v1")
        words += [f"buffers.demos.path={path}", "training.phases.0.duration_updates=12"]
    if kind == "run_replay":
        first = ("imitation_pendulum", *COMMON, "training.phases.0.duration_steps=200",
                 "training.phases.1.duration_updates=1")  # fmt: skip
        open_loop(folder / "first", *first).run()
        replay = "{_target_: run_replay, run: %s, batch: 8, length: 16}" % (folder / "first")
        words.append(f"buffers.replay={replay}")
    return words


def rest_of(kind: str, then: int, now: int) -> list[str]:
    """Return what is lost of a run's buffers."""
    if kind == "rainbow":
        return ["priorities of buffer 'replay'"]
    if kind == "ppo":
        steps = 16 * 4 * then  # ticks, environments
        return [f"{steps} steps of a rollout that was not learnt from of buffer 'rollout'"]
    name = {"dataset": "demos", "run_replay": "replay"}[kind]
    one = "1 new process" if now > then else "1 former process"
    return [f"position of {one} of buffer {name!r}"]


@pytest.mark.parametrize(
    ("kind", "then", "now"),
    some_of([(k, *n) for n in ((2, 1), (1, 2), (2, 3)) for k in RUNS], quick=2),
)
def test_the_manifest_says_what_could_not_be_kept(kind, then, now, tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    words = words_of(kind, tmp_path)

    def begin(rank: int) -> None:
        loop = open_loop(tmp_path / "run", *words)
        assert run_for(loop, STOP_AFTER.get(kind, 4)) == "interrupted"

    def go_on(rank: int) -> str:
        return open_loop(tmp_path / "run", *words).run()

    run_ranks(begin, tmp_path / "r", then) if then > 1 else begin(0)
    ended = run_ranks(go_on, tmp_path / "r", now) if now > 1 else [go_on(0)]
    assert set(ended) == {"finished"}
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    told = manifest["regrouped"]
    assert (told["from"], told["to"]) == (then, now)
    expected = [EPISODES, STREAMS, *([METRICS] if then > 1 else []), *rest_of(kind, then, now)]
    assert told["lost"] == expected
    assert manifest["exact_resume"] is False
