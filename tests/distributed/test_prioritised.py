"""Importance weights of several processes have one scale: the largest of all of them is 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.data.streams import feed, replay
from tests.distributed.ranks import run_ranks

BATCHES = 5


def weights(rank: int) -> list[tuple[list[float], list[float]]]:
    """Return importance weights as they are drawn, and as batches have them."""
    buffer = replay(sampler={"_target_": "prioritised", "beta": 1.0, "exponent": 1.0})
    feed(buffer, 16)
    sampler, drawn = buffer.sampler, []
    assert sampler is not None
    draw = sampler.draw

    def hear(*args: Any) -> Any:
        ids, weight = draw(*args)
        drawn.append(weight)
        return ids, weight

    sampler.draw = hear
    ids = torch.arange(8)  # errors of rank 1 are very unlike, so that its weights are too
    buffer.update(ids[:, None], {"priority": 0.01 + ids.float() ** (3 * rank)})
    return [(buffer.sample().extras["weight"].tolist(), drawn[-1].tolist()) for _ in range(BATCHES)]


def test_the_largest_weight_of_all_processes_is_one(tmp_path):
    first, second = run_ranks(weights, tmp_path)
    own = False
    for (a, drawn_a), (b, drawn_b) in zip(first, second, strict=True):
        most = max(drawn_a + drawn_b)
        np.testing.assert_allclose(a + b, np.array(drawn_a + drawn_b) / most, rtol=1e-6)
        assert max(a + b) == 1
        own |= min(max(a), max(b)) < 0.9
    assert own, "both processes have the same largest weight: nothing had to be agreed on"


def test_one_process_scales_by_its_own_largest():
    for got, drawn in weights(1):
        assert got == pytest.approx([x / max(drawn) for x in drawn])
