"""Plans in TD-MPC2's latents, scored by kernels: the same numbers as network by network."""

from __future__ import annotations

import pytest

from tests import kernels
from tests.helpers import some_of

SHAPES = pytest.mark.parametrize(
    ("dtype", "actions", "tasks", "width"),
    some_of(
        [
            ("float32", 2, "one", 48),
            ("bfloat16", 3, "tasks", 64),
            ("bfloat16", 3, "tasks", 48),
            ("float32", 3, "tasks", 64),
        ]
    ),
)


@SHAPES
def test_kernels_score_and_propose_plans_as_the_networks_do(dtype, actions, tasks, width):
    kernels.run("tests.accel.planned", "cpu", dtype, actions, tasks, width, way="interpreted")


@pytest.mark.gpu
@pytest.mark.parametrize("width", [48, 64])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_plans_on_the_gpu(dtype, width):
    kernels.run("tests.accel.planned", "cuda", dtype, 6, "one", width, way="gpu")


@pytest.mark.parametrize(("envs", "few"), some_of([(1, "rows"), (16, "rows"), (1, "tiles")]))
def test_the_kernels_can_be_built_for_an_h200(envs, few, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernels.run("tests.accel.built_plans", "5m", envs, few, way="built")
