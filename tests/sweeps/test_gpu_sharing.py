"""How many jobs share a GPU, which gets which, and MPS for as long as they do."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from dreamlab.cli import main
from dreamlab.commands import jobs as shared
from dreamlab.config import LabConfig
from dreamlab.core.errors import LabError
from dreamlab.engine.plan import GPU_ROW
from dreamlab.runs.readers import read_config_node
from dreamlab.sweeps import gpu_sharing
from dreamlab.sweeps.gpu_need import FILE, LEAST_GIB, measured_gib, read_gib
from dreamlab.sweeps.gpu_sharing import (
    GIB,
    Gpu,
    Mps,
    Seats,
    fill,
    find_gpus,
    gpus_of,
    jobs_that_fit,
    seat_alone,
    seat_by_memory,
    seat_by_number,
)
from dreamlab.sweeps.job import Job
from dreamlab.sweeps.job_pool import JobPool
from dreamlab.sweeps.launch.options import LauncherConfig, Limits
from dreamlab.sweeps.sweep import Sweep, SweepConfig
from tests.sweeps.many import QUICK, Script, mps_stand_in, write_sweep

H200 = Gpu("0", 139.0)
OTHER = Gpu("1", 20.0)

# -- arithmetic -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("free", "need", "jobs"),
    [(139, 3.1, 40), (10, 3, 3), (10, 3.01, 2), (10, 9, 1), (10, 9.9, 1), (10, 10.1, 0)],
)
def test_a_tenth_of_the_free_memory_stays_free_unless_there_is_one_job(free, need, jobs):
    assert jobs_that_fit(free, need) == jobs


def test_jobs_are_dealt_in_turn_while_there_is_room():
    assert fill([3, 1], 9) == [0, 1, 0, 0]
    assert fill([3, 3], 3) == [0, 1, 0]
    assert fill([10**9], 2) == [0, 0]
    assert fill([], 2) == fill([0, 0], 2) == []


@pytest.mark.parametrize(
    ("gpus", "need", "jobs", "cores", "line"),
    [
        ([H200], 3.1, 4, 16, "4 jobs on GPU 0: each needs 3.1 of 139 GiB free"),
        ([H200], 60, 4, 16, "2 jobs on GPU 0: each needs 60 of 139 GiB free"),
        ([H200], 3.1, 9, 2,
         "2 jobs on GPU 0: each needs 3.1 of 139 GiB free, and there are 2 cores"),
        ([H200, OTHER], 9, 4, 16,
         "2 jobs on GPU 0, 2 on GPU 1: each needs 9 of 139 and 20 GiB free"),
        ([H200, OTHER], 30, 9, 16, "4 jobs on GPU 0: each needs 30 of 139 GiB free"),
    ],
)  # fmt: skip
def test_memory_jobs_and_cores_bound_how_many_share(gpus, need, jobs, cores, line):
    assert str(seat_by_memory(gpus, need, jobs, cores)) == line


def test_a_job_that_no_gpu_holds_is_refused_with_what_to_do():
    with pytest.raises(LabError, match=r"needs 30 GiB, 20 are free.*limits.gpu_memory_gib"):
        seat_by_memory([OTHER], 30, 2, 8)


@pytest.mark.parametrize(
    ("number", "jobs", "seats"),
    [
        (1, 9, ["4", "5", "6"]),
        (0.5, 9, ["4", "5", "6"] * 2),
        (0.3, 99, ["4", "5", "6"] * 3),
        (0.5, 2, ["4", "5"]),
        (2, 9, ["4,5"]),
    ],
)
def test_a_number_that_was_given_wins(number, jobs, seats):
    assert list(seat_by_number(["4", "5", "6"], number, jobs).gpus) == seats


@pytest.mark.parametrize(("names", "words"), [([], "no GPU is visible"), (["0"], "1 visible")])
def test_gpus_that_are_not_there_cannot_be_had(names, words):
    with pytest.raises(LabError, match=words):
        seat_by_number(names, 2, 4)


def test_gpus_are_shared_only_where_two_jobs_have_the_same():
    assert not seat_alone([H200, OTHER], 2).shared
    assert Seats(("0", "1", "0"), "").shared


def test_only_gpus_that_answer_count():
    answer = f"a warning\n{json.dumps([[7 * GIB, 8 * GIB]])}\n"
    assert gpus_of(["GPU-a", "GPU-b"], answer) == [Gpu("GPU-a", 7.0)]


def test_a_gpu_that_is_named_but_not_there_is_none(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert find_gpus() == []


# -- what one job needs ---------------------------------------------------------------------------


def test_the_need_is_read_from_the_plan():
    assert read_gib(f"parameters       9\n{GPU_ROW:16s} 3.125 GiB\nmemory free      9 GiB") == 3.125
    assert 0 < read_gib("memory free      9 GiB") < 0.01


def test_what_was_measured_is_not_measured_again(tmp_path):
    jobs = [Job(tmp_path, (f"a={a}", f"seed={s}"), {}) for a in (1, 2) for s in (0, 1)]
    known = {jobs[0].name.split("_")[0]: 2.0, jobs[2].name.split("_")[0]: 5.0}
    (tmp_path / FILE).write_text(json.dumps(known))
    assert measured_gib(jobs, "0", tmp_path, pytest.fail) == 5.0


def test_a_job_that_cannot_be_measured_tells_why_and_what_to_do(tmp_path):
    job = Job(tmp_path, ("+experiment=ppo_cartpole", "no_such_option=1"), {})
    with pytest.raises(LabError, match=r"(?s)limits.gpu_memory_gib=8.*no_such_option"):
        measured_gib([job], "", tmp_path, lambda _: None)


@pytest.mark.slow
def test_a_job_is_measured_by_its_plan_and_remembered(tmp_path):
    jobs = [Job(tmp_path, ("+experiment=ppo_cartpole", *QUICK, f"seed={s}"), {}) for s in (0, 1)]
    said: list[str] = []
    for _ in range(2):
        assert measured_gib(jobs, "", tmp_path, said.append) == LEAST_GIB
    assert len(said) == 1


# -- MPS ------------------------------------------------------------------------------------------


def words(asked: list[str]) -> list[str]:
    return [line.split()[0] for line in asked]


def test_mps_is_started_and_stopped(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    asked = mps_stand_in(tmp_path, monkeypatch)
    mps = Mps(tmp_path / "s", pytest.fail)
    variables = mps.start()
    pipe = Path(variables["CUDA_MPS_PIPE_DIRECTORY"])
    assert pipe.is_dir()
    mps.stop()
    mps.stop()
    assert words(asked()) == ["get_server_list", "get_server_list", "start", "quit"]
    assert asked()[2] == f"start {pipe} gpus=", "or its clients would count GPUs anew"
    assert not pipe.exists()


def test_mps_that_does_not_start_is_said_and_done_without(tmp_path, monkeypatch):
    asked = mps_stand_in(tmp_path, monkeypatch, code=3)
    said: list[str] = []
    mps = Mps(tmp_path / "s", said.append)
    assert mps.start() == {}
    mps.stop()
    assert said == ["no MPS: `nvidia-cuda-mps-control -d` ended with 3"]
    assert "quit" not in words(asked())


def test_mps_that_somebody_else_started_is_used_and_left_alone(tmp_path, monkeypatch):
    asked = mps_stand_in(tmp_path, monkeypatch)
    (tmp_path / "mps_home/up").touch()
    mps = Mps(tmp_path / "s", pytest.fail)
    assert mps.start() == {}, "jobs find it where it always is"
    mps.stop()
    assert words(asked()) == ["get_server_list"]


def test_one_of_two_commands_in_a_folder_stops_mps(tmp_path, monkeypatch):
    asked = mps_stand_in(tmp_path, monkeypatch)
    first, second = (Mps(tmp_path / "s", pytest.fail) for _ in range(2))
    assert first.start() == second.start() != {}
    second.stop()
    assert "quit" not in words(asked())
    first.lock.release()  # as if it were killed
    third = Mps(tmp_path / "s", pytest.fail)
    third.start()
    third.stop()
    assert words(asked()).count("start") == words(asked()).count("quit") == 1


def test_a_path_too_long_for_sockets_is_said(tmp_path, monkeypatch):
    mps_stand_in(tmp_path, monkeypatch)
    monkeypatch.setattr(gpu_sharing, "LONGEST_PIPE", 10)
    said: list[str] = []
    assert Mps(tmp_path / "s", said.append).start() == {}
    assert "set TMPDIR" in said[0]


# -- sweeps ---------------------------------------------------------------------------------------

WRITE = """
import os, pathlib
names = ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "OMP_NUM_THREADS")
here = pathlib.Path({folder!r}) / "seen"
here.mkdir(exist_ok=True)
here.joinpath("{number}").write_text(" ".join(os.environ.get(n, "-") for n in names))
"""
FOREVER = "import time; time.sleep(60)"


def swept(folder: Path, config: SweepConfig, codes: list[str], interrupt: bool = False) -> int:
    """Run scripts as a sweep does its jobs."""
    jobs = [Script(folder, (code,), {}) for code in codes]
    pool, view = shared.staff(config, folder, jobs, len(jobs))
    sweep = Sweep(jobs, pool, view, False)
    if interrupt:
        show = view.show

        def then_interrupt(*args) -> None:
            show(*args)
            if len(pool.jobs) == 2 and not pool.stopping:
                os.kill(os.getpid(), signal.SIGINT)

        view.show = then_interrupt
    return sweep.run()


def seen(folder: Path) -> list[list[str]]:
    return [p.read_text().split() for p in sorted((folder / "seen").iterdir())]


def two_on_one(**launcher: bool) -> SweepConfig:
    where = LauncherConfig(**launcher)
    return SweepConfig(name="t", parallel_jobs=9, limits=Limits(gpus=0.5), launcher=where)


@pytest.fixture
def one_gpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def test_jobs_on_one_gpu_have_mps_and_a_share_of_the_cores(one_gpu, tmp_path, monkeypatch, capsys):
    asked = mps_stand_in(tmp_path, monkeypatch)
    codes = [WRITE.format(folder=str(tmp_path), number=i) for i in range(3)]
    swept(tmp_path, two_on_one(), codes)
    out = capsys.readouterr().out
    assert "2 jobs on GPU 7: limits.gpus=0.5; MPS on\n" in out
    threads = str(gpu_sharing.cores_each(2))
    pipe = next(line.split()[1] for line in asked() if line.startswith("start"))
    assert seen(tmp_path) == [["7", pipe, threads]] * 3
    assert Counter(words(asked()))["quit"] == 1


def test_mps_is_stopped_after_an_interrupt(one_gpu, tmp_path, monkeypatch):
    asked = mps_stand_in(tmp_path, monkeypatch)
    codes = [f"{FOREVER}  # {i}" for i in range(2)]
    assert swept(tmp_path, two_on_one(), codes, interrupt=True) == 130
    assert words(asked())[-2:] == ["start", "quit"]


def test_mps_can_be_switched_off(one_gpu, tmp_path, monkeypatch, capsys):
    asked = mps_stand_in(tmp_path, monkeypatch)
    codes = [WRITE.format(folder=str(tmp_path), number=i) for i in range(2)]
    swept(tmp_path, two_on_one(mps=False), codes)
    assert asked() == []
    assert {row[1] for row in seen(tmp_path)} == {"-"}
    assert "limits.gpus=0.5; MPS off\n" in capsys.readouterr().out


def test_without_mps_it_is_said_once_and_done_without(one_gpu, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu_sharing, "MPS", "no-such-daemon")
    codes = [WRITE.format(folder=str(tmp_path), number=i) for i in range(2)]
    swept(tmp_path, two_on_one(), codes)
    assert capsys.readouterr().out.count("no MPS: ") == 1
    assert {row[1] for row in seen(tmp_path)} == {"-"}


def test_gpus_can_be_hidden_from_jobs(one_gpu, tmp_path):
    swept(tmp_path, SweepConfig(name="t", limits=Limits(gpus=0)), [WRITE.format(
        folder=str(tmp_path), number=0)])  # fmt: skip
    assert (tmp_path / "seen/0").read_text() == " - -"


def chosen(tmp_path: Path, **options) -> tuple[Seats | None, list[str]]:
    """Return the GPUs of eight jobs of an experiment, and what was said."""
    overrides = ("+experiment=ppo_cartpole", *options.pop("overrides", ()))
    jobs = [Job(tmp_path, (*overrides, f"seed={s}"), {"seed": s}) for s in range(8)]
    said: list[str] = []
    config = SweepConfig(name="t", **options)
    return shared.seat(config, tmp_path, jobs, len(jobs), said.append), said


@pytest.fixture
def two_gpus(monkeypatch):
    """Two GPUs as their descriptions, and sixteen cores."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(shared, "find_gpus", lambda: [H200, OTHER])
    monkeypatch.setattr(shared, "count_cores", lambda: 16)
    monkeypatch.setattr(shared, "has_mps", lambda: True)


