"""Agents that learn in their dreams, or plan in their models, until they reach a score."""

from __future__ import annotations

import pytest
from tests.helpers import need, open_loop


@pytest.mark.learns
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("experiment", "frames", "goal"),
    [
        ("dreamer_cartpole", 20_000, 450),  # of 500
        ("dreamer_pixels", 8_000, 6),  # from pictures: 0.3 at random, about 12 at best
        ("planet_cartpole_swingup", 10_000, 150),  # 66 at random, as the next
        ("dreamer_v1_cartpole_swingup", 20_000, 120),
        ("dreamer_v2_cartpole_swingup", 40_000, 150),
    ],
)
def test_it_learns(experiment, frames, goal, tmp_path):
    options = (f"training.total_frames={frames}", "eval.video=false", "device=cpu", "seed=1")
    loop = open_loop(tmp_path / "r", f"+experiment={experiment}", *options)
    loop.run()
    assert loop.score is not None
    assert loop.score >= goal


@pytest.mark.learns
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("experiment", "frames", "goal"),
    [
        ("tdmpc2_pendulum", 4_000, -400),  # about -1,200 at random, as all of these; about -150
        ("tdmpc_square_pendulum", 6_000, -500),
        ("tdmpc_pendulum", 6_000, -700),  # nothing is recorded for it
        ("mpc_pendulum", 2_000, -400),  # recorded: -142
        ("mpc_tdmpc2_pendulum", 3_000, -400),  # recorded: -146 to -173
    ],
)
def test_it_learns_to_plan(experiment, frames, goal, tmp_path):
    options = (
        f"training.total_frames={frames}", "eval.every_frames=0", "eval.video=false",
        "eval.episodes=10", "device=cpu", "threads=1", "seed=1",
    )  # fmt: skip
    loop = open_loop(tmp_path / "r", f"+experiment={experiment}", *options)
    loop.run()
    assert loop.score is not None
    assert loop.score >= goal


@pytest.mark.learns
@pytest.mark.timeout(1800)
def test_a_controller_that_only_dreamt_balances(tmp_path):
    """22 at random; in dreams alone half of the seeds reach 500, the others at least 138."""
    need("cmaes")
    options = ("eval.every_updates=0", "eval.video=false", "device=cpu", "threads=1", "seed=1")
    loop = open_loop(tmp_path / "r", "+experiment=world_models_cartpole", *options)
    loop.run()
    assert loop.score is not None
    assert loop.score >= 100
