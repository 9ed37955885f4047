"""A run in two processes: lockstep, resumed bit for bit, stopped by any of them."""

from __future__ import annotations

import json
import os
import signal
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch

from dreamlab import training
from dreamlab.core.errors import LabError
from dreamlab.engine.observer import Observer, StopWhen
from dreamlab.engine.orchestrator import Orchestrator
from dreamlab.engine.same_weights import digests
from dreamlab.engine.signals import PREEMPTED
from dreamlab.runs import verify
from dreamlab.runs.run import Run
from tests.distributed.ranks import run_ranks
from tests.helpers import config_of, metrics, open_loop, run_for, some_of

COMMON = (
    "tiny=true", "env.num_envs=2", "training.total_frames=500", "log.every_frames=100",
    "eval.episodes=1", "eval.num_envs=1", "eval.every_frames=250", "eval.video=false",
    "checkpoint.every_s=0", "checkpoint.every_frames=200", "device=cpu",
    "env.normalize_obs={clip: 10.0}", "env.normalize_reward={clip: 10.0}",
)  # fmt: skip


def options(name: str) -> list[str]:
    return [f"+experiment={name}", *COMMON]


def fingerprint(loop):
    """Return what one process of a run came to, weights, data and random numbers included."""
    stores = {}
    for name, buffer in loop.parts.buffers.items():
        store = getattr(buffer, "store", None)
        if store is not None:
            stores[name] = {k: v.view(torch.uint8).numpy().tobytes() for k, v in store.data.items()}
    return {
        "weights": {k: v.detach().numpy().tobytes() for k, v in tensors(loop).items()},
        "stores": stores,
        "counters": loop.counters,
        "rng": torch.get_rng_state().numpy().tobytes(),
        "moments": repr(state := loop.parts.collector.envs.normalizer.get_state()),
        "agreed": repr((state["obs"], state["reward"])),
        "step": {k: v.tobytes() for k, v in loop.parts.collector.step.obs.items()},
    }


def tensors(loop):
    return {**dict(loop.workflow.named_parameters()), **dict(loop.workflow.named_buffers())}


def straight(folder: Path, name: str, *more: str):
    def run(rank: int):
        loop = open_loop(folder, *options(name), *more)
        assert loop.run() == "finished"
        return fingerprint(loop)

    return run


@pytest.mark.parametrize("name", some_of(["dqn_cartpole", "ppo_cartpole", "dreamer_cartpole"]))
def test_a_run_in_two_processes_that_was_interrupted_equals_one_that_was_not(name, tmp_path):
    def broken(rank: int):
        for actions in (3, 6):
            # only the second process is asked to stop; both do
            loop = open_loop(tmp_path / "b", *options(name))
            assert run_for(loop, actions if rank == 1 else None) == "interrupted"
        loop = open_loop(tmp_path / "b", *options(name))
        assert loop.run() == "finished"
        return fingerprint(loop)

    whole = run_ranks(straight(tmp_path / "a", name), tmp_path / "ra")
    resumed = run_ranks(broken, tmp_path / "rb")
    for a, b in zip(whole, resumed, strict=True):
        assert a == b
    assert metrics(tmp_path / "a") == metrics(tmp_path / "b")
    first, second = whole
    assert first["weights"] == second["weights"]
    assert first["counters"] == second["counters"]
    assert first["step"] != second["step"], "two processes see the same observations"
    assert first["rng"] != second["rng"], "two processes draw the same random numbers"
    assert first["agreed"] == second["agreed"], "two processes normalise differently"
    if first["stores"]:
        assert first["stores"] != second["stores"]


@pytest.mark.slow
def test_counters_and_train_ratio_are_those_of_all_processes(tmp_path):
    option = ("training.phases.1.train_ratio=8",)
    more = ["buffers.replay.batch=4", *option]
    name = "sac_pendulum"
    two = run_ranks(lambda rank: _counted(tmp_path / "two", name, more), tmp_path / "r")
    double = ["buffers.replay.batch=8", "env.num_envs=4", *option]
    one = _counted(tmp_path / "one", name, double)
    assert two[0] == two[1]
    assert two[0].env_frames == pytest.approx(one.env_frames, rel=0.02)
    assert two[0].updates == pytest.approx(one.updates, rel=0.05)


