"""Sweeps: which jobs they have, what is run again, and what survives a kill."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from dreamlab.cli import main
from dreamlab.config import choices, compose, load_config
from dreamlab.core.errors import ConfigError, MissingExtraError
from dreamlab.runs.readers import newest_metrics
from dreamlab.runs.run import Run
from dreamlab.sweeps.job import Job, Lock, returns, text_of
from dreamlab.sweeps.job_pool import JobPool, make_launcher
from dreamlab.sweeps.launch.local import BufferContext, Local, place
from dreamlab.sweeps.launch.options import LauncherConfig, Limits
from dreamlab.sweeps.progress import SweepProgress, progress, results, time_left
from dreamlab.sweeps.sweep import Sweep, SweepConfig, distribution, make_jobs, points
from tests.sweeps.many import (
    Script,
    overrides_of,
    write_sweep,
)

ROOT = Path("/nowhere")


def values(config: SweepConfig, key: str) -> list:
    return [p[key] for p in points(config)]


# -- which jobs -----------------------------------------------------------------------------------


def test_a_grid_has_every_combination_for_every_seed():
    config = SweepConfig(parameters={"a": [1, 2], "b": ["x", "y", "z"]}, seeds=(0, 1))
    jobs = make_jobs(config, ROOT)
    assert len(jobs) == 12
    assert len({j.name for j in jobs}) == 12
    assert jobs[1].overrides == ("a=1", "b=x", "seed=1")


def test_random_draws_stay_within_their_distributions():
    space = {
        "c": {"choice": ["p", "q"]},
        "u": {"uniform": [0.9, 1.0]},
        "l": {"loguniform": [1e-5, 1e-1]},
        "i": {"int": [3, 5]},
    }
    config = SweepConfig(method="random", samples=400, parameters=space)
    assert set(values(config, "c")) == {"p", "q"}
    assert set(values(config, "i")) == {3, 4, 5}
    assert all(0.9 <= v <= 1.0 for v in values(config, "u"))
    logs = values(config, "l")
    assert all(1e-5 <= v <= 1e-1 for v in logs)
    assert 0.4 < sum(v < 1e-3 for v in logs) / 400 < 0.6  # half of them below the geometric middle


def test_a_draw_depends_on_its_seed_and_number_alone():
    space = {"u": {"uniform": [0, 1]}}
    few = SweepConfig(method="random", samples=3, parameters=space)
    more = SweepConfig(
        method="random", samples=5, parameters={"i": {"int": [0, 9]}, **space}
    )  # one more option, two more draws
    other = SweepConfig(method="random", samples=3, parameters=space, sample_seed=1)
    assert values(more, "u")[:3] == values(few, "u")
    assert not set(values(other, "u")) & set(values(few, "u"))


def test_a_listed_sweep_has_what_is_listed_and_nothing_twice():
    config = SweepConfig(method="listed", jobs=({"a": 1}, {"a": 2, "b": True}, {"a": 1}))
    assert [j.overrides for j in make_jobs(config, ROOT)] == [
        ("a=1", "seed=0"),
        ("a=2", "b=true", "seed=0"),
    ]


def test_a_jobs_name_is_a_function_of_its_overrides():
    first, second, seed = (
        Job(ROOT, overrides, {}) for overrides in (("a=1",), ("a=2",), ("a=1", "seed=3"))
    )
    assert first.name != second.name
    assert seed.name == f"{first.name}_seed3"
    assert first.name == Job(Path("/else"), ("a=1",), {"shown": "otherwise"}).name


@pytest.mark.parametrize(
    "value", [True, None, 3, 1e-05, "tanh", "two words", "it's", [64, 64], {"a": [1, "x y"]}]
)
def test_a_value_survives_the_way_through_an_override(value):
    assert compose([f"+workflow.x={text_of(value)}"])["workflow"]["x"] == value


MISTAKES = [
    ({"normal": [0, 1]}, "there is no distribution 'normal'"),
    ({"unifrm": [0, 1]}, "Did you mean 'uniform'?"),
    ({"uniform": [1, 0]}, "1.0 is not below 0.0"),
    ({"uniform": [1]}, "expected [low, high]"),
    ({"uniform": ["a", "b"]}, "expected [low, high]"),
    ({"loguniform": [0, 1]}, "must start above 0"),
    ({"choice": []}, "expected a list"),
    (3, "expected a list"),
]


@pytest.mark.parametrize(("node", "text"), MISTAKES)
def test_a_wrong_distribution_is_named(node, text):
    with pytest.raises(ConfigError) as error:
        distribution("a.b", node)
    assert text in str(error.value)
    assert "parameters.a.b" in str(error.value)


def test_a_grid_says_how_to_get_a_distribution():
    with pytest.raises(ConfigError, match="set method: random"):
        points(SweepConfig(parameters={"a": {"uniform": [0, 1]}}))


# -- the command ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", choices("sweep"))
def test_every_sweep_of_ours_has_jobs_that_could_begin(name, capsys):
    assert main(["sweep" if "tune" not in name else "tune", name, "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    words = lines[0].split("  #")[0].replace("'", "").split()
    assert words[:2] == ["dreamlab", "train"]
    assert load_config(compose(words[2:])).run.dir


def commands() -> list[list[str]]:
    page = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text()
    fences = re.findall(r"^```bash\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    lines = [shlex.split(line, comments=True) for fence in fences for line in fence.splitlines()]
    return [words[1:] for words in lines if words[0] == "dreamlab"]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_a_command_of_the_page_is_one_that_works(words, capsys, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    assert main([*words, "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith(("sweeps: ", "dreamlab train +experiment="))


def test_options_of_the_sweep_and_of_its_jobs_can_be_given(tmp_path, capsys):
    path = write_sweep(tmp_path, parameters={"workflow.optimizer.lr": [1e-3]})
    changed = ["seeds=[4,5]", "parameters.workflow.optimizer.lr=[1e-4,0.5]", "workflow.gamma=0.5"]
    assert main(["sweep", path, *changed, "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert "workflow.gamma=0.5 workflow.optimizer.lr=0.0001 seed=4" in lines[0]
    assert "workflow.optimizer.lr=0.5 seed=5" in lines[3]


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("paralel_jobs=2", "Did you mean 'parallel_jobs'?"),
        ("traning.total_frames=2", "Did you mean 'training'?"),
        ("limits.cpu=2", "Did you mean 'cpus'?"),
        ("method=gird", "Did you mean 'grid'?"),
        ("launcher.name=slrm", "Did you mean 'slurm'?"),
        ("parallel_jobs=0", "ConfigError: parallel_jobs: must be between 1 and 100000, got 0"),
        ("samples=0", "samples: must be between 1 and 100000"),
        ("seeds=[]", "ConfigError: seeds: must have at least 1 value"),
        ("limits.cpus=-1", "limits.cpus: must be between 0 and 1024, got -1"),
        ("limits.time_min=0", "limits.time_min: must be above 0, got 0"),
        (
            "parameters={workflow.optimizer.lr:{uniform:[0,1]}}",
            "parameters.workflow.optimizer.lr: a grid needs a list",
        ),
        ("workflow.gama=1", "Did you mean 'gamma'?"),
        ("parameters.workflow.gama=[1]", "Did you mean 'gamma'?"),
        ("limits.gpus=1.5", "values above 1 must be integers"),
        ("what", "expected key=value"),
    ],
)
def test_a_wrong_option_is_found_before_anything_runs(argument, text, tmp_path, capsys):
    path = write_sweep(tmp_path, parameters={"workflow.optimizer.lr": [1e-3]})
    assert main(["sweep", path, argument]) == 2
    assert text in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


def test_a_file_that_is_no_yaml_is_named(tmp_path, capsys):
    (tmp_path / "s.yaml").write_text("method: [")
    assert main(["sweep", str(tmp_path / "s.yaml")]) == 2
    assert f"{tmp_path / 's.yaml'} is not valid YAML: " in capsys.readouterr().err


def test_the_same_last_words_are_printed_once(tmp_path, capsys):
    path = write_sweep(tmp_path, seeds=[0, 1, 2])
    options = {"experiment": "ppo_cartpole", "overrides": overrides_of(path)}
    for job in make_jobs(SweepConfig(**options, seeds=(0, 1, 2)), tmp_path / "s"):
        other = job.parameters["seed"] == 2
        job.write(status="failed", error=["why", "other" if other else "same"])
    assert main(["sweep", path]) == 1
    out = capsys.readouterr().out
    assert [out.count(x) for x in ("failed: ", "| same", "| other")] == [3, 1, 1]


def test_a_failed_job_does_not_stop_the_rest_and_nothing_is_run_twice(tmp_path, capsys):
    path = write_sweep(tmp_path, parameters={"env.id": ["Nope-v1", "CartPole-v1"]}, parallel_jobs=2)
    assert main(["sweep", path]) == 1
    out = capsys.readouterr().out
    assert "failed: " in out
    assert "id=Nope-v1" in out
    assert "| " in out.split("failed: ")[1]  # its last words
    assert "--retry-failed" in out
    options = {"experiment": "ppo_cartpole", "overrides": overrides_of(path)}
    space = {"env.id": ["Nope-v1", "CartPole-v1"]}
    bad, good = make_jobs(SweepConfig(**options, parameters=space), tmp_path / "s")
    assert (bad.status(), good.status()) == ("failed", "finished")
    written = (good.run_folder / "metrics.jsonl").stat().st_mtime_ns
    assert main(["sweep", path]) == 1
    assert "0 to run" in capsys.readouterr().out
    assert (bad.record()["attempts"], good.record()["attempts"]) == (1, 1)
    assert (good.run_folder / "metrics.jsonl").stat().st_mtime_ns == written
    assert main(["sweep", path, "--show"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[1][1:6] == ["Nope-v1", "0", "failed", "0", "-"]
    assert rows[2][3] == "finished"
    last = returns(Run(good.run_folder).metrics(), "eval/return")[-1][1]
    assert float(rows[2][-1]) == last
    (line,) = [x for x in out.splitlines() if x.startswith("finished ")]
    assert line.endswith(f"return {last:.4g}"), "the same as in the table"


def test_failed_jobs_are_run_again_only_if_asked(tmp_path):
    def swept(retry: bool) -> tuple[int, int]:
        pool = JobPool(Local(Limits(), 1), 1)
        assert Sweep([job], pool, SweepProgress("t", 1), retry).run() == 1
        return job.record()["attempts"], len(job.record()["error"])

    job = Script(tmp_path, ("import sys; sys.exit('no')",), {})
    assert [swept(retry) for retry in (False, False, True)] == [(1, 1), (1, 1), (2, 1)]


# -- limits and locks -----------------------------------------------------------------------------


def test_a_job_sees_the_gpus_of_its_slot():
    def shown(gpus: float | None, slot: int) -> str | None:
        where = place(Limits(gpus=gpus), slot, 2, [] if gpus == 0 else ["4", "5,6"])
        return where.variables.get("CUDA_VISIBLE_DEVICES")

    assert [shown(1, s) for s in range(2)] == ["4", "5,6"]
    assert shown(0, 0) == ""
    assert "CUDA_VISIBLE_DEVICES" not in place(Limits(), 0, 1).variables


def test_a_job_gets_its_own_cores_if_there_are_enough():
    every = sorted(os.sched_getaffinity(0))
    whole = [place(Limits(cpus=1), s, len(every)) for s in range(len(every))]
    assert [w.cores for w in whole] == [(core,) for core in every]
    crowded = place(Limits(cpus=1), 0, len(every) + 1)
    assert crowded.cores == ()
    assert crowded.variables["OMP_NUM_THREADS"] == "1"
    assert BufferContext(Limits(cpus=3)).variables["MKL_NUM_THREADS"] == "3", "on a cluster as well"


def test_a_lock_lives_as_long_as_a_child_that_inherited_it(tmp_path):
    lock = Lock(tmp_path / "a" / "lock")
    assert not lock.held()
    assert lock.take()
    assert not Lock(lock.path).take()
    child = subprocess.Popen(["sleep", "60"], pass_fds=(lock.file.fileno(),))
    lock.release()
    assert lock.held()
    child.kill()
    child.wait()
    assert not lock.held()


def test_a_job_in_other_hands_is_not_started(tmp_path):
    job = Job(tmp_path, ("seed=0",), {})
    pool = JobPool(Local(Limits(), 1), 1)
    for lock in (job.owner_lock, job.run_lock):
        assert lock.take()
        assert job.status() == "running"
        assert not pool.start(job)
        assert pool.jobs == []
        lock.release()
    assert job.status() == "waiting"


def test_the_status_of_a_job_is_told_by_its_files(tmp_path):
    job = Job(tmp_path, ("seed=0",), {})
    job.run_folder.mkdir(parents=True)
    manifest = job.run_folder / "manifest.json"
    manifest.write_text('{"status": "running"}')  # whoever wrote this is dead
    assert job.status() == "interrupted"
    job.write(status="failed")
    assert job.status() == "failed"
    manifest.write_text('{"status": "finished"}')
    assert job.status() == "finished"


def test_without_the_extra_its_name_is_told(monkeypatch, tmp_path):
    for name, module in (("slurm", "submitit"), ("ray", "ray")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(MissingExtraError, match=rf"dreamlab\[{name}\]"):
            make_launcher(LauncherConfig(name=name), Limits(), 1, tmp_path)


def test_a_sweep_that_is_over_calls_no_cluster(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    path = write_sweep(tmp_path, seeds=[0, 1], launcher={"name": "ray"})
    assert main(["sweep", path]) == 2, "there is work to do, and no Ray"
    assert "dreamlab[ray]" in capsys.readouterr().err
    options = {"experiment": "ppo_cartpole", "overrides": overrides_of(path)}
    jobs = make_jobs(SweepConfig(**options, seeds=(0, 1)), tmp_path / "s")
    for job in jobs:
        job.run_folder.mkdir(parents=True)
        (job.run_folder / "manifest.json").write_text('{"status": "finished"}')
    assert main(["sweep", path]) == 0
    assert "all finished" in capsys.readouterr().out
    (jobs[0].run_folder / "manifest.json").write_text('{"status": "interrupted"}')
    jobs[0].write(status="failed")
    assert main(["sweep", path]) == 1
    assert main(["sweep", path, "--retry-failed"]) == 2


def test_a_damaged_job_is_shown_as_failed_beside_the_others(tmp_path, capsys):
    path = write_sweep(tmp_path, seeds=[0, 1, 2])
    options = {"experiment": "ppo_cartpole", "overrides": overrides_of(path)}
    jobs = make_jobs(SweepConfig(**options, seeds=(0, 1, 2)), tmp_path / "s")
    for job in jobs:
        job.run_folder.mkdir(parents=True)
        (job.run_folder / "manifest.json").write_text('{"status": "finished"}')
    (jobs[0].run_folder / "manifest.json").write_bytes(b"\xff")
    (jobs[1].run_folder / "manifest.json").unlink()
    jobs[1].folder.mkdir(parents=True)
    (jobs[1].folder / "job.json").write_text("[]")
    (jobs[2].run_folder / "metrics.jsonl").write_text('x\n{"env_frames": 5, "eval/return": 2}\n')
    assert [j.status() for j in jobs] == ["failed", "failed", "finished"]
    assert main(["sweep", path, "--show"]) == 0
    captured = capsys.readouterr()
    assert captured.out.count("failed") == 2
    assert captured.err.count("1 corrupted line skipped") == 1
    assert main(["sweep", path]) == 1
    out = capsys.readouterr().out
    assert f"{jobs[0].run_folder / 'manifest.json'} is not UTF-8" in out
    assert f"{jobs[1].folder / 'job.json'} contains a list" in out


# -- the view -------------------------------------------------------------------------------------


def test_the_time_left_is_that_of_the_running_jobs_and_of_those_to_come(tmp_path):
    job = Job(tmp_path, ("seed=0",), {})
    job.run_folder.mkdir(parents=True)
    (job.run_folder / "config.yaml").write_text("training: {total_frames: 400, phases: []}")
    lines = [{"env_frames": 50, "time/wall_s": 5.0}, {"env_frames": 100, "time/wall_s": 10.0}]
    whole = "".join(json.dumps(line) + "\n" for line in lines)
    (job.run_folder / "metrics.jsonl").write_text(whole + '{"env_frames": 1')  # cut by a crash
    record = newest_metrics(job.run_folder)
    assert progress(job.run_folder, record) == (0.25, 30.0)
    assert time_left([job], left=3, size=2) == (30 + 3 * 40) / 2
    assert time_left([job], left=0, size=2) == 30, "nobody helps with the last one"
    silent = Job(tmp_path, ("seed=1",), {})
    assert time_left([silent], left=0, size=1) is None
    assert time_left([job, silent], left=1, size=2, took=[50.0]) == (30 + 50 + 50) / 2


def test_a_table_has_dashes_where_a_listed_job_has_no_such_option(tmp_path):
    config = SweepConfig(method="listed", jobs=({"a": 1.0}, {"b": None}))
    jobs = make_jobs(config, tmp_path)
    table, _ = results(jobs, {j.name: j.status() for j in jobs})
    assert [list(c.cells) for c in table.columns[1:4]] == [["1", "-"], ["0", "0"], ["-", "null"]]


def test_a_terminal_shows_the_running_jobs_and_the_time_left(tmp_path):
    job = Job(
        tmp_path,
        ("seed=0",),
        {"workflow.optimizer.lr": 0.1, "seed": 0, **dict.fromkeys("abcdefghijk")},
    )
    job.write(seconds=40.0)
    console = Console(width=80, force_terminal=True, file=StringIO())
    view = SweepProgress("mine", 1, console)
    view.start()
    view.ended(job)
    view.show({"a": "finished", "b": "running", "c": "waiting"}, [job], 1)
    view.close()
    text = Text.from_ansi(console.file.getvalue()).plain
    assert max(map(len, text.splitlines())) < 80, "there is room for the ^C that a terminal writes"
    assert "mine: 1 finished, 1 running, 1 waiting, 80 s to go" in text
    assert "lr=0.1 seed=0" in text


def test_elsewhere_than_on_a_terminal_there_are_plain_lines(capsys):
    view = SweepProgress("mine", 1)
    view.start()
    assert view.live is None
    view.due = 0.0
    view.show({"a": "finished", "b": "failed", "c": "waiting"}, [], 1)
    assert capsys.readouterr().out == "mine: 1 finished, 1 failed, 1 waiting\n"


@pytest.mark.parametrize("verb", ["sweep", "tune"])
def test_a_file_of_the_user_is_not_overwritten_by_what_a_sweep_writes(verb, tmp_path, capsys):
    file = tmp_path / "sweep.yaml"
    write_sweep(tmp_path, parameters={"workflow.optimizer.lr": [1e-3]}, dir=str(tmp_path))
    text = "# notes of months\n" + (tmp_path / "s.yaml").read_text()
    file.write_text(text)
    assert main([verb, str(file)]) == 2
    assert "was not written by a sweep" in capsys.readouterr().err
    assert file.read_text() == text
    assert not (tmp_path / "runs").exists()
