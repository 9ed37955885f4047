"""A run that diverges keeps its last finite checkpoint; no policy of NaNs is measured."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dreamlab.cli import main
from dreamlab.core.clock import Clock
from dreamlab.core.errors import CheckpointError, DivergedError
from dreamlab.engine.checkpoint import CheckpointConfig, Checkpoints
from dreamlab.engine.observer import Observer
from dreamlab.engine.orchestrator import Orchestrator
from dreamlab.engine.watch import not_finite
from dreamlab.envs.dummy import Identity
from dreamlab.training import load_policy
from tests.helpers import metrics, open_loop

RUN = (
    "+experiment=ppo_cartpole", "tiny=true", "env.num_envs=2", "training.total_frames=400",
    "log.every_frames=100_000", "eval.episodes=1", "eval.every_frames=0", "eval.video=false",
    "checkpoint.every_frames=60", "device=cpu", "++env.normalize_obs={}",
)  # fmt: skip


class Bottomless(Identity):
    """Its rewards are no numbers."""

    def step(self, action: Any) -> Any:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, math.nan, terminated, truncated, info


def weight(loop: Orchestrator) -> None:
    with torch.no_grad():
        next(loop.workflow.actor_net.parameters()).fill_(math.nan)


def moment(loop: Orchestrator) -> None:
    loop.workflow.optimizers["ppo"].inner.square[0].fill_(math.inf)


def statistics(loop: Orchestrator) -> None:
    loop.parts.collector.envs.normalizer.moments["state"].mean[0] = math.nan


class Poisoner(Observer):
    """Spoils a run just before its second checkpoint, and before every later one, is saved."""

    def __init__(self, poison: Callable[[Orchestrator], None]) -> None:
        self.poison = poison

    def started(self, loop: Orchestrator) -> None:
        self.loop = loop

    def after(self, action: str) -> None:
        loop, due = self.loop, self.loop.save_due
        over = loop.scheduler.next_action() is None
        reached = due.passed(loop.scheduler.clock())
        if loop.checkpoints.names() and (reached or over):
            self.poison(loop)


def poisoned(folder: Path, poison: Callable[[Orchestrator], None], *options: str) -> Orchestrator:
    """Return the loop of a run that diverges at its second checkpoint, just before it is saved."""
    loop = open_loop(folder, *RUN, *options)
    loop.observers.add(Poisoner(poison))
    return loop


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("poison", [weight, moment, statistics])
def test_what_diverged_is_not_saved_and_the_run_stops(poison: Any, tmp_path: Path):
    loop = poisoned(tmp_path, poison)
    with pytest.raises(DivergedError, match=r"is (nan|inf): this state is not saved; the latest"):
        loop.run()
    (kept,) = loop.checkpoints.names()
    assert (tmp_path / "checkpoints" / "latest").read_text().strip() == kept
    (alert,) = [e for e in events(tmp_path) if e["event"] == "alert"]
    assert f"the latest checkpoint is {kept}" in alert["text"]
    assert load_policy(tmp_path).env_frames == int(kept)


@pytest.mark.parametrize("on_nan", ["warn", "off"])
def test_a_run_that_shall_go_on_does_but_keeps_its_last_finite_checkpoint(
    on_nan: str, tmp_path: Path
):
    loop = poisoned(tmp_path, weight, f"watch.on_nan={on_nan}")
    assert loop.run() == "finished"
    (kept,) = loop.checkpoints.names()
    assert int(kept) < 400
    said = [e["text"] for e in events(tmp_path) if e["event"] == "message"]
    assert [f"the latest checkpoint is {kept}" in text for text in said] == [True]
    assert load_policy(tmp_path).env_frames == int(kept)


def test_a_run_that_never_was_finite_has_no_checkpoint_and_may_begin_anew(tmp_path: Path):
    loop = open_loop(tmp_path, *RUN)
    weight(loop)
    with pytest.raises(DivergedError, match="there is no checkpoint yet"):
        loop.run()
    assert loop.checkpoints.names() == []
    assert open_loop(tmp_path, *RUN).counters.env_frames == 0


def diverged(folder: Path) -> tuple[str, str]:
    """Make a run whose last checkpoint holds NaNs, as older versions did; return both names."""
    open_loop(folder / "whole", *RUN).run()
    loop = open_loop(folder / "run", *RUN)
    loop.run()
    checkpoints = loop.checkpoints
    finite, last = sorted(checkpoints.names())
    state = checkpoints.load()
    assert state is not None
    state["workflow"]["actor_net.layers.0.weight"].fill_(math.nan)
    checkpoints.save(state, Clock("frames", int(last)), None, {"rollout": {}})
    return finite, last


def test_a_policy_of_nans_is_not_measured(tmp_path: Path, capsys: Any):
    finite, last = diverged(tmp_path)
    assert main(["eval", str(tmp_path / "run"), "--episodes", "1"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert f"checkpoint {last}: 'actor_net.layers.0.weight' is nan" in said.err
    assert main(["eval", str(tmp_path / "run"), "--episodes", "1", "--checkpoint", finite]) == 0


def test_a_run_whose_last_checkpoint_had_diverged_goes_on_from_the_one_before(tmp_path: Path):
    finite, last = diverged(tmp_path)
    loop = open_loop(tmp_path / "run", *RUN)
    assert loop.counters.env_frames == int(finite)
    assert (tmp_path / "run" / "checkpoints" / f"damaged_{last}").is_dir()
    loop.run()
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")


def test_results_that_are_no_numbers_are_an_error(tmp_path: Path, capsys: Any):
    own = ("env.suite=gym", "env.id=tests.engine.test_finite:Bottomless", "watch.on_nan=off")
    open_loop(tmp_path, *RUN, *own, "training.total_frames=60", "workflow.optimizer.lr=0.0").save()
    assert main(["eval", str(tmp_path), "--episodes", "1"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "eval/return is nan" in said.err
    assert not (tmp_path / "report" / "eval.json").exists()


def test_a_score_that_is_no_number_is_never_the_best(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path, CheckpointConfig(), print)
    for frames, score in enumerate((math.nan, 3.0, math.nan, 2.0)):
        checkpoints.save({}, Clock("frames", frames), score, {})
    best = checkpoints.named("best")
    assert best is not None
    assert int(best.name) == 1


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.short = nn.Parameter(torch.full((2,), 6e4, dtype=torch.float16))
        self.register_buffer("mask", torch.tensor([0.0, -math.inf]))
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("empty", torch.zeros(0))


@pytest.mark.parametrize(
    ("name", "value", "bad"),
    [
        ("weight", math.nan, True),
        ("weight", -math.inf, True),
        ("short", math.inf, True),
        ("mask", math.nan, True),
        ("mask", math.inf, False),
        ("count", 2, False),
    ],
)
def test_buffers_may_be_infinite_and_weights_may_not(name: str, value: float, bad: bool):
    net: Any = Net()
    assert not_finite(net, net.state_dict()) is None
    with torch.no_grad():
        getattr(net, name).view(-1)[0] = value
    found = not_finite(net, net.state_dict())
    assert (found is not None) == bad
    assert not bad or f"'{name}' is" in str(found)


def test_what_comes_with_a_state_is_looked_at_too():
    net: Any = Net()
    trees = ({"a": [np.ones(2), 3, "text"]}, (torch.tensor([1.0, math.nan]),))
    assert not_finite(net, net.state_dict(), *trees) == "'0' is nan"


def test_the_loader_says_what_it_passes_over_when_nothing_is_finite(tmp_path: Path):
    diverged(tmp_path)
    folder = tmp_path / "run" / "checkpoints"
    for path in folder.glob("[0-9]*"):
        state = torch.load(path / "state.pt", weights_only=True)
        state["workflow"]["actor_net.layers.0.weight"].fill_(math.nan)
        Checkpoints(folder, CheckpointConfig(), print).save(
            state, Clock("frames", int(path.name)), None, {}
        )
    with pytest.raises(CheckpointError, match=r"all checkpoints .* had diverged"):
        open_loop(tmp_path / "run", *RUN)
