"""`dreamlab verify`: rerun part of a run and compare."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path

import click

from dreamlab.commands.arguments import (
    NATURAL,
    Override,
    argument,
    as_json,
    run_folder,
    trust_code,
    verb,
)
from dreamlab.commands.printing import json_text
from dreamlab.core.clock import axis_name, unit_of
from dreamlab.core.errors import ConfigError, LabError
from dreamlab.core.files import disk_errors
from dreamlab.core.text import print
from dreamlab.runs import verify as verifying
from dreamlab.runs.run import Run


@verb(
    "verify",
    "dreamlab verify experiments/first",
    "dreamlab verify experiments/first --from best --frames 0 threads=1",
)
@run_folder()
@argument(
    "overrides", "options to change in the rerun",
    nargs=-1, type=Override(), metavar="[KEY=VALUE]...",
)  # fmt: skip
@click.option(
    "--frames",
    type=NATURAL,
    default=10_000,
    help="Env frames, or updates of an offline run; 0: all.",
)
@click.option(
    "--from",
    "start",
    metavar="CHECKPOINT",
    help="Checkpoint to start from: latest, best or a name.",
)
@as_json
@trust_code
def command(
    folder: Path,
    overrides: tuple[str, ...],
    frames: int,
    start: str | None,
    as_json: bool,
    trust_code: bool,
) -> int:
    """Rerun part of a run in a clean process; exit code 1 if it does not reproduce.

    Compares digests of transitions, losses and weights, link by link. Reports the first difference
    and what has changed since: versions, hardware, code, options.
    """
    from dreamlab.commands import second_run
    from dreamlab.engine.actors.options import NOT_EXACT
    from dreamlab.interop import strangers

    if not (folder / "config.yaml").exists():
        raise ConfigError(f"{folder} is not a run directory: it has no config.yaml")
    run, config = Run(folder), strangers.read_config(folder, trust_code)
    if config.actors.num:
        raise LabError(f"{folder} cannot be repeated: {NOT_EXACT}")
    path = second_run.find_checkpoint(run, config, start) if start else None
    begin = second_run.clock_of(path)
    verifying.check_exact(run, begin if start else None)
    with disk_errors(every=True), tempfile.TemporaryDirectory(prefix="dreamlab_verify_") as scratch:
        second = Path(scratch) / "run"
        changed = second_run.prepare(config, second, overrides)
        if path is not None:
            second_run.copy_checkpoint(run, path, second)
        ahead = second_run.links_ahead(run, begin, frames)
        if not as_json:
            unit = axis_name(unit_of(verifying.read_chain(folder)[-1]))
            span = f"{unit} {begin:,} to {ahead[-1]:,}"
            print(f"rerunning {span} of {folder}", flush=True)
        second_run.run_again(run, second, begin, len(ahead))
        verdict = verifying.compare(run, Run(second), begin)
    rows = [*verifying.surroundings(run), *((f"options.{k}", a, b) for k, a, b in changed)]
    if verdict.divergence is None and verdict.last is None:
        raise LabError("the rerun recorded nothing to compare")
    if as_json:
        _print_json(verdict, rows)
    else:
        _report_verdict(verdict, rows)
    return 0 if verdict.divergence is None else 1


def _print_json(verdict: verifying.Verdict, rows: verifying.Rows) -> None:
    told = {"same": verdict.divergence is None, **asdict(verdict)}
    told["surroundings"] = [{"name": k, "then": a, "now": b} for k, a, b in rows]
    print(json_text(told))


def _report_verdict(verdict: verifying.Verdict, rows: verifying.Rows) -> None:
    if (last := verdict.last) is not None and verdict.divergence is None:
        places = f"{verdict.compared} point{'' if verdict.compared == 1 else 's'}"
        print(
            f"same: transitions, losses and weights at {places}, up to env frame "
            f"{last['env_frames']:,} and update {last['updates']:,}"
        )
        if rows:
            print("despite these differences since then:\n" + verifying.table(rows))
    if verdict.divergence is None:
        return
    print(verifying.describe(verdict.divergence))
    if rows:
        print("changed since then:\n" + verifying.table(rows))
    else:
        print(
            "versions, hardware, code and options are the same: something is nondeterministic (on "
            "a GPU set deterministic=true; validate the environment with `dreamlab check`)"
        )
