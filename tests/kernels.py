"""Run a script of the tests in a process of its own: what Triton does is chosen at its import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parents[1]
TRITON = Path(sys.prefix) / "triton"
"""Where `make test` puts Triton: apart, because its library and others' do not share a process."""


def run(module: str, *args: object, way: Literal["interpreted", "built", "gpu"]) -> None:
    """Raise unless the script ends by printing `same`.

    Kernels are interpreted on the CPU, or built with the compiler of a GPU that need not be there,
    or run on a GPU with the Triton that came with torch.
    """
    env = dict(os.environ)
    if way != "gpu":
        assert TRITON.is_dir(), f"install it: pip install --no-deps --target {TRITON} triton==3.6.0"
        paths = [str(TRITON), *filter(None, [env.get("PYTHONPATH")])]
        env |= {"PYTHONPATH": os.pathsep.join(paths)}
    if way == "interpreted":
        env |= {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", module, *map(str, args)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["same"], done.stdout[-500:] + done.stderr[-3000:]
