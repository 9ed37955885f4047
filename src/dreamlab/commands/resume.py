"""`dreamlab resume`: resume a run with its own configuration."""

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
    "overrides", f"only {LENGTH}=N: the total length of training, in env frames",
    nargs=-1, type=Override(), metavar=f"[{LENGTH}=N]",
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
    frames = None
    for override in overrides:
        key, _, value = override.partition("=")
        if key != LENGTH or not value.replace("_", "").isdecimal():
            raise ConfigError(
                f"resume: {override!r}: only {LENGTH}=N can be changed on resume; for other "
                f"options start a new run"
            )
        frames = convert(int(value), PositiveInt, key)
    from dreamlab import training

    _, status = training.resume(folder, frames, trust_code=trust_code, checkpoint=checkpoint)
    return 130 if status == "interrupted" else 0
