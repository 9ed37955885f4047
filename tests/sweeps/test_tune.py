"""Searches: what a trial is, when it is pruned, and what a dead process leaves behind."""

from __future__ import annotations

import json
import math
import shlex
from pathlib import Path

import pytest

from dreamlab.cli import main
from dreamlab.commands.tune import _trials
from dreamlab.config import compose, load_config
from dreamlab.core.errors import ConfigError, MissingExtraError
from dreamlab.sweeps.asking import put_back, suggest, valid
from dreamlab.sweeps.job import Job, Lock, text_of
from dreamlab.sweeps.job_pool import JobPool
from dreamlab.sweeps.launch.local import Local
from dreamlab.sweeps.launch.options import Limits
from dreamlab.sweeps.progress import SweepProgress
from dreamlab.sweeps.sweep import Choice, Range, SweepConfig, TuneConfig
from dreamlab.sweeps.tune import (
    Tuner,
    best_command,
    importances,
    make_pruner,
    open_study,
    retry_failed,
    write_results,
)
from tests.helpers import need
from tests.sweeps.many import LONG, begun, kill_all, saved, wait_for, write_sweep

optuna = need("optuna")
STATES = optuna.trial.TrialState
COMPLETE, FAIL, PRUNED, RUNNING, WAITING = (
    STATES.COMPLETE, STATES.FAIL, STATES.PRUNED, STATES.RUNNING, STATES.WAITING
)  # fmt: skip
SPACE = {"workflow.optimizer.lr": {"loguniform": [1e-4, 1e-2]}}


def a_config(**tune) -> SweepConfig:
    return SweepConfig(
        name="s", experiment="ppo_cartpole", parameters=SPACE, tune=TuneConfig(**tune)
    )


def study_of(folder: Path, config: SweepConfig):
    return open_study(config, folder, total_frames=1000)


def tuner_of(folder: Path, config: SweepConfig, study) -> Tuner:
    work = (JobPool(Local(Limits(), 1), 1), SweepProgress("s", 1))
    return Tuner(config, folder, study, work)


def add(study, lr: float, value: float | None, **options) -> None:
    """Put a trial into the study as if it had been run."""
    trial = optuna.trial.create_trial(
        params={"workflow.optimizer.lr": lr},
        distributions={
            "workflow.optimizer.lr": optuna.distributions.FloatDistribution(1e-4, 1e-2, log=True)
        },
        value=value,
        user_attrs={"jobs": []},
        **options,
    )
    study.add_trial(trial)


# -- the space and the study ----------------------------------------------------------------------


def test_a_choice_of_lists_is_stored_as_text_and_comes_back_as_lists():
    study = optuna.create_study()
    trial = study.ask()
    assert suggest(trial, "hidden", Choice(([32, 32], [64]))) in ([32, 32], [64])
    assert trial.params["hidden"] in ("[32,32]", "[64]")
    assert 3 <= suggest(trial, "n", Range("int", 3, 5)) <= 5
    assert 1e-5 <= suggest(trial, "lr", Range("loguniform", 1e-5, 1e-3)) <= 1e-3


def test_the_pruners_count_in_multiples_of_the_reports():
    median = make_pruner(TuneConfig(report_every_frames=100, warmup_frames=500), 1000)
    assert isinstance(median, optuna.pruners.MedianPruner)
    assert median._n_warmup_steps == 5
    hyperband = make_pruner(TuneConfig(pruner="hyperband", report_every_frames=100), 1000)
    assert isinstance(hyperband, optuna.pruners.HyperbandPruner)
    assert hyperband._max_resource == 10
    with pytest.raises(ConfigError, match="total_frames"):
        make_pruner(TuneConfig(pruner="hyperband"), 0)


def test_a_search_needs_a_space_and_the_extra(tmp_path, monkeypatch, capsys):
    path = write_sweep(tmp_path)
    assert main(["tune", path, "--show"]) == 2
    assert "this study has not started" in capsys.readouterr().err
    assert main(["tune", path]) == 2
    assert "the search space is empty" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(MissingExtraError, match=r"dreamlab\[tune\]"):
        make_pruner(TuneConfig(), 0)