def test_a_sweep_shares_gpus_by_memory(two_gpus, tmp_path):
    seats, said = chosen(tmp_path, parallel_jobs=8, limits=Limits(gpu_memory_gib=7))
    assert seats is not None
    assert Counter(seats.gpus) == {"0": 6, "1": 2}
    line = "6 jobs on GPU 0, 2 on GPU 1: each needs 7 of 139 and 20 GiB free; MPS on"
    assert said == [line]


def test_few_jobs_get_a_gpu_each_and_nothing_is_measured(two_gpus, tmp_path):
    seats, said = chosen(tmp_path, parallel_jobs=2)
    assert seats is not None
    assert seats.gpus == ("0", "1")
    assert said == ["1 job on GPU 0, 1 on GPU 1: one each"]


def test_more_jobs_than_gpus_are_shared_by_what_was_measured(two_gpus, tmp_path):
    kind = Job(tmp_path, ("+experiment=ppo_cartpole", "seed=0"), {}).name.split("_")[0]
    (tmp_path / FILE).write_text(json.dumps({kind: 50.0}))
    seats, said = chosen(tmp_path, parallel_jobs=8)
    assert seats is not None
    assert seats.gpus == ("0", "0")
    assert said == ["2 jobs on GPU 0: each needs 50 of 139 GiB free; MPS on"]


