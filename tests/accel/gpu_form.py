"""The form that a GPU computes, on tensors of the CPU: kernels are launched and do nothing."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import torch

from dreamlab.accel import ahead, dispatch

PLANS = ("latent_plans", "plan_rows", "plan_whole", "mppi")
MODULES = ("rssm_scan", "rssm_weights", "dream", "fused_laprop", "recurrence", *PLANS)


class Idle:
    """Kernels that are launched and do nothing."""

    def __init__(self, launched: set[str]) -> None:
        self.launched = launched

    def __getattr__(self, name: str) -> Any:
        return defaultdict(lambda: lambda *args, **kwargs: self.launched.add(name))


class Filled:
    """torch, but memory that a kernel would have filled holds zeros."""

    empty, empty_like = staticmethod(torch.zeros), staticmethod(torch.zeros_like)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def take(patch: pytest.MonkeyPatch, launching: bool = False) -> set[str]:
    """Take the GPU's form from now on; return the names of the kernels launched.

    `launching` launches them with Triton's present driver.
    """
    launched: set[str] = set()
    for module in MODULES:
        patch.setattr(f"dreamlab.accel.{module}.torch", Filled())
        if not launching:
            patch.setattr(f"dreamlab.accel.{module}.kernels", lambda name: Idle(launched))
    patch.setattr(ahead, "BUILDS", launching)
    patch.setattr(dispatch, "INTERPRETED", True)
    patch.setattr(dispatch, "HAS_TRITON", True)
    return launched
