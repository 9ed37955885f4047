"""Dreams in one call: the same states and actions as step by step."""

from __future__ import annotations

import pytest

from tests import kernels

CASES = [
    ("small", "numbers", 20, "float32"),
    ("odd", "choice", 5, "float32"),
    ("deep", "choices", 33, "float32"),
    ("small", "numbers", 20, "bfloat16"),
]
SHAPES = pytest.mark.parametrize(("size", "kind", "rows", "precision"), CASES)


@SHAPES
def test_a_dream_in_one_call_is_that_of_single_steps(size, kind, rows, precision):
    kernels.run("tests.accel.dreamt", "cpu", size, kind, rows, precision, way="interpreted")


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("size", "kind", "rows", "precision"), [*CASES, ("12m", "numbers", 1024, "bfloat16")]
)
def test_a_dream_on_the_gpu(size, kind, rows, precision):
    kernels.run("tests.accel.dreamt", "cuda", size, kind, rows, precision, way="gpu")
