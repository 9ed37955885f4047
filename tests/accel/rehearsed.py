"""Run by test_ahead.py: whatever an update launches was built by the rehearsal before it.

Kernels are built for a GPU that is not there, and launches do nothing.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
import triton
from triton.runtime.jit import JITFunction

from dreamlab.accel import ahead
from dreamlab.accel.bf16_weights import Bf16Weights
from dreamlab.accel.cuda_graphs import lay_out
from dreamlab.core.config import load
from dreamlab.core.types import ArraySpec, Batch, Spec
from dreamlab.workflows.dreamer_v3 import DreamerV3, DreamerV3Config
from tests.accel import gpu_form
from tests.accel.nowhere import Nowhere

ROWS, STEPS = 16, 4
WANTED = {
    "dream_prior_kernel", "dream_policy_kernel", "hidden_kernel", "inputs_back_kernel",
    "layer_kernel", "limit_kernel", "recurrence_kernel", "step_kernel",
}  # fmt: skip


def batch_of(agent: DreamerV3) -> Batch:
    """Return windows of zeros."""
    shape, spec, config = (ROWS, STEPS + 1), agent.spec, agent.model.rssm.config
    obs = {k: torch.zeros(*shape, *s.shape) for k, s in spec.obs.items()}
    kind = torch.int64 if spec.action.classes else torch.float32
    action = torch.zeros(*shape, *spec.action.shape, dtype=kind)
    no = torch.zeros(shape, dtype=torch.bool)
    extras = {
        "deter": torch.zeros(*shape, config.deter, dtype=torch.bfloat16),
        "stoch": torch.zeros(*shape, config.stoch, dtype=torch.uint8),
    }
    return Batch(obs, action, torch.zeros(shape), no, no, no, extras)


def counted() -> list[str]:
    """Return a list that will name every kernel that is compiled."""
    found: list[str] = []
    compile_kernel = JITFunction._do_compile

    def noted(kernel: Any, *args: Any) -> Any:
        found.append(kernel.fn.__name__)
        return compile_kernel(kernel, *args)

    JITFunction._do_compile = noted
    return found


def main(actions: str) -> None:
    driver: Any = Nowhere()
    triton.runtime.driver.set_active(driver)
    compiled = counted()
    classes = {"action": ArraySpec((), "int64", classes=6)}
    numbers = {"action": ArraySpec((6,), low=-1.0, high=1.0)}
    spec = Spec({"state": ArraySpec((4,))}, **(classes if actions == "classes" else numbers))
    with pytest.MonkeyPatch.context() as patch:
        gpu_form.take(patch, launching=True)
        agent = DreamerV3(load(DreamerV3Config, {"size": "1m", "imagine": 3}, "workflow"), spec)
        layout, batch = lay_out(agent, bf16=True), batch_of(agent)
        weights = Bf16Weights(agent, layout)
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False), weights.swapped_in():
            with ahead.rehearsal(), torch.no_grad():
                agent.rehearse(batch)
            ahead.finish()
            built = list(compiled)
            agent.update(batch)
    assert set(built) >= WANTED, WANTED - set(built)
    assert compiled == built, compiled[len(built) :]
    print("same")


if __name__ == "__main__":
    main(*sys.argv[1:])
