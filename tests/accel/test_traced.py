"""What a GPU's compiler is given can be compiled: shown without a GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dreamlab.core.workflow import marked
from tests.contract.found import PAIRS
from tests.shapes import ROOMS

ROOT = Path(__file__).parents[2]
QUICK = ("dreamer_debug", "dqn_rainbow_cartpole", "tdmpc2_cartpole_swingup")
COMPILED = [name for cls, name in PAIRS if marked(cls, "compilable")]
CAPTURED = [name for cls, name in PAIRS if marked(cls, "capturable")]


def trace(folder: Path, precision: str, *names: str, script: str = "traced") -> None:
    command = [sys.executable, "-m", f"tests.accel.{script}", str(folder), precision, *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["same"], done.stdout[-500:] + done.stderr[-3000:]


def test_what_a_gpu_would_compile_can_be_traced_and_minibatches_of_any_size_once(tmp_path):
    trace(tmp_path, "bf16", *QUICK, "varying_rows")


def test_no_kernel_is_where_shapes_are_checked():
    assert "accel" not in ROOMS
    files = [f for room in ROOMS for f in (ROOT / "src/dreamlab" / room).rglob("*.py")]
    assert len(files) > 50
    assert not [f for f in files if "triton.jit" in f.read_text()]


@pytest.mark.slow
def test_what_a_gpu_would_compile_can_be_traced_while_shapes_are_checked(tmp_path):
    trace(tmp_path, "bf16", "dreamer_debug", script="traced_checked")


@pytest.mark.slow
def test_plans_that_kernels_do_not_take_can_be_traced_in_bfloat16(tmp_path):
    """Those of sizes above 5m, and of sizes that are no multiple of a tile."""
    trace(tmp_path, "bf16", "tdmpc2_cartpole_swingup-one_by_one")


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_what_a_gpu_would_compile_for_every_experiment_can_be_traced(name, tmp_path):
    trace(tmp_path, "bf16", name)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_what_one_of_two_processes_would_compile_can_be_traced(name, tmp_path):
    """Averages of gradients and statistics over both are part of what is traced."""
    trace(tmp_path, "bf16", f"{name}-of_two")


@pytest.mark.slow
@pytest.mark.parametrize("name", CAPTURED)
def test_what_a_gpu_would_capture_in_full_precision_can_be_traced(name, tmp_path):
    trace(tmp_path, "fp32", name)
