"""One training as a job of a cluster: what `train` does with `launcher.name=slurm` or `ray`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dreamlab import build
from dreamlab.config import LabConfig, read_value
from dreamlab.core.config import load
from dreamlab.core.errors import ConfigError, LabError
from dreamlab.core.text import print
from dreamlab.runs.folder import check_folder
from dreamlab.runs.run import new_folder
from dreamlab.sweeps.job import SingleJob
from dreamlab.sweeps.job_pool import JobPool, make_launcher
from dreamlab.sweeps.launch.options import LauncherConfig, Limits, check_together
from dreamlab.sweeps.progress import SweepProgress
from dreamlab.sweeps.sweep import Sweep

SECTIONS = ("launcher", "limits")


@dataclass(frozen=True)
class Place:
    """Where a training runs, and what it may use there."""

    launcher: LauncherConfig = field(default_factory=LauncherConfig)
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.launcher.name == "local":
            raise ConfigError(
                "launcher.name: local training needs no launcher: remove `launcher` and `limits`, "
                "or use launcher.name=slurm or launcher.name=ray"
            )
        check_together(self.launcher, self.limits)


def place_of(overrides: Sequence[str]) -> tuple[Place | None, list[str]]:
    """Return where a training shall run, None for this process, and the options of the run."""
    node: dict[str, Any] = {}
    rest: list[str] = []
    for override in overrides:
        key, equals, text = override.partition("=")
        head, *inner = key.split(".")
        if not equals or head not in SECTIONS:
            rest.append(override)
            continue
        if not inner:
            raise ConfigError(f"{override}: expected {head}.OPTION=VALUE")
        at = node.setdefault(head, {})
        for part in inner[:-1]:
            at = at.setdefault(part, {})
        at[inner[-1]] = read_value(text, key)
    return (load(Place, node, "") if node else None), rest


def for_limits(limits: Limits, words: Sequence[str]) -> list[str]:
    """Return the options of a run with the number of processes that `limits` start."""
    given = {word.partition("=")[0].lstrip("+") for word in words}
    if limits.processes == 1 or given & {"distributed.processes", "devices"}:
        return list(words)
    return [*words, f"distributed.processes={limits.processes}"]


def check_processes(config: LabConfig, limits: Limits) -> None:
    """Raise if a run wants another number of processes than `limits` start, or has GPUs for."""
    if 1 not in (limits.processes, config.processes) and config.processes != limits.processes:
        raise ConfigError(
            f"distributed.processes: {config.processes}, but limits.nodes and "
            f"limits.processes_per_node start {limits.processes}: leave one of them out"
        )
    here = limits.processes_per_node if limits.processes > 1 else config.processes
    gpus = limits.gpus or 0
    if not (config.device == "cpu" or gpus in (0, here) or (gpus < 1 and here == 1)):
        more = f", or limits.processes_per_node={gpus:g}" if gpus > 1 else ""
        raise ConfigError(
            f"limits.gpus: {gpus:g} per node, but the processes per node are {here}, with a GPU "
            f"each: use limits.gpus={here}{more}"
        )
    if limits.processes == 1:
        limits.with_processes(config.processes)  # raises if they do not fit


def submit(place: Place, words: Sequence[str], config: LabConfig) -> int:
    """Hand one training to a cluster; return an exit code."""
    check_processes(config, place.limits)
    build.check(config)
    folder = (Path(config.run.dir) if config.run.dir else new_folder(config.name)).resolve()
    check_folder(folder)
    own = tuple(w for w in words if not w.startswith("run.dir="))
    job = SingleJob(folder, own, {"seed": config.seed})
    if job.status() == "running":
        raise LabError(f"{folder}: this run is already being trained")
    launcher = make_launcher(place.launcher, place.limits, 1, job.folder)
    if place.launcher.name == "ray":
        return _stay(job, JobPool(launcher, 1))
    launcher.start(job, 0)
    _tell(job, str(job.record()["queue_id"]), place.launcher)
    return 0


def _stay(job: SingleJob, pool: JobPool) -> int:
    """Watch a job to its end: Ray ends what the program that sent it leaves behind."""
    sweep = Sweep([job], pool, SweepProgress(job.name, 1), retry_failed=True)
    sweep.view.say(f"training in {job.run_folder}; its output: {job.folder / 'stdout.log'}")
    code = sweep.run()
    for line in job.error() if code == 1 else ():
        print(f"  | {line}")
    ended = {0: "finished", 130: "interrupted"}.get(code, "failed")
    sweep.view.say(f"{ended}: {job.run_folder}. The same command with run.dir resumes it")
    return code


def _tell(job: SingleJob, number: str, launcher: LauncherConfig) -> None:
    """Print the job's number, and how to show, cancel and resume it."""
    local = launcher.cluster == "local"
    print(f"job {number}: trains in {job.run_folder}")
    rows = {
        "watch": f"dreamlab watch {job.run_folder}",
        "output": job.folder / "stdout.log",
        "queue": f"ps {number}" if local else f"squeue --job {number}",
        "save and stop": f"touch {job.stop_file}",
        "cancel": f"kill {number}" if local else f"scancel {number}",
        "resume": f"the same command with run.dir={job.run_folder}",
    }
    for name, text in rows.items():
        print(f"  {name:14s} {text}")
