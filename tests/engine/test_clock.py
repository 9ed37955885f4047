"""Runs that collect nothing: counted in updates from the first record to the comparison."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dreamlab import build, cli, training
from dreamlab.core.clock import Clock, moment_of
from dreamlab.core.errors import ConfigError
from dreamlab.core.phase import Phase
from dreamlab.engine.every import Due, EveryConfig
from dreamlab.engine.phase_scheduler import PhaseScheduler
from dreamlab.envs import vector
from tests.helpers import (
    config_of,
    metrics,
    need,
    open_loop,
    run_for,
    some_of,
    trained_once,
)

TINY = ("tiny=true", "device=cpu", "eval.episodes=1", "eval.video=false", "log.terminal=off")
SEEN = {
    "dqn": ("+experiment=dqn_cartpole", *TINY, "eval.every_frames=0", "training.total_frames=400"),
    "dreamer": (
        "+experiment=dreamer_cartpole", *TINY, "eval.every_frames=0", "training.total_frames=200",
    ),
}  # fmt: skip
WINDOWS = {
    "dqn": {"batch": 8, "length": 2, "windows": "transitions"},
    "dreamer": {"batch": 4, "length": 9, "context": 1},
}
HOOKS = {"dqn": "update_controller", "dreamer": "update_agent"}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory):
    return trained_once(tmp_path_factory.mktemp("seen"), SEEN)


def offline(run: Path, kind: str, *more: str, updates: int = 24) -> tuple[str, ...]:
    """Return the options of a run that learns from another's replay alone."""
    data = {"_target_": "run_replay", "run": str(run), **WINDOWS[kind]}
    hooks = f"workflow_hooks: [{HOOKS[kind]}]"
    phase = f"{{name: study, type: offline, duration_updates: {updates}, {hooks}}}"
    return (
        *SEEN[kind][:-1], "env.id=''", f"training.phases=[{phase}]",
        *(f"buffers.replay.{k}={v}" for k, v in data.items()), "log.every_updates=6",
        "checkpoint.every_updates=10", "checkpoint.every_s=0", *more,
    )  # fmt: skip


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in (folder / "checkpoints").iterdir() if p.is_dir())


@pytest.mark.parametrize("kind", some_of(["dqn", "dreamer"]))
def test_a_run_without_environments_resumes_exactly(kind, seen, tmp_path, monkeypatch):
    options = offline(seen(kind), kind)

    def refuse(*args: Any) -> Any:
        raise AssertionError("an environment was made")

    monkeypatch.setattr(vector, "make_env", refuse)
    monkeypatch.setattr(build, "make_env", refuse)
    whole = open_loop(tmp_path / "a", *options)
    assert whole.run() == "finished"
    for actions in (3, 11):
        assert run_for(open_loop(tmp_path / "b", *options), actions) == "interrupted"
    assert open_loop(tmp_path / "b", *options).run() == "finished"
    assert metrics(tmp_path / "a") == metrics(tmp_path / "b")
    assert (tmp_path / "a/chain.jsonl").read_text() == (tmp_path / "b/chain.jsonl").read_text()
    records = metrics(tmp_path / "a")
    assert [moment_of(r) for r in records] == [6, 12, 18, 24]
    assert all(r["env_frames"] == 0 and r["updates"] == moment_of(r) for r in records)
    assert names(tmp_path / "a") == ["000000000020", "000000000024"]


def test_naming_an_environment_switches_evaluation_on(seen, tmp_path):
    common = offline(seen("dqn"), "dqn", "report.every_updates=0")
    options = [o for o in common if not o.startswith(("env.id", "eval.every"))]
    loop = open_loop(tmp_path, *options, "eval.every_frames=0", "eval.every_updates=8")
    assert loop.parts.collector is None
    assert loop.run() == "finished"
    records = metrics(tmp_path)
    assert [moment_of(r) for r in records if "eval/return" in r] == [12, 18, 24]
    assert (tmp_path / "checkpoints" / "best").exists()


def test_a_run_that_named_none_may_name_one_later(seen, tmp_path, capsys):
    options = offline(seen("dqn"), "dqn")
    run_for(open_loop(tmp_path, *options), 5)
    assert cli.main(["eval", str(tmp_path)]) == 2
    assert "env.id is required" in capsys.readouterr().err
    options = [o for o in options if not o.startswith("env.id")]
    assert open_loop(tmp_path, *options, "env.id=CartPole-v1").run() == "finished"
    assert "eval/return" in metrics(tmp_path)[-1]
    assert cli.main(["eval", str(tmp_path), "--episodes", "1", "--json"]) == 0


def test_two_such_runs_are_compared_by_updates(seen, tmp_path, capsys):
    for seed in (0, 1):
        open_loop(tmp_path / f"s{seed}", *offline(seen("dqn"), "dqn"), f"seed={seed}").run()
    both = [str(tmp_path / "s0"), str(tmp_path / "s1")]
    assert cli.main(["compare", *both, "--metrics", "train/loss"]) == 0
    assert "train/loss at 24 updates" in capsys.readouterr().out
    assert cli.main(["compare", str(tmp_path / "s0"), str(seen("dqn")), "--metrics", "train/loss"])
    assert "they have no common axis" in capsys.readouterr().err
    assert cli.main(["logs", str(tmp_path / "s0"), "--last", "1"]) == 0
    assert cli.main(["verify", str(tmp_path / "s0"), "--frames", "0"]) == 0


