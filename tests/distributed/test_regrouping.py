"""What cannot be kept with another number of processes is said, and written into the manifest."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dreamlab import training
from dreamlab.cli import main
from dreamlab.config import to_yaml
from dreamlab.core.files import CACHE
from dreamlab.engine import processes
from dreamlab.interop.strangers import read_config
from dreamlab.runs import verify
from dreamlab.runs.run import Run
from tests.distributed.ranks import run_ranks
from tests.engine.test_from_data import write
from tests.helpers import config_of, open_loop, run_for, some_of

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
    "dreamer": ("dreamer_cartpole", "training.total_frames=300"),
}
STOP_AFTER = {"rainbow": 60, "ppo": 1, "dreamer": 15}
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
    if kind == "dreamer":
        return []
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
    (told,) = manifest["regrouped"]
    assert (told["from"], told["to"]) == (then, now)
    expected = [EPISODES, STREAMS, *([METRICS] if then > 1 else []), *rest_of(kind, then, now)]
    assert told["lost"] == expected
    assert manifest["exact_resume"] is False


def test_every_change_of_the_number_of_processes_is_listed(tmp_path):
    """There and back: the last change alone would hide the first."""
    words = words_of("ppo", tmp_path)

    def go_on(rank: int) -> str:
        return run_for(open_loop(tmp_path / "run", *words), 1)

    path = tmp_path / "run" / "manifest.json"
    go_on(0)
    run_ranks(go_on, tmp_path / "r", 2)
    older = json.loads(path.read_text())
    (older["regrouped"],) = older["regrouped"]  # as older versions wrote it
    path.write_text(json.dumps(older))
    row = ("distributed.processes", "1, then 2 (regrouped: not exact)", "the same throughout")
    assert row in verify.surroundings(Run(tmp_path / "run"))
    for _ in range(2):  # the first ends before it has saved
        loop = open_loop(tmp_path / "run", *words)
    assert loop.run() == "finished"
    run = Run(tmp_path / "run")
    assert [(x["from"], x["to"]) for x in run.manifest["regrouped"]] == [(1, 2), (2, 1)]
    row = ("distributed.processes", "1, then 2, then 1 (regrouped: not exact)", row[2])
    assert row in verify.surroundings(run)
    said = (tmp_path / "run" / "events.jsonl").read_text()
    assert "continuing with 2 processes instead of 1:" in said
    assert "continuing with 1 process instead of 2:" in said


def test_a_run_whose_weights_are_sharded_from_now_on_is_no_longer_exact(tmp_path):
    words = ("dqn_cartpole", *COMMON, "training.total_frames=160", "threads=1")
    several = ("distributed.processes=2", "distributed.shard_least=16")

    def begin(rank: int) -> str:
        return run_for(open_loop(tmp_path / "run", *words, several[0]), 4)

    def same(rank: int) -> bool:
        loop = open_loop(tmp_path / "run", *words, several[0])
        return loop.run_log.manifest["exact_resume"]

    def sharded(rank: int) -> str:
        return open_loop(tmp_path / "run", *words, *several, "distributed.shard=true").run()

    run_ranks(begin, tmp_path / "r")
    assert run_ranks(same, tmp_path / "r")[0] is True
    assert run_ranks(sharded, tmp_path / "r") == ["finished"] * 2
    run = Run(tmp_path / "run")
    told = {"from": "shard=false", "to": "shard=true shard_least=16"}
    assert (run.manifest["exact_resume"], run.manifest["resharded"]) == (False, [told])
    course = "shard=false, then shard=true shard_least=16 (not exact)"
    row = ("distributed.shard", course, "the same throughout")
    assert row in verify.surroundings(run)


OPTIONS = ("distributed.shard=true", "distributed.shard_least=16", "distributed.assemble=false",
           "distributed.timeout_s=50", "distributed.check_every_updates=5")  # fmt: skip


def test_options_of_several_processes_wait_until_there_are_some_again(tmp_path, monkeypatch):
    folder, launched = tmp_path / "run", []
    words = [*words_of("ppo", tmp_path), "training.total_frames=300"]
    open_loop(folder, *words).run()
    several = config_of(*words, "distributed.processes=2", *OPTIONS, f"run.dir={folder}")
    (folder / "config.yaml").write_text(to_yaml(several))
    kept = replace(several.distributed, processes=1)
    for more in (
        ["resume", str(folder), "distributed.processes=1", "training.total_frames=600"],
        ["resume", str(folder)],
        ["train", *words, "training.total_frames=900", f"run.dir={folder}"],
    ):
        assert main(more) == 0
        assert read_config(folder, trust_code=False).distributed == kept
        final = Run(folder).manifest["final_eval"]
        assert "eval/return" in final, "assemble=false has no effect on one"
    assert main(["train", *words, *OPTIONS, f"run.dir={folder}"]) == 2, "given, they are refused"
    monkeypatch.setattr(processes, "launch", lambda *args: launched.append(args[1]) or 0)
    assert main(["resume", str(folder), "distributed.processes=2"]) == 0
    assert launched == [2]
    config = read_config(folder, trust_code=False)
    assert training.Where(processes=2).of(config).distributed == several.distributed
    assert training.with_processes(config, 2).distributed == several.distributed
