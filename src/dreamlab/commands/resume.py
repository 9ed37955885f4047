"""`dreamlab resume`: go on with a run from its own configuration."""

from __future__ import annotations

from pathlib import Path

import click

from dreamlab.commands.arguments import Override, argument, run_folder, trust_code, verb
from dreamlab.core.config import convert
from dreamlab.core.errors import ConfigError
from dreamlab.core.limits import PositiveInt

LENGTH = "training.total_frames"


@verb(
    "resume",
    "dreamlab resume experiments/first",
    "dreamlab resume experiments/first training.total_frames=200_000",
    "dreamlab resume experiments/first --checkpoint 000000050000",
)
@run_folder()
@argument(
    "overrides", f"only {LENGTH}=N: the length of the whole training, in env frames",
    nargs=-1, type=Override(), metavar=f"[{LENGTH}=N]",
)  # fmt: skip
@click.option(
    "--checkpoint", default="latest", metavar="NAME",
    help="Go back to this one (best, or a name in checkpoints/); later ones become undone_NAME.",
)  # fmt: skip
@trust_code
def command(folder: Path, overrides: tuple[str, ...], checkpoint: str, trust_code: bool) -> int:
    """Go on with an interrupted run, or with a finished one for longer.

    Everything is as it was: weights, optimizers, replay, random numbers, counters. The numbers are
    those of a training that was never interrupted.
    """
    frames = None
    for override in overrides:
        key, _, value = override.partition("=")
        if key != LENGTH or not value.replace("_", "").isdecimal():
            raise ConfigError(
                f"resume: {override!r}: only {LENGTH}=N may change; "
                "for other options start a new run"
            )
        frames = convert(int(value), PositiveInt, key)
    from dreamlab import training

    run, status = training.resume(folder, frames, trust_code=trust_code, checkpoint=checkpoint)
    return training.exit_code(run, status)
