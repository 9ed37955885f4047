"""What jobs may use, and launchers other than this machine's processes, as far as it can try."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from dreamlab.cli import main
from dreamlab.sweeps.job_pool import JobPool, make_launcher
from dreamlab.sweeps.launch import local
from dreamlab.sweeps.launch.local import Attempt, BufferContext, memory_bytes
from dreamlab.sweeps.launch.options import LauncherConfig, Limits
from dreamlab.sweeps.progress import SweepProgress
from dreamlab.sweeps.sweep import Sweep, SweepConfig, make_jobs
from tests.helpers import need
from tests.sweeps.many import (
    LONG,
    Script,
    holders,
    members,
    overrides_of,
    saved,
    wait_for,
    write_sweep,
)

# -- limits ---------------------------------------------------------------------------------------


def attempt_of(folder: Path, code: str, **limits: float) -> Attempt:
    attempt = Attempt(Script(folder, (code,), {}), BufferContext(Limits(**limits)))
    assert attempt.start()
    return attempt


def test_memory_beyond_the_limit_ends_a_job_and_says_so(tmp_path):
    hog = "import time; x = bytearray(80_000_000); time.sleep(60)"
    attempt = attempt_of(tmp_path, hog, memory_gb=0.05)
    wait_for(lambda: attempt.poll() is not None)
    assert attempt.job.status() == "failed"
    (error,) = attempt.job.record()["error"]
    assert re.fullmatch(r"limits.memory_gb: used 0\.0\d GB of 0.05, was killed", error)


def test_memory_that_processes_share_is_counted_once(tmp_path):
    code = "import os, time; x = bytearray(80_000_000); os.fork(); time.sleep(60)"
    attempt = attempt_of(tmp_path, code)
    assert attempt.child is not None
    wait_for(lambda: len(list(members(attempt.child.pid))) == 2)
    assert 80e6 < memory_bytes(attempt.child.pid) < 110e6
    attempt.kill()
    wait_for(lambda: not list(members(attempt.child.pid)))


def test_a_job_beyond_its_time_that_does_not_stop_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "GRACE_S", 0.3)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    attempt = attempt_of(tmp_path, deaf, time_min=0.01)
    wait_for(lambda: attempt.poll() is not None)
    assert attempt.job.record()["error"] == ["limits.time_min: exceeded 0.01 min, was killed"]


@pytest.mark.slow
def test_a_run_beyond_its_time_saves_and_would_go_on(tmp_path):
    path = write_sweep(tmp_path, *LONG)
    base = SweepConfig(experiment="ppo_cartpole", overrides=overrides_of(path))
    (job,) = make_jobs(base, tmp_path / "s")
    attempt = Attempt(job, BufferContext(Limits(cpus=1, time_min=60)))
    assert attempt.start()
    wait_for(lambda: saved(tmp_path / "s"))
    assert attempt.poll() is None
    attempt.began -= 3600
    wait_for(lambda: attempt.poll() is not None)
    (error,) = job.record()["error"]
    assert error.startswith("limits.time_min: exceeded 60 min, saved; a retry resumes from there")
    assert (job.status(), job.manifest_status()) == ("failed", "interrupted")
    assert "resume" in job.command()


# -- clusters -------------------------------------------------------------------------------------


def read(process: int, what: str) -> list[bytes]:
    """Return a process's words or variables."""
    return Path(f"/proc/{process}/{what}").read_bytes().split(b"\0")


def launched(config: LauncherConfig, folder: Path, stop: bool) -> list[str]:
    """Run two jobs on a launcher, or interrupt them once they have saved; return their states."""
    path = write_sweep(folder, *(LONG if stop else ()))
    base = SweepConfig(experiment="ppo_cartpole", overrides=overrides_of(path), seeds=(0, 1))
    jobs = make_jobs(base, folder / "s")
    pool = JobPool(make_launcher(config, Limits(cpus=1), 2, folder / "s"), 2)
    sweep = Sweep(jobs, pool, SweepProgress("t", 2), False)
    show = sweep.view.show

    def watch(*args) -> None:
        show(*args)
        if stop and not pool.stopping and len({p.parts[-3] for p in saved(folder / "s")}) == 2:
            found = [r for j in jobs for r in holders(j.folder / "run.lock")]
            runs = [r for r in found if b"train" in read(r, "cmdline")]
            limited.append({b"OMP_NUM_THREADS=1" in read(r, "environ") for r in runs})
            pool.interrupts = 1

    limited: list[set[bool]] = []
    sweep.view.show = watch
    assert sweep.run() == (130 if stop else 0)
    assert limited == ([{True}] if stop else []), "the limit of threads reaches the run"
    assert not any(j.run_lock.held() for j in jobs)
    return [j.status() for j in jobs]


@pytest.mark.slow
@pytest.mark.parametrize("stop", [False, True])
def test_submitit_runs_and_stops_jobs(stop, tmp_path):
    need("submitit")
    states = launched(LauncherConfig(name="slurm", cluster="local"), tmp_path, stop)
    assert states == ["interrupted" if stop else "finished"] * 2


@pytest.mark.slow
def test_a_job_whose_time_is_up_goes_back_into_the_queue_and_goes_on(tmp_path):
    need("submitit")
    path = write_sweep(tmp_path, "training.total_frames=40_000", "checkpoint.every_frames=500")
    base = SweepConfig(experiment="ppo_cartpole", overrides=overrides_of(path))
    (job,) = make_jobs(base, tmp_path / "s")
    config = LauncherConfig(name="slurm", cluster="local")
    handle = make_launcher(config, Limits(cpus=1), 1, tmp_path / "s").start(job, 0)
    wait_for(lambda: saved(tmp_path / "s"))
    for pid in holders(job.folder / "run.lock"):
        if b"submitit" in b" ".join(read(pid, "cmdline")):
            os.kill(pid, signal.SIGUSR2)  # what SLURM sends shortly before the limit
    wait_for(lambda: handle.poll() is not None)
    assert handle.poll() == "finished"
    assert job.record()["attempts"] == 2
    assert '"resumed"' in (job.run_folder / "events.jsonl").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("stop", [False, True])
def test_a_ray_cluster_runs_and_stops_jobs(stop, tmp_path):
    need("ray")
    options = {"num_cpus": 2, "include_dashboard": False}
    states = launched(LauncherConfig(name="ray", options=options), tmp_path, stop)
    assert states == ["interrupted" if stop else "finished"] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "place",
    [
        ["launcher.name=slurm", "launcher.cluster=local"],
        ["launcher.name=ray", "launcher.options.num_cpus=2"],
    ],
    ids=["submitit", "ray"],
)
def test_each_run_of_a_sweep_has_several_processes(place, tmp_path):
    need("submitit" if "launcher.name=slurm" in place else "ray")
    path = write_sweep(tmp_path, "training.total_frames=1_000", seeds=[1, 2])
    assert main(["sweep", path, *place, "limits.processes_per_node=2"]) == 0
    parts = [p.relative_to(tmp_path / "s").parts for p in (tmp_path / "s").rglob("state_rank1.pt")]
    assert len({p[:2] for p in parts}) == 2, "both runs had a second process"