@pytest.mark.parametrize(
    "options",
    [
        {"parallel_jobs": 1},
        {"parallel_jobs": 8, "overrides": ("device=cpu",)},
        {"parallel_jobs": 8, "limits": Limits(gpus=0)},
        {"parallel_jobs": 8, "launcher": LauncherConfig(name="ray")},
    ],
)
def test_where_nothing_is_shared_all_is_left_to_the_runs(two_gpus, tmp_path, options):
    assert chosen(tmp_path, **options) == (None, [])


def test_without_a_gpu_all_is_left_to_the_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert chosen(tmp_path, parallel_jobs=8, limits=Limits(gpu_memory_gib=1)) == (None, [])
    pool, view = shared.staff(SweepConfig(name="t", parallel_jobs=8), tmp_path, [], 8)
    assert isinstance(pool, JobPool)
    assert (pool.size, view.size) == (8, 8)


@pytest.mark.slow
def test_two_runs_at_once_without_a_gpu_are_as_they_were(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    asked = mps_stand_in(tmp_path, monkeypatch)
    path = write_sweep(tmp_path, "device=auto", seeds=[0, 1], parallel_jobs=2, limits={})
    assert main(["sweep", path]) == 0
    out = capsys.readouterr().out
    assert "GPU" not in out
    assert "2 jobs, 2 to run" in out
    configs = [read_config_node(p) for p in (tmp_path / "s/runs").iterdir()]
    assert [c["threads"] for c in configs] == [LabConfig.threads] * 2
    assert asked() == []
    assert {p.name for p in (tmp_path / "s").iterdir()} == {"jobs", "runs", "sweep.yaml"}
