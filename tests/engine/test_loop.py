"""The loop as a whole, on dummy environments: logs, evaluation, alerts, signals, profile."""

from __future__ import annotations

import json
import math
import os
import pty
import signal
import sys
import threading
import time
from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any

import pytest
import torch

from dreamlab.core.errors import DivergedError, LabError
from dreamlab.engine.checkpoint import CheckpointConfig, Checkpoints
from dreamlab.engine.evaluator import EvalResult, Evaluator
from dreamlab.engine.observer import Observer
from dreamlab.engine.signals import Deadline, on_stop
from dreamlab.training import load_policy
from tests.helpers import config_of, metrics, open_loop, run_for, some_of

SMALL = (
    "+experiment=ppo_cartpole", "tiny=true", "env.num_envs=2", "training.total_frames=400",
    "log.every_frames=100", "eval.episodes=2", "eval.num_envs=2", "eval.every_frames=0",
    "eval.video=false", "device=cpu",
)  # fmt: skip

REPLAY = "++buffers.replay={capacity: 100_000, batch: 4, length: 2}"


def events(folder):
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def test_every_record_says_where_the_run_was(tmp_path):
    open_loop(tmp_path / "r", *SMALL).run()
    records = metrics(tmp_path / "r")
    assert len(records) >= 4
    for record in records:
        assert {"env_frames", "decisions", "updates", "episodes"} <= record.keys()
    assert [r["env_frames"] for r in records] == sorted(r["env_frames"] for r in records)
    assert "eval/return" in records[-1]
    assert "train/policy_loss" in records[0]


def test_the_last_record_is_there_once(tmp_path):
    """What is due when the last frames are collected waits for the updates that follow them."""
    options = ("+experiment=ppo_cartpole", "+preset=debug", "eval.every_frames=100", "device=cpu")
    loop = open_loop(tmp_path / "r", *options)
    loop.run()
    frames = [m["env_frames"] for m in metrics(tmp_path / "r")]
    assert len(frames) > 4
    assert frames == sorted(set(frames))
    last = metrics(tmp_path / "r")[-1]
    assert "eval/return" in last
    assert last["updates"] == loop.counters.updates


def test_a_curriculum_with_a_length_takes_its_exam(tmp_path):
    exam = "{name: exam, type: eval_only, duration_cycles: 1, workflow_hooks: [evaluate]}"
    learn = (
        "{name: learn, buffer: rollout, duration_steps: 100, collect_ticks: 16,"
        " workflow_hooks: [collect, update_controller]}"
    )
    open_loop(tmp_path / "r", *SMALL, f"training.phases=[{learn},{exam}]").run()
    names = [e["name"] for e in events(tmp_path / "r") if e["event"] == "phase"]
    assert names == ["learn", "exam"]


