"""A sweep whose jobs share the GPU, under MPS where it is installed."""

from __future__ import annotations

import json

import pytest

from dreamlab.cli import main
from dreamlab.sweeps.gpu_sharing import find_gpus, has_mps
from tests.sweeps.many import write_sweep

pytestmark = pytest.mark.gpu
DEVICE = "cuda"


def test_jobs_of_a_sweep_share_the_gpu(tmp_path, capfd):
    if DEVICE == "cuda":
        assert find_gpus()[0].free_gib > 1
    file = write_sweep(
        tmp_path, f"device={DEVICE}", seeds=[1, 2], parallel_jobs=2,
        limits={"cpus": 1, "gpu_memory_gib": 2},
    )  # fmt: skip
    assert main(["sweep", file]) == 0
    said = "".join(capfd.readouterr())
    folders = sorted(p.parent for p in tmp_path.glob("s/runs/*/manifest.json"))
    assert len(folders) == 2
    for folder in folders:
        about = json.loads((folder / "manifest.json").read_text())
        assert about["status"] == "finished"
    if DEVICE == "cuda":
        assert "2 jobs on GPU" in said
        assert ("; MPS on" if has_mps() else "; no MPS") in said
