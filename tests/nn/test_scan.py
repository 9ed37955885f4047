"""The recurrence as one node: the same states and gradients as step by step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("classes", "rows"), [(4, 5), (5, 16), (16, 20)])
def test_a_scan_follows_sequences_as_single_steps_do(classes, rows):
    """In Triton's interpreter: the kernels themselves, without a GPU."""
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "tests.nn.scanned", "cpu", str(classes), str(rows)]
    env = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["same"], done.stderr[-3000:]


@pytest.mark.gpu
@pytest.mark.parametrize(("classes", "rows"), [(4, 5), (5, 16), (16, 20)])
def test_a_scan_on_the_gpu(classes, rows):
    command = [sys.executable, "-m", "tests.nn.scanned", "cuda", str(classes), str(rows)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["same"], done.stderr[-3000:]