def test_a_study_that_goes_on_does_not_draw_the_same_again(tmp_path):
    config = a_config(trials=3)
    drawn = []
    for _ in range(3):  # a new process each time
        tuner = tuner_of(tmp_path, config, study_of(tmp_path, config))
        assert tuner._ask()
        (live,) = tuner.trials.values()
        drawn.append(live.job.parameters["workflow.optimizer.lr"])
        tuner.study.tell(live.trial, 1.0)
    assert len(set(drawn)) == 3
    assert not tuner._ask(), "there are enough"


# -- trials of the dead, and failed ones ----------------------------------------------------------


def test_a_trial_left_by_a_dead_process_is_failed_and_tried_again(tmp_path):
    config = a_config(trials=2)
    study = study_of(tmp_path, config)
    dead = tuner_of(tmp_path, config, study)
    assert dead._ask()
    (left,) = dead.trials.values()
    alive = tuner_of(tmp_path, config, study)
    assert alive._ask()
    assert study.trials[0].state == RUNNING, "its process lives: the lock is held"
    left.owner.release()  # what the system does when a process dies
    third = tuner_of(tmp_path, config, study)
    assert third._ask()
    (again,) = third.trials.values()
    assert study.trials[0].state == FAIL
    assert again.job.name == left.job.name, "the same run goes on"
    assert again.trial.user_attrs["retry_of"] == 0
    assert not third._ask(), "a trial that was tried again is counted once"


def test_a_failed_trial_is_tried_again_only_if_asked_and_only_once(tmp_path):
    study = study_of(tmp_path, a_config())
    add(study, 1e-3, None, state=FAIL)
    assert [t.number for t in valid(study.trials)] == [0]
    assert retry_failed(study) == 1
    put_back(study, study.trials[0])
    assert [(t.state, t.system_attrs["fixed_params"]) for t in study.trials[1:]] == [
        (WAITING, {"workflow.optimizer.lr": 1e-3})
    ]
    assert [t.number for t in valid(study.trials)] == [1]
    _, lr, state, _ = ([*column.cells] for column in _trials(study).columns)
    assert (lr, state) == (["0.001", "0.001"], ["retried", "waiting"])


