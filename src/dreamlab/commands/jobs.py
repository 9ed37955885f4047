"""What the verbs share that run many jobs: the sweep's file, its check, who runs it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from dreamlab import build
from dreamlab.config import LabConfig, compose, load_config, read_value, read_yaml
from dreamlab.config_files import GROUPS, choices, config_dir
from dreamlab.core.config import dump, load
from dreamlab.core.console import ShowConsole
from dreamlab.core.errors import ConfigError, unknown
from dreamlab.core.files import write_text
from dreamlab.core.limits import shown
from dreamlab.core.text import print
from dreamlab.sweeps.job import Job, shell
from dreamlab.sweeps.job_pool import JobPool, OnDemand, make_launcher
from dreamlab.sweeps.progress import SweepProgress
from dreamlab.sweeps.sweep import SweepConfig, telling


def read_sweep(file: str, overrides: Sequence[str]) -> SweepConfig:
    """Return the sweep of a file, with what the command line changes in it."""
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
    """Change an option of the sweep; any other is added to the overrides of all jobs."""
    key, equals, text = override.partition("=")
    if not equals and override in choices("experiment"):
        key = "+experiment"
    elif not equals:
        raise ConfigError(f"cannot read the argument {override!r}: expected key=value")
    head, _, rest = key.partition(".")
    if head not in (own := {f.name for f in fields(SweepConfig)}):
        known = {*own, *GROUPS, *(f.name for f in fields(LabConfig))}
        if (name := head.lstrip("+~")) not in known:
            raise ConfigError(unknown("option of a sweep or a run", name, known, override))
        if not isinstance(node.setdefault("overrides", []), list):
            raise ConfigError(f"overrides: expected a list, got {shown(node['overrides'])}")
        node["overrides"] = [*node["overrides"], override]
        return
    inner = [rest] if head == "parameters" and rest else [k for k in rest.split(".") if k]
    for part in [head, *inner][:-1]:
        inside: Any = node.setdefault(part, {})
        if not isinstance(inside, dict):
            raise ConfigError(f"{part}: expected a mapping, got {shown(inside)}")
        node = inside
    node[inner[-1] if inner else head] = read_value(text, key)


def check_jobs(jobs: Sequence[Job]) -> int:
    """Raise if a job could not begin; return the env frames of one, 0 if they are not known."""
    frames = 0
    for job in telling(jobs):
        config = load_config(compose(job.overrides))
        build.check(config)
        planned = sum(p.duration_steps or 0 for p in config.training.phases)
        frames = max(frames, config.training.total_frames or planned)
    return frames


def keep_file(config: SweepConfig, folder: Path) -> None:
    """Keep the sweep's file beside its jobs."""
    path = folder / "sweep.yaml"
    if path.exists() and not {"limits", "launcher", "tune", "sample_seed"} <= {*read_yaml(path)}:
        raise ConfigError(f"{path} is a file of yours: give the sweep another folder with dir=")
    write_text(path, OmegaConf.to_yaml(OmegaConf.create(dump(config))))


def staff(config: SweepConfig, folder: Path, over: bool) -> tuple[JobPool, SweepProgress]:
    """Return who runs the jobs, and where that is shown; if all are over, nobody is called."""
    size = config.parallel_jobs
    launcher = OnDemand(lambda: make_launcher(config.launcher, config.limits, size, folder))
    _ = over or launcher.made
    return JobPool(launcher, size), SweepProgress(config.name, size)


def console() -> ShowConsole:
    """Return where tables are printed; without a terminal they are wide."""
    return ShowConsole() if sys.stdout.isatty() else ShowConsole(width=200)


def list_jobs(jobs: Iterable[Job]) -> None:
    """Print the command of each job and how far it is."""
    for job in jobs:
        print(f"{shell(job.command())}  # {job.status()}")


def again(verb: str, args: list[str]) -> str:
    """Return what to type to go on."""
    return shlex.join(["dreamlab", verb, *(a for a in args if a != "--retry-failed")])
