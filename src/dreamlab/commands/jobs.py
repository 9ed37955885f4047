"""Helpers of the commands that run many jobs: the sweep file, its validation, its launcher."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from dreamlab import build
from dreamlab.commands.submit import check_processes, for_limits
from dreamlab.config import LabConfig, compose, load_config, read_value, read_yaml
from dreamlab.config_files import GROUPS, choices, config_dir
from dreamlab.core.config import dump, load
from dreamlab.core.console import ShowConsole
from dreamlab.core.errors import ConfigError, unknown
from dreamlab.core.files import write_text
from dreamlab.core.foreign_words import BY_NAME
from dreamlab.core.limits import shown
from dreamlab.core.readers import FileError, read_json
from dreamlab.core.text import print
from dreamlab.sweeps.gpu_need import measured_gib
from dreamlab.sweeps.gpu_sharing import (
    MPS,
    Mps,
    Seats,
    cores_each,
    count_cores,
    find_gpus,
    has_mps,
    seat_alone,
    seat_by_memory,
    seat_by_number,
    visible_gpus,
)
from dreamlab.sweeps.job import Job, shell
from dreamlab.sweeps.job_pool import JobPool, OnDemand, make_launcher
from dreamlab.sweeps.launch.options import Limits
from dreamlab.sweeps.progress import SweepProgress
from dreamlab.sweeps.sweep import SweepConfig, telling


def read_sweep(file: str, overrides: Sequence[str]) -> SweepConfig:
    """Return the sweep of a file with the command line's overrides."""
    path = _find(file)
    node = read_yaml(path)
    node.setdefault("name", path.stem)
    for override in overrides:
        _apply(node, override)
    return load(SweepConfig, node, "")


def _find(name: str) -> Path:
    if (path := Path(name)).is_file():
        return path
    inside = config_dir() / "sweep" / f"{name}.yaml"
    if not inside.is_file():
        raise ConfigError(unknown("sweep", name, choices("sweep"), "sweep"))
    return inside


def _apply(node: dict[str, Any], override: str) -> None:
    """Set an option of the sweep; any other is added to the overrides of all jobs."""
    key, equals, text = override.partition("=")
    if not equals and override in choices("experiment"):
        key = "+experiment"
    elif not equals:
        raise ConfigError(f"cannot read the argument {override!r}: expected key=value")
    head, _, rest = key.partition(".")
    if head not in (own := {f.name for f in fields(SweepConfig)}):
        known = {*own, *GROUPS, *(f.name for f in fields(LabConfig))}
        if (name := head.lstrip("+~")) not in known and name not in BY_NAME:
            raise ConfigError(unknown("option of a sweep or a run", name, known, override))
        if not isinstance(node.setdefault("overrides", []), list):
            raise ConfigError(f"overrides: expected a list, got {shown(node['overrides'])}")
        node["overrides"] = [*_without(node["overrides"], override), override]
        return
    inner = [rest] if head == "parameters" and rest else [k for k in rest.split(".") if k]
    for part in [head, *inner][:-1]:
        inside: Any = node.setdefault(part, {})
        if not isinstance(inside, dict):
            raise ConfigError(f"{part}: expected a mapping, got {shown(inside)}")
        node = inside
    node[inner[-1] if inner else head] = read_value(text, key)


def _without(overrides: Sequence[Any], later: str) -> list[Any]:
    """Return overrides less those that a later one of the same option makes void."""
    key, _, value = later.partition("=")
    void = not value.startswith("{")  # options in braces are added to those that there are
    return [o for o in overrides if not (void and str(o).partition("=")[0] == key)]


