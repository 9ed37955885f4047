"""`dreamlab demo`: a world model, trained while you look."""

from __future__ import annotations

from dreamlab.commands.arguments import Override, argument, verb


@verb(
    "demo",
    "dreamlab demo",
    "dreamlab demo training.total_frames=20_000 seed=1",
)
@argument("overrides", "options of the run", nargs=-1, type=Override(), metavar="[KEY=VALUE]...")
def command(overrides: tuple[str, ...]) -> int:
    """Train a small DreamerV3 on CartPole-v1 from scratch and show its dream.

    A few minutes on a laptop's CPU; ends with what was learnt, films of the dream, and what to try
    next.
    """
    from dreamlab.demo import run_demo

    return run_demo(list(overrides))
