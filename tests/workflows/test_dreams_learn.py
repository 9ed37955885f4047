"""Agents that learn in their dreams, or plan in their models, until they reach a score."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.helpers import need, open_loop


def reach(goal: float, folder: Path, experiment: str, *options: str) -> None:
    """Train seed 1 of an experiment and check its last evaluation."""
    rest = ("eval.video=false", "device=cpu", "seed=1")
    loop = open_loop(folder / "r", f"+experiment={experiment}", *options, *rest)
    loop.run()
    assert loop.score is not None
    assert loop.score >= goal


@pytest.mark.learns
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("experiment", "frames", "goal"),
    [
        ("dreamer_cartpole", 20_000, 450),  # of 500
        ("dreamer_pixels", 8_000, 6),  # from pictures: 1.1 at random, about 12 at best
        ("planet_cartpole_swingup", 10_000, 150),  # 66 at random, as the next
        ("dreamer_v1_cartpole_swingup", 20_000, 120),
        ("dreamer_v2_cartpole_swingup", 40_000, 150),
    ],
)
def test_it_learns(experiment, frames, goal, tmp_path):
    reach(goal, tmp_path, experiment, f"training.total_frames={frames}")


@pytest.mark.learns
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("experiment", "frames", "goal"),
    [
        ("tdmpc2_pendulum", 4_000, -400),  # about -1,200 at random, as all of these; about -150
        ("tdmpc_square_pendulum", 6_000, -500),
        ("tdmpc_pendulum", 6_000, -700),  # recorded: -147 to -155
        ("mpc_pendulum", 2_000, -400),  # recorded: -142
        ("mpc_tdmpc2_pendulum", 3_000, -400),  # recorded: -146 to -173
    ],
)
def test_it_learns_to_plan(experiment, frames, goal, tmp_path):
    rest = ("eval.every_frames=0", "eval.episodes=10", "threads=1")
    reach(goal, tmp_path, experiment, f"training.total_frames={frames}", *rest)


@pytest.mark.learns
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("experiment", "goal"),
    [
        ("world_models_cartpole", 100),  # 22 at random; half of the seeds reach 500, others 138
        ("world_models_pixels", 5),  # 1.1 at random, about 12 at best; recorded: 7.0 to 8.8
    ],
)
def test_a_controller_that_only_dreamt_plays(experiment, goal, tmp_path):
    need("cmaes")
    reach(goal, tmp_path, experiment, "eval.every_updates=0", "threads=1")