def recorded_jobs(config: SweepConfig, folder: Path, jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs in a sweep's folder that these are not: begun with other options.

    What tells them from these is among their parameters.
    """
    names, shared, found = {j.name for j in jobs}, set(config.base()), list[Job]()
    for path in sorted((folder / "jobs").glob("*/job.json")):
        if path.parent.name in names or not (record := _record(path)):
            continue
        parameters = record["parameters"]
        more = [o for o in record["overrides"] if o not in shared and "=" in o]
        told = dict(o.split("=", 1) for o in more if o.partition("=")[0] not in parameters)
        found.append(Job(folder, tuple(record["overrides"]), {**told, **parameters}))
    return [j for j in found if j.folder.is_dir()]


def _record(path: Path) -> dict[str, Any] | None:
    """Return what was written down of a job, if it tells what the job was."""
    try:
        record = read_json(path)
    except FileError:
        return None
    overrides, parameters = record.get("overrides"), record.get("parameters")
    whole = isinstance(overrides, list) and isinstance(parameters, dict)
    return record if whole and all(isinstance(o, str) for o in record["overrides"]) else None


def check_jobs(jobs: Sequence[Job], limits: Limits) -> int:
    """Raise if a job's configuration is invalid; return its env frames, 0 if unknown."""
    frames = 0
    for job in telling(jobs):
        config = load_config(compose(for_limits(limits, job.overrides)))
        check_processes(config, limits)
        build.check(config)
        planned = sum(p.duration_steps or 0 for p in config.training.phases)
        frames = max(frames, config.training.total_frames or planned)
    return frames


def keep_file(config: SweepConfig, folder: Path) -> None:
    """Save the sweep file beside its jobs."""
    path = folder / "sweep.yaml"
    if path.exists() and not {"limits", "launcher", "tune", "sample_seed"} <= {*read_yaml(path)}:
        raise ConfigError(f"{path} was not written by a sweep: choose another folder with dir=")
    write_text(path, OmegaConf.to_yaml(OmegaConf.create(dump(config))))


def staff(
    config: SweepConfig, folder: Path, jobs: Sequence[Job], count: int
) -> tuple[JobPool, SweepProgress]:
    """Return the pool that runs `count` jobs, and its progress view; no launcher for 0 jobs.

    Jobs that share GPUs run fewer at once than requested if GPU memory does not suffice.
    """
    size, limits, mps = config.parallel_jobs, config.limits, None
    view = SweepProgress(config.name, size)
    seats = seat(config, folder, jobs, count, view.say) if count else None
    if seats:
        size = view.size = len(seats.gpus)
        limits = replace(limits, cpus=limits.cpus or cores_each(size)) if size > 1 else limits
        mps = Mps(folder, view.say) if config.launcher.mps and has_mps() and seats.shared else None
    gpus = seats.gpus if seats else ()
    launcher = OnDemand(lambda: make_launcher(config.launcher, limits, size, folder, gpus, mps))
    _ = count and launcher.made
    return JobPool(launcher, size), view


def seat(
    config: SweepConfig, folder: Path, jobs: Sequence[Job], count: int, say: Callable[[str], None]
) -> Seats | None:
    """Return the GPU assignment of the jobs, and log it; None leaves it to the runs."""
    limits, asked = config.limits, min(config.parallel_jobs, count)
    if config.launcher.name != "local" or limits.gpus == 0:
        return None
    if limits.gpus:
        seats = seat_by_number(visible_gpus(), limits.gpus, config.parallel_jobs)
    elif asked < 2 or not _on_gpu(jobs, limits) or not (gpus := find_gpus()):
        return None
    elif not limits.gpu_memory_gib and asked <= len(gpus):
        seats = seat_alone(gpus, asked)
    else:
        known = limits.gpu_memory_gib
        need = known or measured_gib(telling(jobs), gpus[0].name, folder, say)
        seats = seat_by_memory(gpus, need, asked, count_cores())
    if asked > 1:
        say(f"{seats}{_about_mps(seats, config.launcher.mps)}")
    return seats


def _on_gpu(jobs: Sequence[Job], limits: Limits) -> bool:
    """Return whether any of the jobs would use an available GPU."""
    configs = (load_config(compose(for_limits(limits, j.overrides))) for j in telling(jobs))
    devices = (config.device for config in configs)
    return bool(visible_gpus()) and any(d in ("auto", "cuda") for d in devices)


def _about_mps(seats: Seats, wanted: bool) -> str:
    if not seats.shared:
        return ""
    if not wanted:
        return "; MPS off"
    return "; MPS on" if has_mps() else f"; no MPS: {MPS} is not installed"


def console() -> ShowConsole:
    """Return the console for tables, which is wide without a terminal."""
    return ShowConsole() if sys.stdout.isatty() else ShowConsole(width=200)


def list_jobs(jobs: Iterable[Job]) -> None:
    """Print the command and the status of each job."""
    for job in jobs:
        print(f"{shell(job.command())}  # {job.status()}")


def again(verb: str, args: list[str]) -> str:
    """Return the command that resumes the sweep."""
    return shlex.join(["dreamlab", verb, *(a for a in args if a != "--retry-failed")])
