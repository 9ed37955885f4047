"""How much GPU memory a job needs, from a few seconds of it."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from dreamlab.core.errors import LabError
from dreamlab.core.files import write_json
from dreamlab.core.readers import MissingFileError, is_number, read_json
from dreamlab.engine.plan import GPU_ROW
from dreamlab.sweeps.job import Job, program

FILE = "gpu_memory.json"
ERROR_LINES = 5
LEAST_GIB = 0.001  # of a job that is to stay on the CPU among others


def measured_gib(jobs: Sequence[Job], gpu: str, folder: Path, say: Callable[[str], None]) -> float:
    """Return the GPU memory of the job that needs most; what is known is kept in the folder."""
    known = _known(folder)
    for job in {_kind(j): j for j in jobs}.values():
        if _kind(job) not in known:
            say(f"measuring the GPU memory of {job.name} on GPU {gpu} ({job.label})")
            known[_kind(job)] = _measure(job, gpu)
            write_json(folder / FILE, known)
    return max(known[_kind(j)] for j in jobs)


def read_gib(text: str) -> float:
    """Return the GPU memory in what `dreamlab plan` prints; of a job on a CPU next to none."""
    found = re.search(rf"^{GPU_ROW} +([\d.]+) GiB", text, re.MULTILINE)
    return float(found[1]) if found else LEAST_GIB


def _kind(job: Job) -> str:
    """Return what is the same for all seeds of the same options."""
    return job.name.partition("_")[0]


def _known(folder: Path) -> dict[str, float]:
    """Return what was measured before, without what cannot be divided by."""
    try:
        node = read_json(folder / FILE)
    except MissingFileError:
        return {}
    return {k: float(v) for k, v in node.items() if is_number(v) and v > 0}


def _measure(job: Job, gpu: str) -> float:
    done = subprocess.run(
        [*program(), "plan", *job.overrides], cwd=job.cwd, capture_output=True, text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": gpu}, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    if done.returncode:
        last = done.stderr.strip().splitlines()[-ERROR_LINES:]
        raise LabError(
            f"the GPU memory of {job.name} cannot be measured; set it, e.g. "
            f"limits.gpu_memory_gib=8. `dreamlab plan` ended with\n" + "\n".join(last)
        )
    return read_gib(done.stdout)
