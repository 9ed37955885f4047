"""Run by test_latent_plans.py: build the kernels of a decision for a GPU that is not there."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton

import tests.conftest  # noqa: F401 (checks shapes as every test does: kernels must stand it)
from dreamlab.accel import dispatch, plan_ops
from dreamlab.accel.plan_ops import FEW
from dreamlab.core.config import load
from dreamlab.core.types import ArraySpec, Mode, Spec
from dreamlab.workflows.tdmpc2 import TDMPC2, TDMPC2Config
from tests.accel.nowhere import SHARED, Nowhere

WHOLE = ("layer", "act", "value_first", "value_hidden", "value_out")
LAYERS = ("layer", "begin", "act")
VALUES = {"tell_kernel", *(f"plan_value_{name}_kernel" for name in ("first", "hidden", "out"))}
KERNELS = {
    "tiles": VALUES | {f"plan_{name}_kernel" for name in LAYERS},
    "rows": VALUES | {f"row_{name}_kernel" for name in LAYERS},
    "whole": {"tell_kernel", *(f"whole_{x}_kernel" for x in WHOLE)},
}
"""By how layers are computed."""


class Measured(Nowhere):
    """Knows also how many registers a thread needs, and how many bytes have no room in them."""

    def __init__(self) -> None:
        super().__init__()
        self.registers: dict[str, int] = {}
        self.spilled: dict[str, int] = {}

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> Any:
        program = Path(triton.__path__[0]) / "backends/nvidia/bin/cuobjdump"
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(binary)
            file.flush()
            words = [program, "-res-usage", file.name]
            said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        found = re.search(r"REG:(\d+) STACK:(\d+)", said)
        assert found is not None, said
        for store, amount in ((self.registers, found[1]), (self.spilled, found[2])):
            store[name] = max(int(amount), store.get(name, 0))
        return super().load_binary(name, binary, shared, device)


def main(size: str, envs: str, few: str) -> None:
    driver: Any = Measured()
    plan_ops.CHOSEN["few"] = few
    triton.runtime.driver.set_active(driver)
    dispatch.INTERPRETED = True  # take the GPU's way on tensors of the CPU
    spec = Spec({"state": ArraySpec((24,))}, ArraySpec((6,), low=-1.0, high=1.0), 500)
    options = {"size": size, "planner": {"iterations": 1}}
    agent = TDMPC2(load(TDMPC2Config, options, "workflow"), spec)
    num = int(envs)
    obs, first = {"state": torch.zeros(num, 24)}, torch.ones(num, dtype=torch.bool)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        agent.decide(obs, first, agent.initial_state(num), Mode.TRAIN)
    for name, shared in sorted(driver.shared.items()):
        print(f"{name:26} {shared:8,d} bytes shared, {driver.registers[name]} registers")
    many = num * agent.sizes.planner.samples > FEW
    needed = KERNELS[plan_ops.CHOSEN["many"] if many else few]
    assert needed <= driver.shared.keys() <= needed | KERNELS[few] | {"plan_begin_kernel"}
    assert max(driver.shared.values()) <= SHARED
    assert not any(driver.spilled.values()), driver.spilled
    print("same")


if __name__ == "__main__":
    main(*sys.argv[1:])
