"""`dreamlab demo`: train a small world model and show its dream."""

from __future__ import annotations

from dreamlab.commands.arguments import Override, argument, verb


@verb(
    "demo",
    "dreamlab demo",
    "dreamlab demo training.total_frames=20_000 seed=1",
)
@argument("overrides", "options of the run", nargs=-1, type=Override(), metavar="[KEY=VALUE]...")
def command(overrides: tuple[str, ...]) -> int:
    """Train a small DreamerV3 on CartPole-v1 and show its open-loop predictions.

    Takes a few minutes on a laptop CPU; ends with the results, videos of the dream, and next steps.
    """
    from dreamlab.demo import run_demo

    return run_demo(list(overrides))
