"""Launchers other than this machine's own processes, as far as one machine can try them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from dreamlab.runs.launch.crew import Crew, make_launcher
from dreamlab.runs.launch.local import LauncherConfig, Limits
from dreamlab.runs.launch.view import View
from dreamlab.runs.sweep import Sweep, SweepConfig, make_jobs
from tests.helpers import need
from tests.runs.many import LONG, holders, overrides_of, saved, wait_for, write_sweep


def launched(config: LauncherConfig, folder: Path, stop: bool) -> list[str]:
    """Run two jobs on a launcher, or interrupt them once they have saved; return their states."""
    path = write_sweep(folder, *(LONG if stop else ()))
    base = SweepConfig(experiment="ppo_cartpole", overrides=overrides_of(path), seeds=(0, 1))
    jobs = make_jobs(base, folder / "s")
    crew = Crew(make_launcher(config, Limits(cpus=1), 2, folder / "s"), 2)
    sweep = Sweep(jobs, crew, View("t", 2), False)
    show = sweep.view.show

    def watch(*args) -> None:
        show(*args)
        if stop and len({p.parts[-3] for p in saved(folder / "s")}) == 2:
            crew.interrupts = 1

    sweep.view.show = watch
    assert sweep.run() == (130 if stop else 0)
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
        if b"submitit" in Path(f"/proc/{pid}/cmdline").read_bytes():
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
