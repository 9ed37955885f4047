"""`dreamlab resume`: resume a run with its own configuration."""

from __future__ import annotations

from pathlib import Path

import click

from dreamlab.commands.arguments import Override, argument, run_folder, trust_code, verb
from dreamlab.core.config import convert
from dreamlab.core.errors import ConfigError
from dreamlab.core.limits import PositiveInt

LENGTH = "training.total_frames"
PROCESSES = "distributed.processes"
DEVICES, DEVICE = "devices", "device"
MAY_CHANGE = {LENGTH: PositiveInt, PROCESSES: PositiveInt, DEVICES: PositiveInt}


@verb(
    "resume",
    "dreamlab resume experiments/first",
    "dreamlab resume experiments/first training.total_frames=200_000",
    "dreamlab resume experiments/first --checkpoint 000000050000",
    "dreamlab resume experiments/first devices=1 device=cpu distributed.processes=2",
)
@run_folder()
@argument(
    "overrides",
    f"{LENGTH}=N: the total length of training, in env frames; {PROCESSES}=N, {DEVICES}=N, "
    f"{DEVICE}=NAME: number of processes, of GPUs, and cpu or cuda",
    nargs=-1, type=Override(), metavar="[KEY=VALUE]...",
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
    given, device = _read(overrides)
    from dreamlab import training
    from dreamlab.commands import several
    from dreamlab.core import world
    from dreamlab.interop import strangers

    training.check_resumable(folder)
    config = strangers.read_config(folder, trust_code, quiet=True)
    where = training.Where(given.get(PROCESSES), given.get(DEVICES), device)
    config = where.of(config)
    place = world.launched()
    if place is not None and not {PROCESSES, DEVICES} & given.keys():
        config = training.with_processes(config, place.size)
    words = ["resume", str(folder), *overrides, "--checkpoint", checkpoint]
    with several.processes_of(config, [*words, *(["--trust-code"] if trust_code else [])]) as here:
        if here.mine:
            frames = given.get(LENGTH)
            done = training.resume(folder, frames, None, trust_code, checkpoint, where)
            here.ended(training.exit_code(*done))
    return here.code


def _read(overrides: tuple[str, ...]) -> tuple[dict[str, int], str | None]:
    """Return the numbers that were given, and the device."""
    given: dict[str, int] = {}
    device: str | None = None
    for override in overrides:
        key, _, value = override.partition("=")
        if key == DEVICE:
            device = value
        elif key in MAY_CHANGE and value.replace("_", "").isdecimal():
            given[key] = convert(int(value), MAY_CHANGE[key], key)
        else:
            raise ConfigError(
                f"resume: {override!r}: only {LENGTH}=N, {PROCESSES}=N, {DEVICES}=N and "
                f"{DEVICE}=NAME can be changed; for other options start a new run"
            )
    return given, device
