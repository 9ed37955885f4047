"""The recurrence as one node: the same states and gradients as step by step."""

from __future__ import annotations

import pytest

from tests import interpreted

SHAPES = pytest.mark.parametrize(("classes", "rows"), [(4, 5), (5, 16), (16, 20)])


@SHAPES
def test_a_scan_follows_sequences_as_single_steps_do(classes, rows):
    interpreted.run("tests.nn.scanned", "cpu", classes, rows)


@pytest.mark.gpu
@SHAPES
def test_a_scan_on_the_gpu(classes, rows):
    interpreted.run("tests.nn.scanned", "cuda", classes, rows, interpreted=False)