def _counted(folder: Path, name: str, more: list[str]):
    loop = open_loop(folder, *options(name), *more)
    loop.run()
    return loop.counters


def test_rank_0_alone_writes_the_folder(tmp_path):
    run_ranks(straight(tmp_path / "run", "dqn_cartpole"), tmp_path / "r")
    folder = tmp_path / "run"
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    frames = [r["env_frames"] for r in records]
    assert frames == sorted(set(frames)), "two processes wrote records"
    found = {p.name for p in (folder / "checkpoints").glob("0*/*")}
    assert found == {"meta.json", "state.pt", "state_rank1.pt"}
    assert list((folder / "buffers" / "replay" / "rank1").glob("steps_*.pt"))


def test_rank_0_alone_draws_the_curve_and_sends_alerts(tmp_path, monkeypatch):
    told = tmp_path / "told.txt"
    more = (f"watch.file={told}", f"run.dir={tmp_path / 'run'}", "log.terminal=off")
    config, drawn = config_of(*options("dqn_cartpole"), *more), []
    monkeypatch.setattr(training, "learning_curve", lambda *args: drawn.append(args))
    flush = Orchestrator.flush

    def alarming(loop: Orchestrator):
        loop.alert("test", "something")
        return flush(loop)

    monkeypatch.setattr(Orchestrator, "flush", alarming)

    def run(rank: int):
        _, status = training.train(config)
        return status, len(drawn)

    assert run_ranks(run, tmp_path / "r") == [("finished", 1), ("finished", 0)]
    assert len(told.read_text().splitlines()) == len(metrics(tmp_path / "run"))


def test_a_signal_to_one_process_is_the_reason_of_all(tmp_path):
    def run(rank: int):
        loop = open_loop(tmp_path / "run", *options("dqn_cartpole"))
        done = count()

        def preempt(_) -> bool:
            if rank == 1 and next(done) == 3:
                os.kill(os.getpid(), signal.SIGUSR1)
            return False

        loop.observers.add(StopWhen(preempt))
        status = loop.run()
        return status, training.exit_code(loop.run_log, status)

    assert run_ranks(run, tmp_path / "r") == [("interrupted", PREEMPTED)] * 2
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["stopped_by"] == "SIGUSR1"


def test_a_weight_that_differs_is_found_and_named(tmp_path):
    def run(rank: int):
        loop = open_loop(
            tmp_path / "run", *options("ppo_cartpole"), "watch.check_every_update=true"
        )
        with torch.no_grad():
            dict(loop.workflow.named_parameters())["critic.bias"].add_(0.1 * rank)
        try:
            loop.run()
        except LabError as error:
            return str(error)
        return "nothing was found"

    for text in run_ranks(run, tmp_path / "r"):
        assert "'critic.bias' of rank 1 is not that of rank 0" in text


class Drift(Observer):
    """Changes a weight of rank 1 after some update, as an error in the last digit would."""

    def __init__(self, loop: Orchestrator, rank: int, update: int) -> None:
        self.loop, self.rank, self.update = loop, rank, update

    def updated(self, batch, metrics) -> None:
        if self.loop.counters.updates == self.update:
            with torch.no_grad():
                dict(self.loop.workflow.named_parameters())["critic.bias"].add_(1e-3 * self.rank)


@pytest.mark.parametrize(
    ("every", "drifts", "found"), [(4, 6, 8), (4, 8, 12), (3, 7, 9), (0, 3, 0)]
)
def test_weights_that_drift_apart_are_found_at_the_next_comparison(every, drifts, found, tmp_path):
    short = ("training.total_frames=700", "eval.every_frames=0",
             "distributed.processes=2", f"distributed.check_every_updates={every}")  # fmt: skip

    def run(rank: int):
        loop = open_loop(tmp_path / "run", *options("ppo_cartpole"), *short)
        loop.observers.add(Drift(loop, rank, drifts))
        try:
            loop.run()
        except LabError as error:
            return str(error), loop.counters.updates
        return "", loop.counters.updates

    for text, updates in run_ranks(run, tmp_path / "r"):
        assert updates > drifts or found == drifts, "it ended before"
        if not found:
            assert text == ""
            continue
        assert text.startswith(f"after update {found}: 'critic.bias' of rank 1")
        assert updates == found


