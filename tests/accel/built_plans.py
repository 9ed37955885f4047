"""Run by test_latent_plans.py: build the kernels of a decision for a GPU that is not there."""

from __future__ import annotations

import sys
from typing import Any

import torch
import triton

import tests.conftest  # noqa: F401 (checks shapes as every test does: kernels must stand it)
from dreamlab.accel import dispatch
from dreamlab.core.config import load
from dreamlab.core.types import ArraySpec, Mode, Spec
from dreamlab.workflows.tdmpc2 import TDMPC2, TDMPC2Config
from tests.accel.nowhere import SHARED, Nowhere

KERNELS = {"roll_kernel", "value_kernel", "tell_kernel"}


def main(size: str, envs: str) -> None:
    driver: Any = Nowhere()
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
        print(f"{name:24} {shared:8,d} bytes shared")
    assert set(driver.shared) == KERNELS
    assert max(driver.shared.values()) <= SHARED
    print("same")


if __name__ == "__main__":
    main(*sys.argv[1:])
