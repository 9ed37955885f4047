"""Agents that learn in their dreams, until they reach a score."""

from __future__ import annotations

import pytest
from tests.helpers import open_loop


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