def test_policies_are_measured_with_averaged_weights(tmp_path):
    loop = open_loop(tmp_path / "r", *SMALL, "workflow.optimizer.ema=0.9")
    play, seen = loop.parts.evaluator._play, []

    def watched(workflow: Any, *args: Any) -> Any:
        seen.append([p.detach().clone() for p in workflow.parameters()])
        return play(workflow, *args)

    loop.parts.evaluator._play = watched
    loop.run()
    weights, average = list(loop.workflow.parameters()), loop.workflow.optimizers["ppo"].average
    assert len(seen) == 1
    assert all(torch.equal(a, b) for a, b in zip(seen[0], average, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(seen[0], weights, strict=True))
    policy = load_policy(tmp_path / "r").workflow.parameters()
    assert all(torch.equal(a, b) for a, b in zip(policy, average, strict=True))


def test_the_folder_holds_what_it_promises(tmp_path):
    folder = tmp_path / "r"
    open_loop(folder, *SMALL, "eval.video=true").run()
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["status"] == "finished"
    assert manifest["versions"]["torch"] == str(torch.__version__)
    assert manifest["git"] == {} or len(manifest["git"]["commit"]) == 40
    assert manifest["final_eval"]["eval/episodes"] == 2
    assert (folder / manifest["video"]).stat().st_size > 1000
    assert [e["event"] for e in events(folder)] == ["phase", "finished"]
    latest = (folder / "checkpoints" / "latest").read_text().strip()
    assert (folder / "checkpoints" / latest / "state.pt").exists()


def test_evaluation_leaves_the_training_alone(tmp_path):
    quiet = open_loop(tmp_path / "a", *SMALL)
    quiet.run()
    often = [o for o in SMALL if "eval.every_frames" not in o]
    watched = open_loop(tmp_path / "b", *often, "eval.every_frames=50")
    watched.run()
    assert sum("eval/return" in r for r in metrics(tmp_path / "b")) > 2
    for a, b in zip(quiet.workflow.parameters(), watched.workflow.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_seed_gives_the_same_run_twice_and_another_seed_another(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        open_loop(tmp_path / name, *SMALL, f"seed={seed}").run()
    assert metrics(tmp_path / "a") == metrics(tmp_path / "b")
    assert metrics(tmp_path / "a") != metrics(tmp_path / "c")


def poison(loop):
    with torch.no_grad():
        next(loop.workflow.actor_net.parameters()).fill_(math.nan)


def test_divergence_names_the_first_bad_tensor_and_stops(tmp_path):
    loop = open_loop(tmp_path / "r", *SMALL, "watch.command='echo $ALERT_KIND > alert.txt'")
    poison(loop)
    cwd = os.getcwd()
    os.chdir(tmp_path)
    try:
        with pytest.raises(
            DivergedError,
            match=r"the first non-finite tensor is weight 'actor_net.layers.0.weight'",
        ):
            loop.run()
        deadline = time.monotonic() + 5
        while not (tmp_path / "alert.txt").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        os.chdir(cwd)
    kinds = [e["event"] for e in events(tmp_path / "r")]
    assert "alert" in kinds
    assert kinds[-1] == "failed"
    assert (tmp_path / "alert.txt").read_text().strip() == "nan"


def test_a_run_that_goes_on_with_nan_says_so_once(tmp_path):
    loop = open_loop(tmp_path / "r", *SMALL, "watch.on_nan=warn")
    poison(loop)
    loop.run()
    assert sum("nan" in str(r.values()) for r in metrics(tmp_path / "r")) > 1
    assert [e["alert"] for e in events(tmp_path / "r") if e["event"] == "alert"] == ["nan"]


def test_the_debug_preset_names_the_module_that_failed(tmp_path):
    loop = open_loop(tmp_path / "r", "+experiment=ppo_cartpole", "+preset=debug", "device=cpu")
    poison(loop)
    with pytest.raises(DivergedError, match=r"the output of module 'actor_net'|layers"):
        loop.run()


def test_a_stalled_return_is_reported_once(tmp_path):
    options = (
        *SMALL,
        "env.suite=dummy",
        "env.id=counting",
        "watch.stall_frames=100",
        "workflow.optimizer.lr=0.0",
        "++env.options={length: 8}",
    )
    open_loop(tmp_path / "r", *options).run()
    alerts = [e for e in events(tmp_path / "r") if e["event"] == "alert"]
    assert len([a for a in alerts if a["alert"] == "stall"]) == 1


@pytest.mark.parametrize("number", some_of([signal.SIGHUP, signal.SIGTERM, signal.SIGINT]))
def test_a_signal_saves_and_stops_and_the_run_goes_on_later(tmp_path, number):
    options = [o for o in SMALL if "total_frames" not in o]
    open_loop(tmp_path / "whole", *options, "training.total_frames=3000").run()
    loop = open_loop(tmp_path / "r", *options, "training.total_frames=3000")
    threading.Timer(0.15, lambda: os.kill(os.getpid(), number)).start()
    began = time.monotonic()
    assert loop.run() == "interrupted"
    assert time.monotonic() - began < 5
    assert json.loads((tmp_path / "r" / "manifest.json").read_text())["status"] == "interrupted"
    assert open_loop(tmp_path / "r", *options, "training.total_frames=3000").run() == "finished"
    assert metrics(tmp_path / "r") == metrics(tmp_path / "whole")


def test_under_nohup_a_closed_terminal_changes_nothing():
    asked = []
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with on_stop(lambda: bool(asked), lambda: asked.append(1), Deadline(None, print)):
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert asked == []


HANGS_UP = """
import sys, time
from dreamlab.engine.signals import Deadline, on_stop
asked = []
with on_stop(lambda: bool(asked), lambda: asked.append(1), Deadline(None, print)):
    print("ready", flush=True)
    while not asked:
        time.sleep(0.01)
    print("saving", flush=True)
open(sys.argv[1], "w").write("saved")
"""


def test_output_to_a_terminal_that_was_closed_does_not_keep_a_run_from_saving(tmp_path):
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", HANGS_UP, str(tmp_path / "saved")])
    said = b""
    while b"ready" not in said:
        said += os.read(terminal, 1024)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert (tmp_path / "saved").read_text() == "saved"


def test_a_second_signal_stops_at_once(tmp_path):
    class Twice(Observer):
        def before(self, action):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    loop = open_loop(tmp_path / "r", *SMALL)
    loop.observers.add(Twice())
    with pytest.raises(KeyboardInterrupt):
        loop.run()
    assert json.loads((tmp_path / "r" / "manifest.json").read_text())["status"] == "interrupted"


def test_the_profiler_writes_a_trace(tmp_path):
    open_loop(tmp_path / "r", *SMALL, "watch.profile_updates=2").run()
    trace = json.loads((tmp_path / "r" / "report" / "trace.json").read_text())
    assert any("aten" in e.get("name", "") for e in trace["traceEvents"])


def test_gradients_can_be_accumulated(tmp_path):
    loop = open_loop(tmp_path / "r", *SMALL, "training.accumulate=2")
    run_for(loop, 2)
    assert loop.workflow.optimizers["ppo"].inner.count == 1  # two epochs make one step


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_both_precisions_train(tmp_path, precision):
    open_loop(tmp_path / "r", *SMALL, f"precision={precision}").run()
    assert all(
        math.isfinite(r["train/policy_loss"])
        for r in metrics(tmp_path / "r")
        if "train/policy_loss" in r
    )


def test_deterministic_kernels_can_be_asked_for(tmp_path):
    try:
        open_loop(tmp_path / "r", *SMALL, "deterministic=true").run()
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_an_offline_phase_on_an_empty_buffer_is_an_error(tmp_path):
    phases = (
        "training.phases=[{name: fit, type: offline, buffer: rollout, duration_updates: 3, "
        "workflow_hooks: [update_controller]}]"
    )
    with pytest.raises(LabError, match="holds 0 steps, but the first batch"):
        open_loop(tmp_path / "r", *SMALL, phases).run()


def test_tensorboard_gets_one_curve_across_a_resume(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    options = (*SMALL, "log.tensorboard=true")
    run_for(open_loop(tmp_path / "r", *options), 9)
    open_loop(tmp_path / "r", *options).run()
    events = EventAccumulator(str(tmp_path / "r" / "tensorboard"))
    events.Reload()
    frames = [e.step for e in events.Scalars("episode/return")]
    assert frames == sorted(set(frames))
    written = [r["env_frames"] for r in metrics(tmp_path / "r") if "episode/return" in r]
    assert frames == written


def test_a_missing_tracker_is_one_line(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(LabError, match=r"pip install 'dreamlab\[wandb\]'"):
        open_loop(tmp_path / "r", *SMALL, "log.wandb=true")


def test_a_replay_that_does_not_fit_goes_to_disk_or_is_refused(tmp_path, monkeypatch):
    from dreamlab import build

    replay = (*SMALL, REPLAY)
    monkeypatch.setattr(build, "memory_available", lambda: 10_000)
    loop = open_loop(tmp_path / "a", *replay)
    assert loop.parts.buffers["replay"].config.storage == "disk"
    with pytest.raises(LabError, match=r"needs .* GiB when full.*Reduce buffers.replay.capacity"):
        open_loop(tmp_path / "b", *replay, "run.on_memory_shortage=refuse")
    monkeypatch.setattr(build, "disk_free", lambda path: 10_000)
    with pytest.raises(LabError, match="neither does the disk have enough space"):
        open_loop(tmp_path / "c", *replay)


def test_a_replay_lives_where_its_training_is_if_it_fits(tmp_path, monkeypatch):
    from dreamlab import build
    from dreamlab.core.config import Part
    from dreamlab.data.source import Buffer

    assert open_loop(tmp_path, *SMALL, REPLAY).parts.buffers["replay"].config.storage == "ram"
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 9000))
    part, gpu = Part.load("replay", {"capacity": 99}, "dreamlab.data", Buffer), torch.device("cuda")
    assert build._choose(part, 400, gpu).config == part.but(storage="gpu").config
    assert build._choose(part, 401, gpu).config.storage == "ram"
    rollout = Part.load("rollout", {}, "dreamlab.data", Buffer)
    assert build._choose(rollout, 1, gpu) == rollout


def test_normalisation_statistics_are_saved_and_used_for_evaluation(tmp_path):
    from dreamlab.training import load_policy

    options = (*SMALL, "++env.normalize_obs={}", "++env.normalize_reward={}")
    loop = open_loop(tmp_path / "r", *options)
    loop.run()
    trained = load_policy(tmp_path / "r")
    mean = loop.parts.collector.envs.normalizer.moments["state"].mean
    assert abs(mean).max() > 0
    assert trained.statistics["obs"]["state"]["mean"].tolist() == mean.tolist()


def test_config_of_checks_before_it_builds():
    with pytest.raises(LabError, match="Did you mean 'num_envs'"):
        config_of("+experiment=ppo_cartpole", "env.num_env=3")


def test_wandb_writes_offline_and_keeps_its_run_across_a_resume(tmp_path):
    options = (*SMALL, "log.wandb=true")
    run_for(open_loop(tmp_path / "r", *options), 9)
    open_loop(tmp_path / "r", *options).run()
    runs = [p.name for p in (tmp_path / "r" / "wandb").glob("offline-run-*")]
    assert runs
    assert len({name.split("-")[3] for name in runs}) == 1  # two in one second get a suffix


class Scripted(Evaluator):
    """Measures what it is told to."""

    def __init__(self, scores: Iterator[float]) -> None:
        self.scores = scores

    def run(self, *args: Any, **options: Any) -> EvalResult:
        return EvalResult([next(self.scores)], [1])


def test_the_best_checkpoint_is_the_one_that_was_measured(tmp_path):
    folder = tmp_path / "r"
    loop = open_loop(folder, *SMALL, "eval.every_frames=100", "checkpoint.every_frames=130")
    loop.parts.evaluator = Scripted(chain([5.0, 9.0, 7.0], repeat(8.0)))
    loop.run()
    measured = [r["env_frames"] for r in metrics(folder) if "eval/return" in r]
    checkpoints = Checkpoints(folder / "checkpoints", CheckpointConfig(), print)
    best = checkpoints.named("best")
    assert best is not None
    meta = json.loads((best / "meta.json").read_text())
    assert (meta["score"], meta["clock"]["count"]) == (9.0, measured[1])
    assert load_policy(folder, "best").env_frames == measured[1]
