"""The verbs that run many jobs: `sweep` and `tune`."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from dreamlab.commands.arguments import Parser
from dreamlab.commands.printing import warn
from dreamlab.config import GROUPS, LabConfig, choices, config_dir, read_value, read_yaml
from dreamlab.core.config import dump, load
from dreamlab.core.console import ShowConsole
from dreamlab.core.errors import ConfigError, LabError, unknown
from dreamlab.core.files import write_text
from dreamlab.core.limits import shown
from dreamlab.core.text import print
from dreamlab.core.words import number
from dreamlab.sweeps.job import Job, shell
from dreamlab.sweeps.job_pool import JobPool, OnDemand, make_launcher
from dreamlab.sweeps.progress import SweepProgress, cell, results
from dreamlab.sweeps.sweep import Sweep, SweepConfig, corners, make_job, make_jobs, telling


def sweep(args: list[str]) -> int:
    """Run every job of a sweep that is not over yet."""
    options, config = _read("sweep", args)
    if config is None:
        return 0
    folder = config.folder("sweep")
    jobs = make_jobs(config, folder)
    if options.dry_run:
        _check(jobs)
        _list(jobs)
        return 0
    if options.show:
        table, damage = results(jobs, {j.name: j.status() for j in jobs})
        _console().print(table)
        warn(damage)
        return 0
    _check([j for j in jobs if j.status() != "finished"])
    _keep(config, folder)
    ends = {"finished"} if options.retry_failed else {"finished", "failed", "pruned"}
    pool, view = _staff(config, folder, over={j.status() for j in jobs} <= ends)
    work = Sweep(jobs, pool, view, options.retry_failed)
    busy = f", {len(work.elsewhere)} running already" if work.elsewhere else ""
    view.say(f"{len(jobs)} jobs, {len(work.left)} to run{busy}, in {folder}")
    code = work.run()
    _report_failures([j for j in jobs if work.states[j.name] == "failed"])
    view.say(_summary(work, folder, args))
    return code


def tune(args: list[str]) -> int:
    """Search for good options with Optuna; go on with the study if it has begun."""
    options, config = _read("tune", args)
    if config is None:
        return 0
    from dreamlab.sweeps import tune as tuning

    folder = config.folder("tune")
    frames = _check([make_job(config, folder, p, s) for p in corners(config) for s in config.seeds])
    if options.dry_run:
        _list(make_jobs(replace(config, method="random", samples=1), folder)[:1])
        return 0
    if options.show and not (config.tune.storage or tuning.study_file(folder).exists()):
        raise LabError(f"{folder}: this study has not begun")
    study = tuning.open_study(config, folder, frames)
    if options.show:
        _console().print(_trials(study))
        return 0
    _keep(config, folder)
    if options.retry_failed:
        tuning.retry_failed(study)
    pool, view = _staff(config, folder, tuning.is_over(config.tune, study))
    view.say(f"{config.tune.trials} trials, in {folder}")
    code = tuning.Tuner(config, folder, study, (pool, view)).run()
    if code == 130:
        view.say(f"stopped. To go on: {_again('tune', args)}")
        return code
    written = tuning.write_results(config, folder, study)
    best = study.best_trial
    view.say(f"best: trial {best.number}, {config.tune.metric} {best.value:.6g}")
    view.say(tuning.best_command(config, study))
    view.say("written: " + ", ".join(str(p) for p in written))
    return 0


def _staff(config: SweepConfig, folder: Path, over: bool) -> tuple[JobPool, SweepProgress]:
    """Return who runs the jobs, and where that is shown; if all are over, nobody is called."""
    size = config.parallel_jobs
    launcher = OnDemand(lambda: make_launcher(config.launcher, config.limits, size, folder))
    _ = over or launcher.made
    return JobPool(launcher, size), SweepProgress(config.name, size)


# -- the file and what the command line changes in it ---------------------------------------------


def _read(verb: str, args: list[str]) -> tuple[argparse.Namespace, SweepConfig | None]:
    """Return the flags and the sweep; None if there is only to list what could be run."""
    parser = Parser(prog=f"dreamlab {verb}")
    parser.add_argument("file", nargs="?", help="a YAML file, or the name of one in configs/sweep")
    parser.add_argument("overrides", nargs="*", help="options of the sweep, or of all its jobs")
    parser.add_argument("--dry-run", action="store_true", help="list the jobs and stop")
    parser.add_argument("--show", action="store_true", help="print the results so far and stop")
    parser.add_argument("--retry-failed", action="store_true", help="run failed jobs again")
    options = parser.parse_intermixed_args(args)
    if options.file is None:
        print("sweeps:", ", ".join(choices("sweep")))
        return options, None
    path = _find(options.file)
    node = read_yaml(path)
    node.setdefault("name", path.stem)
    for override in options.overrides:
        _apply(node, override)
    return options, load(SweepConfig, node, "")


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
    if not equals:
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


def _check(jobs: Sequence[Job]) -> int:
    """Raise if a job could not begin; return the env frames of one, 0 if they are not known."""
    from dreamlab import build
    from dreamlab.config import compose, load_config

    frames = 0
    for job in telling(jobs):
        config = load_config(compose(job.overrides))
        build.check(config)
        planned = sum(p.duration_steps or 0 for p in config.training.phases)
        frames = max(frames, config.training.total_frames or planned)
    return frames


def _keep(config: SweepConfig, folder: Path) -> None:
    from omegaconf import OmegaConf

    path = folder / "sweep.yaml"
    if path.exists() and not {"limits", "launcher", "tune", "sample_seed"} <= {*read_yaml(path)}:
        raise ConfigError(f"{path} is a file of yours: give the sweep another folder with dir=")
    write_text(path, OmegaConf.to_yaml(OmegaConf.create(dump(config))))


# -- what is printed ------------------------------------------------------------------------------


def _console() -> ShowConsole:
    return ShowConsole() if sys.stdout.isatty() else ShowConsole(width=200)


def _list(jobs: Iterable[Job]) -> None:
    for job in jobs:
        print(f"{shell(job.command())}  # {job.status()}")


def _report_failures(failed: Iterable[Job]) -> None:
    """Print the last words of failed jobs, once for those that failed in the same way."""
    alike: dict[tuple[str, ...], list[Job]] = {}
    for job in failed:
        alike.setdefault(tuple(job.error()), []).append(job)
    for lines, jobs in alike.items():
        print()
        for job in jobs:
            print(f"failed: {job.name}  {job.label}")
        print(f"  {jobs[-1].folder / 'stderr.log'}")
        print("\n".join(f"  | {line}" for line in lines))


def _again(verb: str, args: list[str]) -> str:
    return shlex.join(["dreamlab", verb, *(a for a in args if a != "--retry-failed")])


def _summary(work: Sweep, folder: Path, args: list[str]) -> str:
    again = _again("sweep", args)
    if work.pool.stopping:
        return f"stopped. To go on: {again}"
    if "failed" in work.states.values():
        return f"some jobs failed. To try them again: {again} --retry-failed"
    return f"all finished: {folder}. The results: {again} --show"


def _trials(study: Any) -> Any:
    from rich.table import Table

    from dreamlab.sweeps.tune import valid

    trials = study.get_trials(deepcopy=False)
    counted = {t.number for t in valid(trials)}
    points = [t.params or t.system_attrs.get("fixed_params", {}) for t in trials]
    keys = list(dict.fromkeys(k for point in points for k in point))
    table = Table(box=None, pad_edge=False)
    for name in ("trial", *keys, "state", "value"):
        table.add_column(name, justify="right")
    for t, point in zip(trials, points, strict=True):
        state = t.state.name.lower() if t.number in counted else "tried again"
        values = [cell(point[k]) if k in point else "-" for k in keys]
        table.add_row(str(t.number), *values, state, number(t.value))
    return table


__all__ = ["sweep", "tune"]
