"""Observers hear all that a loop does, may stop it, and change nothing."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from dreamlab.core.types import Step
from dreamlab.engine.observer import EVENTS, Observer, Observers, StageTimes
from dreamlab.engine.profiler import Profiler
from dreamlab.engine.unlearnt_ends import TellsUnlearntEnds
from tests.helpers import metrics, open_loop, run_for

SMALL = (
    "+experiment=ppo_cartpole", "tiny=true", "env.num_envs=2", "training.total_frames=400",
    "log.every_frames=100", "eval.episodes=1", "eval.every_frames=0", "eval.video=false",
    "checkpoint.every_frames=150", "device=cpu",
)  # fmt: skip


class Diary(Observer):
    """Writes down everything."""

    def __init__(self):
        self.heard = []

    def of(self, event):
        return [what for name, what in self.heard if name == event]


def _note(event):
    return lambda self, *what: self.heard.append((event, what))


for _event in EVENTS:
    setattr(Diary, _event, _note(_event))


@pytest.fixture
def observed(tmp_path):
    loop, diary = open_loop(tmp_path / "r", *SMALL), Diary()
    loop.observers.add(diary)
    assert loop.run() == "finished"
    return loop, diary, tmp_path / "r"


def test_an_observer_hears_of_everything_once_and_in_order(observed):
    loop, diary, folder = observed
    assert diary.heard[0] == ("started", (loop,))
    assert diary.heard[-1] == ("finished", ("finished",))
    assert diary.of("before") == diary.of("after")
    assert {action for (action,) in diary.of("after")} == {"collect", "update"}
    assert len(diary.of("ticked")) * 2 == loop.counters.decisions
    assert sum(ended for _, _, ended in diary.of("ticked")) == loop.counters.episodes
    assert len(diary.of("updated")) == loop.counters.updates > 2
    assert all("policy_loss" in metrics for _, metrics in diary.of("updated"))
    saved = [path for (path,) in diary.of("saved")]
    assert len(saved) > 1
    assert saved[-1] == loop.checkpoints.named("latest")
    written = [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [record for (record,) in diary.of("flushed")] == written
    order = [name for name, _ in diary.heard if name != "ticked"]
    assert order[1:6] == ["before", "after", "before", "updated", "after"]
    assert order.index("flushing") + 1 == order.index("flushed")


def test_what_is_observed_is_what_is_not(observed, tmp_path):
    open_loop(tmp_path / "alone", *SMALL).run()
    assert metrics(tmp_path / "r") == metrics(tmp_path / "alone")
    chains = [(tmp_path / name / "chain.jsonl").read_text() for name in ("r", "alone")]
    assert chains[0] == chains[1]


def test_an_observer_stops_a_run_as_ctrl_c_would(tmp_path):
    class Enough(Observer):
        def started(self, loop):
            self.loop = loop

        def flushed(self, record):
            if record["env_frames"] >= 200:
                self.loop.stop()

    open_loop(tmp_path / "whole", *SMALL).run()
    loop = open_loop(tmp_path / "r", *SMALL)
    loop.observers.add(Enough())
    assert loop.run() == "interrupted"
    assert 200 <= loop.counters.env_frames < 400
    assert json.loads((tmp_path / "r" / "manifest.json").read_text())["status"] == "interrupted"
    assert open_loop(tmp_path / "r", *SMALL).run() == "finished"
    assert metrics(tmp_path / "r") == metrics(tmp_path / "whole")


def test_an_observer_adds_to_records(tmp_path):
    class Adds(Observer):
        def flushing(self, record):
            record["mine/number"] = record["env_frames"] * 2

    loop = open_loop(tmp_path / "r", *SMALL)
    loop.observers.add(Adds())
    loop.run()
    assert all(r["mine/number"] == 2 * r["env_frames"] for r in metrics(tmp_path / "r"))


def test_an_observer_hears_of_a_failure(tmp_path):
    class Fails(Observer):
        def updated(self, batch, metrics):
            raise RuntimeError("no")

    loop, diary = open_loop(tmp_path / "r", *SMALL), Diary()
    loop.observers.add(diary)
    loop.observers.add(Fails())
    with pytest.raises(RuntimeError, match="no"):
        loop.run()
    assert diary.heard[-1] == ("finished", ("failed",))


def test_nobody_is_called_for_what_he_does_not_ask(tmp_path):
    observers = Observers()
    observers.add(Observer())
    observers.add(StageTimes())
    found = {event: len(getattr(observers, event)) for event in EVENTS}
    assert {event for event, count in found.items() if count} == {"before", "after"}
    quiet = open_loop(tmp_path / "r", *SMALL, "log.chain=false", "log.system=false")
    assert not any(getattr(quiet.observers, event) for event in EVENTS)


def test_a_trace_of_fewer_updates_than_asked_for_is_written_too(tmp_path):
    loop = open_loop(tmp_path / "r", *SMALL, "watch.profile_updates=100")
    run_for(loop, 6)
    assert loop.counters.updates == 3
    trace = json.loads((tmp_path / "r" / "report" / "trace.json").read_text())
    assert any("aten" in e.get("name", "") for e in trace["traceEvents"])


def test_a_resumed_run_is_profiled_if_asked_for(tmp_path):
    run_for(open_loop(tmp_path / "r", *SMALL), 10)
    open_loop(tmp_path / "r", *SMALL, "watch.profile_updates=2").run()
    assert (tmp_path / "r" / "report" / "trace.json").exists()


def test_a_run_that_fails_leaves_no_profiler_running(tmp_path):
    class Fails(Observer):
        def updated(self, batch, metrics):
            if loop.counters.updates == 3:
                raise RuntimeError("no")

    loop = open_loop(tmp_path / "r", *SMALL)
    profiler = Profiler(100, tmp_path / "trace.json", print)
    loop.observers.add(profiler)
    loop.observers.add(Fails())
    with pytest.raises(RuntimeError, match="no"):
        loop.run()
    assert not profiler.running
    assert not (tmp_path / "trace.json").exists()
    assert torch.autograd._profiler_enabled() is False


def test_ends_that_cannot_be_learnt_are_told_once():
    said: list[str] = []
    tells = TellsUnlearntEnds("TDMPC2", "set workflow.episodic=true", said.append)
    no, yes = np.zeros(2, bool), np.array([False, True])
    for last, terminal in ((no, no), (yes, no), (yes, yes), (yes, yes)):
        step = Step({}, np.zeros(2, np.float32), no, last, terminal)
        tells.ticked(step, np.zeros((2, 1), np.float32), int(last.sum()))
        assert bool(said) == bool(terminal.any()), "a time limit is no end"
    assert len(said) == 1
    assert "set workflow.episodic=true" in said[0]


@pytest.mark.parametrize(
    ("options", "tells"),
    [
        (("+experiment=tdmpc2_pendulum",), True),
        (("+experiment=tdmpc2_pendulum", "workflow.episodic=true"), False),
        (("+experiment=tdmpc_pendulum",), True),
        (("+experiment=ppo_cartpole",), False),
    ],
)
def test_only_what_cannot_learn_ends_is_watched_for_them(options, tells, tmp_path):
    loop = open_loop(tmp_path / "r", *options, "tiny=true", "device=cpu")
    assert any(isinstance(x, TellsUnlearntEnds) for x in loop.observers.all) is tells
