"""`dreamlab debug`: a short training run with all checks on."""

from __future__ import annotations

import click

from dreamlab.commands.arguments import POSITIVE_INT, check_trust, overrides, trust_code, verb


@verb(
    "debug",
    "dreamlab debug dreamer_walker",
    "dreamlab debug my_experiment.yaml --frames 2000 run.dir=/tmp/checked",
)
@overrides
@click.option("--frames", type=POSITIVE_INT, default=500, help="Env frames to train for.")
@trust_code
def command(overrides: tuple[str, ...], frames: int, trust_code: bool) -> int:
    """Train for a few hundred frames with all checks on; exit code 1 if an error was found.

    Uses small networks, buffers and phases (+preset=debug) unless another preset is given. Reports
    problems, the ranges of inputs, gradients and activations, memory by kind and module, and the
    time of each stage.
    """
    from dreamlab.commands.inspection import inspect

    check_trust(overrides, trust_code)
    return inspect(overrides, frames)
