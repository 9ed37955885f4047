"""`dreamlab tune`: tune hyperparameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from dreamlab.commands.arguments import typed, verb
from dreamlab.commands.many import Asked, list_sweeps, many
from dreamlab.core.errors import LabError
from dreamlab.core.words import number


@verb(
    "tune",
    "dreamlab tune ppo_cartpole_tune --dry-run",
    "dreamlab tune my_sweep.yaml tune.trials=50 parallel_jobs=4",
    "dreamlab tune my_sweep.yaml --show",
)
@many
@click.pass_context
def command(ctx: click.Context, **given: Any) -> int:
    """Tune hyperparameters with Optuna; resume the study if it exists.

    A trial is one run per seed of the file, with options suggested by Optuna; poor trials are
    pruned. Requires the extra `tune`.
    """
    asked = Asked(**given)
    if asked.file is None:
        return list_sweeps()
    from dreamlab.commands import jobs as shared
    from dreamlab.sweeps import tune as tuning
    from dreamlab.sweeps.sweep import corners, make_job, make_jobs

    config = shared.read_sweep(asked.file, asked.overrides)
    folder = config.folder("tune")
    ends = [make_job(config, folder, p, s) for p in corners(config) for s in config.seeds]
    frames = shared.check_jobs(ends, config.limits)
    if asked.dry_run:
        shared.list_jobs(make_jobs(replace(config, method="random", samples=1), folder)[:1])
        return 0
    if asked.show and not (config.tune.storage or tuning.study_file(folder).exists()):
        raise LabError(f"{folder}: this study has not started")
    study = tuning.open_study(config, folder, frames)
    if asked.show:
        shared.console().print(_trials(study))
        return 0
    shared.keep_file(config, folder)
    if asked.retry_failed:
        tuning.retry_failed(study)
    runs = config.tune.trials * len(config.seeds)
    left = 0 if tuning.is_over(config.tune, study) else runs
    pool, view = shared.staff(config, folder, ends, left)
    view.say(f"{config.tune.trials} trials, in {folder}")
    code = tuning.Tuner(config, folder, study, (pool, view)).run()
    if code == 130:
        view.say(f"stopped. Resume with: {shared.again('tune', typed(ctx))}")
        return code
    written = tuning.write_results(config, folder, study)
    best = study.best_trial
    view.say(f"best: trial {best.number}, {config.tune.metric} {best.value:.6g}")
    view.say(tuning.best_command(config, study))
    view.say("written: " + ", ".join(str(p) for p in written))
    return 0


def _trials(study: Any) -> Any:
    from rich.table import Table

    from dreamlab.sweeps.asking import valid
    from dreamlab.sweeps.progress import cell

    trials = study.get_trials(deepcopy=False)
    counted = {t.number for t in valid(trials)}
    points = [t.params or t.system_attrs.get("fixed_params", {}) for t in trials]
    keys = list(dict.fromkeys(k for point in points for k in point))
    table = Table(box=None, pad_edge=False)
    for name in ("trial", *keys, "state", "value"):
        table.add_column(name, justify="right")
    for t, point in zip(trials, points, strict=True):
        state = t.state.name.lower() if t.number in counted else "retried"
        values = [cell(point[k]) if k in point else "-" for k in keys]
        table.add_row(str(t.number), *values, state, number(t.value))
    return table
