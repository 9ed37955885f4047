"""The recurrence as one node: the same states and gradients as step by step."""

from __future__ import annotations

import pytest

from tests import kernels
from tests.helpers import some_of

SHAPES = pytest.mark.parametrize(("classes", "rows"), some_of([(5, 20), (4, 5), (16, 16)]))


@SHAPES
def test_a_scan_follows_sequences_as_single_steps_do(classes, rows):
    kernels.run("tests.accel.scanned", "cpu", classes, rows, way="interpreted")


@pytest.mark.gpu
@SHAPES
def test_a_scan_on_the_gpu(classes, rows):
    kernels.run("tests.accel.scanned", "cuda", classes, rows, way="gpu")


LARGE = [("12m", "float32"), *((size, "bfloat16") for size in ("12m", "200m", "400m"))]


@pytest.mark.parametrize(
    ("size", "dtype"),
    [("1m", "bfloat16"), *(pytest.param(*args, marks=pytest.mark.slow) for args in LARGE)],
)
def test_every_kernel_can_be_built_for_an_h200(size, dtype, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernels.run("tests.accel.built", size, dtype, way="built")
