"""`dreamlab sweep`: run all unfinished jobs of a sweep."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dreamlab.commands.arguments import typed, verb
from dreamlab.commands.many import Asked, list_sweeps, many
from dreamlab.commands.printing import warn
from dreamlab.core.text import print

if TYPE_CHECKING:
    from dreamlab.sweeps.job import Job
    from dreamlab.sweeps.sweep import Sweep


@verb(
    "sweep",
    "dreamlab sweep ppo_cartpole_grid --dry-run",
    "dreamlab sweep my_sweep.yaml parallel_jobs=4 training.total_frames=50_000",
    "dreamlab sweep my_sweep.yaml parallel_jobs=8 limits.gpu_memory_gib=4",
    "dreamlab sweep my_sweep.yaml --show",
)
@many
@click.pass_context
def command(ctx: click.Context, **given: Any) -> int:
    """Run all unfinished jobs of a sweep.

    Jobs are runs: each combination of `parameters` times each seed. The same command resumes the
    sweep. Limits of a job are in threads, GB of memory and minutes. On a machine with GPUs each job
    gets one, shared by as many jobs as fit in its memory, with NVIDIA MPS if installed:
    limits.gpus=0.25 (four per GPU), limits.gpu_memory_gib=4 and launcher.mps=false override this.
    """
    asked = Asked(**given)
    if asked.file is None:
        return list_sweeps()
    from dreamlab.commands import jobs as shared
    from dreamlab.sweeps.sweep import Sweep, make_jobs

    config = shared.read_sweep(asked.file, asked.overrides)
    folder = config.folder("sweep")
    jobs = make_jobs(config, folder)
    if asked.dry_run:
        shared.check_jobs(jobs, config.limits)
        shared.list_jobs(jobs)
        return 0
    if asked.show:
        return _show(asked, jobs, shared.recorded_jobs(config, folder, jobs))
    shared.check_jobs([j for j in jobs if j.status() != "finished"], config.limits)
    shared.keep_file(config, folder)
    ends = {"finished"} if asked.retry_failed else {"finished", "failed", "pruned"}
    coming = [j for j in jobs if j.status() not in ends]
    pool, view = shared.staff(config, folder, coming, len(coming))
    work = Sweep(jobs, pool, view, asked.retry_failed)
    busy = f", {len(work.elsewhere)} already running" if work.elsewhere else ""
    view.say(f"{len(jobs)} jobs, {len(work.left)} to run{busy}, in {folder}")
    code = work.run()
    _report_failures([j for j in jobs if work.states[j.name] == "failed"])
    view.say(_summary(work, folder, shared.again("sweep", typed(ctx))))
    return code


def _show(asked: Asked, jobs: Sequence[Job], others: Sequence[Job]) -> int:
    """Print how far the jobs are; those that were begun with other options as well."""
    from dreamlab.commands.jobs import console
    from dreamlab.sweeps.progress import results

    states = {j.name: j.status() for j in (*jobs, *others)}
    begun = [j for j in jobs if states[j.name] != "waiting"]
    listed = [*jobs, *others] if begun or not others else others
    table, damage = results(listed, states)
    console().print(table)
    warn(damage)
    if others:
        left = "" if len(listed) > len(others) else f"; none of the {len(jobs)} asked for has begun"
        print(f"{len(others)} jobs were run with other options than {asked.file} has now{left}")
    return 0


def _report_failures(failed: Iterable[Job]) -> None:
    """Print the last stderr lines of failed jobs, once per distinct error."""
    alike: dict[tuple[str, ...], list[Job]] = {}
    for job in failed:
        alike.setdefault(tuple(job.error()), []).append(job)
    for lines, jobs in alike.items():
        print()
        for job in jobs:
            print(f"failed: {job.name}  {job.label}")
        print(f"  {jobs[-1].folder / 'stderr.log'}")
        print("\n".join(f"  | {line}" for line in lines))


def _summary(work: Sweep, folder: Path, again: str) -> str:
    if work.pool.stopping:
        return f"stopped. Resume with: {again}"
    if "failed" in work.states.values():
        return f"some jobs failed. Retry with: {again} --retry-failed"
    return f"all finished: {folder}. Results: {again} --show"