def test_a_pruned_run_is_stopped_and_marked(tmp_path, capsys):
    path = write_sweep(
        tmp_path, *LONG, parameters=SPACE,
        tune={"trials": 3, "startup_trials": 1, "report_every_frames": 200},
    )  # fmt: skip
    study = study_of(tmp_path / "s", a_config())
    for lr in (1e-3, 2e-3):  # returns that no beginner reaches
        add(study, lr, 500.0, intermediate_values=dict.fromkeys(range(1, 9), 500.0))
    assert main(["tune", path]) == 0
    trial = study.trials[2]
    assert trial.state == PRUNED
    assert trial.intermediate_values[1] < 500
    (run,) = (tmp_path / "s" / "runs").glob("*_seed0")
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["pruned"]
    assert manifest["status"] == "interrupted", "it was asked to stop, and saved"
    (record,) = (tmp_path / "s" / "jobs").glob("*/job.json")
    assert json.loads(record.read_text())["status"] == "pruned"
    out = capsys.readouterr().out
    assert "pruned   trial 2 at" in out
    assert "eval/return 500" in out
    assert main(["tune", path, "--show"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [r[2] for r in rows[1:]] == ["complete", "complete", "pruned"]


# -- results --------------------------------------------------------------------------------------


def test_the_results_are_a_command_and_pictures(tmp_path):
    config = SweepConfig(
        name="s",
        experiment="ppo_cartpole",
        overrides=("workflow.gamma=0.5",),
        parameters={**SPACE, "workflow.network.hidden": {"choice": [[8, 8], [16]]}},
    )
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(30):  # only the step size matters, and 1e-3 is the best
        trial = study.ask()
        lr = suggest(trial, "workflow.optimizer.lr", Range("loguniform", 1e-4, 1e-2))
        suggest(trial, "workflow.network.hidden", Choice(([8, 8], [16])))
        trial.set_user_attr("jobs", [])
        study.tell(trial, -abs(math.log10(lr) + 3))
    add(study, 1e-4, -2.0, state=PRUNED, intermediate_values={1: -2.0})
    words = shlex.split(best_command(config, study))
    assert words[:4] == ["dreamlab", "train", "+experiment=ppo_cartpole", "workflow.gamma=0.5"]
    keys = [w.partition("=")[0] for w in words[2:]]
    assert len(keys) == len(set(keys))  # no option is there twice
    best = load_config(compose(words[2:]))
    hidden = best.workflow.config.network.config.hidden
    assert text_of(hidden) == study.best_params["workflow.network.hidden"]
    found = best.workflow.config.optimizer.config.lr
    assert found == pytest.approx(study.best_params["workflow.optimizer.lr"], rel=1e-5)
    assert next(iter(importances(study))) == "workflow.optimizer.lr"
    written = write_results(config, tmp_path, study)
    assert [p.name for p in written] == ["best.json", "history.png", "importance.png"]
    assert all(p.stat().st_size > 5_000 for p in written[1:])
    assert json.loads(written[0].read_text())["command"] == shlex.join(words)


def test_of_few_trials_no_importance_is_told(tmp_path):
    study = study_of(tmp_path, a_config())
    for lr in (1e-3, 2e-3, 3e-3):
        add(study, lr, lr)
    assert importances(study) == {}
    names = [p.name for p in write_results(a_config(), tmp_path, study)]
    assert names == ["best.json", "history.png"]


# -- whole searches -------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_processes_work_on_one_study(tmp_path):
    tune = {"trials": 4, "pruner": "none"}
    path = write_sweep(tmp_path, parameters=SPACE, tune=tune)
    with begun("tune", path) as one, begun("tune", path) as other:
        outs = [p.communicate(timeout=250)[0] for p in (one, other)]
    assert (one.returncode, other.returncode) == (0, 0), outs
    study = study_of(tmp_path / "s", a_config())
    assert [t.state for t in study.trials] == [COMPLETE] * 4
    assert all("dreamlab train +experiment=ppo_cartpole" in out for out in outs)
    assert all(out.count("start    trial") > 0 for out in outs)
    records = [json.loads(p.read_text()) for p in (tmp_path / "s").glob("jobs/*/job.json")]
    assert [r["attempts"] for r in records] == [1] * 4


@pytest.mark.slow
def test_a_search_that_is_killed_goes_on_with_its_runs(tmp_path):
    frames = ("training.total_frames=30_000", "checkpoint.every_frames=500")
    tune = {"trials": 3, "pruner": "hyperband", "report_every_frames": 10_000}
    path = write_sweep(tmp_path, *frames, parameters=SPACE, tune=tune, parallel_jobs=2)
    with begun("tune", path) as first:
        wait_for(lambda: len({p.parts[-3] for p in saved(tmp_path / "s")}) == 2)
        folders = list((tmp_path / "s" / "jobs").iterdir())
        jobs = [Job(tmp_path / "s", tuple(_record(f)["overrides"]), {}) for f in folders]
        assert {j.name for j in jobs} == {f.name for f in folders}
        kill_all(first, jobs)
    assert not Lock(tmp_path / "s" / "trials" / "0.lock").held()
    with begun("tune", path) as again:
        out, _ = again.communicate(timeout=250)
    assert again.returncode == 0, out
    study = study_of(tmp_path / "s", a_config())
    assert [t.state for t in study.trials[:2]] == [FAIL, FAIL]
    assert [t.user_attrs.get("retry_of") for t in study.trials[2:4]] == [0, 1]
    assert len(valid(study.trials)) == 3
    assert all(t.state in (COMPLETE, PRUNED) for t in valid(study.trials))
    for job in jobs:
        assert '"resumed"' in (job.run_folder / "events.jsonl").read_text()


def _record(folder: Path) -> dict:
    return json.loads((folder / "job.json").read_text())
