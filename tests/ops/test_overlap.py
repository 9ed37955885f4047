"""Independent computations, which a GPU may overlap."""

from __future__ import annotations

import pytest
import torch

from dreamlab.ops.overlap import InHalves


@pytest.mark.parametrize("early", [True, False])
def test_a_function_in_halves_is_that_of_the_whole(early):
    calls: list[int] = []

    def both(x):
        calls.append(x.shape[1])
        return x.sum(-1), x.prod(-1)

    x, halves = torch.rand(3, 6, 2), InHalves(both)
    if early:
        halves.begin(x[:, :3])
    for got, wanted in zip(halves.of(x), (x.sum(-1), x.prod(-1)), strict=True):
        assert torch.equal(got, wanted)
    assert calls == ([3, 3] if early else [6])
