"""`dreamlab resume`: resume a run with its own configuration."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from dreamlab.commands.arguments import Override, argument, run_folder, trust_code, verb
from dreamlab.core.config import convert
from dreamlab.core.errors import ConfigError
from dreamlab.core.limits import PositiveInt

LENGTH = "training.total_frames"
PROCESSES = "distributed.processes"
MAY_CHANGE = {LENGTH: PositiveInt, PROCESSES: PositiveInt}


@verb(
    "resume",
    "dreamlab resume experiments/first",
    "dreamlab resume experiments/first training.total_frames=200_000",
    "dreamlab resume experiments/first --checkpoint 000000050000",
)
@run_folder()
@argument(
    "overrides",
    f"{LENGTH}=N: the total length of training, in env frames; {PROCESSES}=N: number of processes",
    nargs=-1, type=Override(), metavar="[KEY=N]...",
)  # fmt: skip
@click.option(
    "--checkpoint", default="latest", metavar="NAME",
    help="Roll back to this one (best, or a name in checkpoints/); later ones are renamed to "
        "undone_NAME.",
)  # fmt: skip
@trust_code
def command(folder: Path, overrides: tuple[str, ...], checkpoint: str, trust_code: bool) -> int:
    """Resume an interrupted run, or extend a finished one.

    Restores weights, optimizers, replay buffer, random states and counters. The results are
    identical to those of an uninterrupted run.
    """
    given: dict[str, int] = {}
    for override in overrides:
        key, _, value = override.partition("=")
        if key not in MAY_CHANGE or not value.replace("_", "").isdecimal():
            raise ConfigError(
                f"resume: {override!r}: only {LENGTH}=N and {PROCESSES}=N can be changed; "
                "for other options start a new run"
            )
        given[key] = convert(int(value), MAY_CHANGE[key], key)
    from dreamlab import training
    from dreamlab.commands import several
    from dreamlab.core import world
    from dreamlab.interop import strangers

    training.check_resumable(folder)
    config = strangers.read_config(folder, trust_code, quiet=True)
    place = world.launched()
    usual = config.processes if place is None else place.size
    config = training.with_processes(config, given.get(PROCESSES, usual))
    if PROCESSES in given and config.devices > 1:  # as many as before, without their GPUs
        own = replace(config.distributed, processes=given[PROCESSES])
        config = replace(config, devices=1, distributed=own)
    words = ["resume", str(folder), *overrides, "--checkpoint", checkpoint]
    with several.processes_of(config, [*words, *(["--trust-code"] if trust_code else [])]) as here:
        if here.mine:
            frames = given.get(LENGTH)
            done = training.resume(folder, frames, trust_code=trust_code, checkpoint=checkpoint)
            here.ended(training.exit_code(*done))
    return here.code