def test_tensorboard_has_updates_on_its_axis(seen, tmp_path):
    need("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    open_loop(tmp_path, *offline(seen("dqn"), "dqn", "log.tensorboard=true")).run()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [e.step for e in events.Scalars("train/loss")] == [6, 12, 18, 24]


MIXED = ("buffers.old={_target_: run_replay, run: RUN, batch: 8, length: 2, windows: transitions}",)


def test_half_old_and_half_new_data(seen, tmp_path):
    options = [
        *SEEN["dqn"], "checkpoint.every_frames=150", "checkpoint.every_s=0",
        *(o.replace("RUN", str(seen("dqn"))) for o in MIXED), "buffers.replay.batch=8",
        "training.phases.1.sources={old: 0.5, replay: 0.5}", "log.every_frames=100",
    ]  # fmt: skip
    loop = open_loop(tmp_path / "a", *options)
    assert loop.run() == "finished"
    for actions in (6, 9):
        assert run_for(open_loop(tmp_path / "b", *options), actions) == "interrupted"
    assert open_loop(tmp_path / "b", *options).run() == "finished"
    assert metrics(tmp_path / "a") == metrics(tmp_path / "b")
    assert loop.counters.updates > 0


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (["training.phases.1.sources={old: 1, nope: 1}"], "there is no buffer 'nope'"),
        (["training.phases.0.sources={old: 1}"], "sources have no effect"),
        (["training.phases.1.buffer=old"], "it is read-only: collect into another buffer"),
        (["training.phases.1.sources={old: 1, replay: 1}", "buffers.replay.batch=4"],
         "must have the same batch, length and context"),
        (["training.phases.1.sources={old: 0, replay: 1}"], "must be above 0"),
        (["env.id=''"], "phase 'fill' needs an environment"),
        (["log.every_updates=7"], "log.every_updates has no effect"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused(change, text, seen, tmp_path):
    options = [*SEEN["dqn"], "buffers.replay.batch=8"]
    options += [o.replace("RUN", str(seen("dqn"))) for o in MIXED]
    with pytest.raises(ConfigError, match=text):
        build.check(config_of(*options, *change))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (["report.every_frames=7"], "report.every_frames has no effect"),
        (["eval.every_updates=7"], "set env.id"),
        (["training.total_frames=7"], "no phase collects: set duration_updates of the phases"),
        (["env.id=CartPole-v1", "++env.normalize_obs={}"], "statistics are collected"),
    ],
)
def test_what_has_no_effect_without_collecting_is_refused(change, text, seen):
    with pytest.raises(ConfigError, match=text):
        build.check(config_of(*offline(seen("dqn"), "dqn"), *change))


def test_no_source_tells_what_data_look_like():
    phase = "{name: study, type: offline, duration_updates: 2, workflow_hooks: [update_controller]}"
    options = ("+experiment=dqn_cartpole", "env.id=''", "eval.every_frames=0")
    config = config_of(*options, f"training.phases=[{phase}]")
    with pytest.raises(ConfigError, match="no observation and action spaces"):
        build.find_spec(config)


# -- the clock itself -----------------------------------------------------------------------------


def phase(name: str, *hooks: str, **options: Any) -> Phase:
    return Phase(name, hooks, **options)


def test_no_two_moments_share_a_name_and_names_sort_by_time():
    phases = [
        phase("a", "collect", "update_x", duration_steps=4),
        phase("b", "update_x", duration_updates=3, type="offline"),
        phase("c", "checkpoint", "collect", "update_x", duration_cycles=2),
    ]
    scheduler, named = PhaseScheduler(phases), [PhaseScheduler(phases).clock().name]
    while (action := scheduler.next_action()) is not None:
        scheduler.advance(frames=2 * (action == "collect"), updates=int(action == "update"))
        if action != "update" or not scheduler.phase.collects:
            named.append(scheduler.clock().name)
    distinct = list(dict.fromkeys(named))
    assert distinct == sorted(distinct)
    assert "000000000004_000000000004" in distinct
    assert distinct[-1] == "000000000008"


def test_what_is_due_by_frames_is_not_due_again_by_updates():
    due = Due(EveryConfig(every_frames=10, every_updates=5))
    fired = [due(Clock("frames", f, f)) for f in (4, 11, 12)]
    assert fired == [False, True, False]
    still = [due(Clock("frames", 12, u, moving=False)) for u in (13, 15, 16, 20)]
    assert still == [False, True, False, True]
    again = Due(EveryConfig(every_frames=10, every_updates=5))
    again.set_state(json.loads(json.dumps(due.get_state())))
    assert not again(Clock("frames", 12, 21, moving=False))
    assert again(Clock("frames", 20, 22))
    older = Due(EveryConfig(every_frames=10))
    older.set_state(12)
    assert not older(Clock("frames", 19, 0))


def test_a_run_with_an_offline_phase_keeps_the_checkpoints_of_it(tmp_path):
    config = yaml.safe_load((Path(__file__).parents[2] / "examples/curriculum.yaml").read_text())
    assert config["training"]["phases"][1]["type"] == "offline"
    options = [
        "examples/curriculum.yaml", *TINY, "checkpoint.every_updates=3", "checkpoint.keep=20",
        "training.phases.1.duration_updates=7", "log.every_updates=2",
    ]  # fmt: skip
    loop = open_loop(tmp_path, *options)
    assert loop.run() == "finished"
    suffixed = [n for n in names(tmp_path) if "_" in n]
    assert [int(n.split("_")[1]) for n in suffixed] == [3, 6]
    counts = [(r["env_frames"], r["updates"]) for r in metrics(tmp_path) if r["phase"] == 1.0]
    assert [u for _, u in counts] == [2, 4, 6]
    assert training.load_policy(tmp_path, suffixed[0]).env_frames == counts[0][0]
