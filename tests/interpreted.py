"""Run a script of the tests in a process whose Triton kernels are interpreted on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TRITON = Path(sys.prefix) / "triton"
"""Where `make test` puts Triton: apart, because its library and others' do not share a process."""


def run(module: str, *args: object, interpreted: bool = True) -> None:
    """Raise unless the script ends by printing `same`."""
    env = dict(os.environ)
    if interpreted:
        assert TRITON.is_dir(), f"install it: pip install --no-deps --target {TRITON} triton==3.6.0"
        paths = [str(TRITON), *filter(None, [env.get("PYTHONPATH")])]
        env |= {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", module, *map(str, args)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["same"], done.stdout[-500:] + done.stderr[-3000:]
