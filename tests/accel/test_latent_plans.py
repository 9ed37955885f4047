"""Plans in TD-MPC2's latents, scored by kernels: the same numbers as network by network."""

from __future__ import annotations

import pytest

from tests import kernels
from tests.helpers import some_of

SHAPES = pytest.mark.parametrize(
    ("dtype", "actions", "tasks"),
    some_of([("float32", 2, "one"), ("bfloat16", 3, "tasks"), ("float32", 3, "tasks")]),
)


@SHAPES
def test_kernels_score_and_propose_plans_as_the_networks_do(dtype, actions, tasks):
    kernels.run("tests.accel.planned", "cpu", dtype, actions, tasks, way="interpreted")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_plans_on_the_gpu(dtype):
    kernels.run("tests.accel.planned", "cuda", dtype, 6, "one", way="gpu")


@pytest.mark.parametrize("envs", [1, pytest.param(16, marks=pytest.mark.slow)])
def test_the_kernels_can_be_built_for_an_h200(envs, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernels.run("tests.accel.built_plans", "5m", envs, way="built")