def test_a_digest_tells_where_a_number_is():
    a = torch.tensor([1.0, 2.0, 3.0])
    assert digests([a]) == digests([a.clone()])
    assert digests([a]) != digests([a.flip(0)])
    assert digests([a]) != digests([a + 1e-6])


def test_processes_normalise_with_what_all_of_them_have_seen(tmp_path):
    from dreamlab.core.types import Spec, Step
    from dreamlab.envs.normalize import NormalizeConfig, Normalizer

    data = np.random.default_rng(0).normal(3.0, 2.0, (2, 50, 4, 3)).astype(np.float32)
    config = NormalizeConfig()

    def show(normalizer: Normalizer, rows: np.ndarray) -> None:
        no = np.zeros(len(rows), bool)
        normalizer(Step({"state": rows}, rows[:, 0], no, no, no))

    def spec() -> Spec:
        from dreamlab.core.types import ArraySpec

        return Spec({"state": ArraySpec((3,), "float32")}, ArraySpec((1,), "float32"))

    def run(rank: int):
        normalizer = Normalizer(config, config, spec(), 4)
        for tick in range(50):
            show(normalizer, data[rank, tick])
            if tick % 7 == 6:
                normalizer.agree()
        normalizer.agree()
        return normalizer.get_state()

    alone = Normalizer(config, config, spec(), 8)
    for tick in range(50):
        show(alone, np.concatenate(data[:, tick]))
    first, second = run_ranks(run, tmp_path)
    assert repr(first["obs"]) == repr(second["obs"])
    for found, expected in (
        (first["obs"]["state"], alone.get_state()["obs"]["state"]),
        (first["reward"], alone.get_state()["reward"]),
    ):
        for key in ("count", "mean", "var"):
            np.testing.assert_allclose(found[key], expected[key], rtol=1e-6)


@pytest.mark.parametrize(("then", "now"), some_of([(2, 1), (1, 2), (2, 3)]))
def test_another_number_of_processes_goes_on_with_weights_and_the_same_steps(then, now, tmp_path):
    more = ("training.total_frames=900",)

    def begin(rank: int):
        loop = open_loop(tmp_path / "run", *options("dqn_cartpole"), *more)
        assert run_for(loop, 40) == "interrupted"
        replay = loop.parts.buffers["replay"]
        steps = replay.store.take(max(0, replay.added - replay.ticks), replay.added)
        return seen_in(steps), state_of(loop)

    def go_on(rank: int):
        loop = open_loop(tmp_path / "run", *options("dqn_cartpole"), *more)
        begun = state_of(loop)
        replay = loop.parts.buffers["replay"]
        steps = seen_in(replay.store.take(replay.first, replay.added))
        drawn = replay.sample()
        assert drawn.reward.shape[0] == replay.config.batch
        assert loop.run() == "finished"
        return steps, begun

    def ranks(fn, size: int):
        return run_ranks(fn, tmp_path / "r", size) if size > 1 else [fn(0)]

    before, after = ranks(begin, then), ranks(go_on, now)
    assert [x for a in after for x in a[0]] == [x for b in before for x in b[0]]
    assert {a[1] for a in after} == {before[0][1]}
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["regrouped"][0]["from"] == then
    assert manifest["regrouped"][0]["to"] == now
    assert {"running episodes", "random streams"} <= set(manifest["regrouped"][0]["lost"])
    assert manifest["exact_resume"] is False

    def once_more(rank: int):
        return open_loop(tmp_path / "run", *options("dqn_cartpole"), *more).run()

    assert set(ranks(once_more, now)) == {"finished"}
    again = Run(tmp_path / "run")
    assert again.manifest["exact_resume"] is False, "a plain resume does not make it exact"
    row = ("distributed.processes", f"{then}, then {now} (regrouped: not exact)")
    assert row in [r[:2] for r in verify.surroundings(again)]
    kept = {p.name for p in (tmp_path / "run" / "buffers" / "replay").glob("rank*")}
    assert kept == {f"rank{n}" for n in range(1, now)}, "of the ranks that are gone nothing is kept"


def state_of(loop) -> str:
    return f"{digests(list(tensors(loop).values()))} {loop.counters}"


def seen_in(steps) -> list[tuple[float, ...]]:
    """Return what was seen at each tick, as something that can be compared."""
    return [tuple(x.flatten().tolist()) for x in steps["obs/state"].transpose(0, 1)]
