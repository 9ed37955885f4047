"""Run by test_built.py: build every Triton kernel for a GPU that is not there.

The interpreter shows what kernels compute; this shows that they can be built, and whether a
multiprocessor has room for them. Nothing is launched: a driver that does nothing stands in.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget

from dreamlab.components.representation.rssm import RSSM, Latent, RSSMConfig
from dreamlab.core import ways
from dreamlab.core.fused_laprop import FusedLaProp, Layout
from dreamlab.core.optim import OptimConfig, Optimizer
from dreamlab.ops.returns import lambda_return

SHARED = 227 * 1024
"""Bytes of shared memory that a kernel may have on an H100 or H200."""


class Nowhere:
    """A driver for one GPU of compute capability 9.0 that takes kernels and runs none."""

    def __init__(self) -> None:
        self.utils, self.launcher_cls = self, lambda src, meta: lambda *args: None
        self.shared: dict[str, int] = {}

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": SHARED, "multiprocessor_count": 132, "warpSize": 32}

    def load_binary(
        self, name: str, binary: bytes, shared: int, device: int
    ) -> tuple[None, int, int, int, int]:
        self.shared[name] = max(shared, self.shared.get(name, 0))
        return None, 1, 32, 0, 1024


def scan(dtype: torch.dtype, rows: int, **sizes: int) -> None:
    """Follow sequences there and back, as far as launching goes."""
    config = RSSMConfig(**sizes)
    rssm = RSSM(config, token_dim=64, action_dim=6)
    start, t = rssm.initial(rows, "cpu"), 2
    tokens = torch.zeros(rows, t, 64, requires_grad=True)
    first, noise = torch.zeros(rows, t, dtype=torch.bool), rssm.noise(t, rows, device="cpu")
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        start = Latent(start.deter.to(dtype), start.stoch.to(dtype))
        latent, logits = rssm._scan(start, torch.zeros(rows, t, 6), tokens, first, noise)
    total = latent.deter.float().nansum() + latent.stoch.float().nansum() + logits.float().nansum()
    total.backward()


def others() -> None:
    """The optimizer's kernels and the one of returns."""
    config = OptimConfig("laprop", 1e-2, 1e-20, agc=0.3, warmup=3)
    params = [torch.nn.Parameter(torch.zeros(s)) for s in ((70, 130), (130,))]
    opt = Optimizer(config, params)
    inner = FusedLaProp(config, params, Layout(params[:1], params[1:]))
    opt.inner, opt.fused = inner, inner.step_from
    opt.step(sum(p.sum() for p in params))
    zeros = torch.zeros(16, 64)
    for lam in (0.95, zeros):
        lambda_return(zeros, zeros, zeros, lam)


def main() -> None:
    driver: Any = Nowhere()
    triton.runtime.driver.set_active(driver)
    ways.INTERPRETED = True  # take the GPU's way on tensors of the CPU
    big = {"deter": 2048, "hidden": 256, "stoch": 32, "classes": 16, "blocks": 8}
    for dtype in (torch.bfloat16, torch.float32):
        scan(dtype, 16, **big)
    scan(torch.bfloat16, 20, deter=512, hidden=64, stoch=32, classes=4, blocks=8)  # 1m
    scan(torch.bfloat16, 16, deter=8192, hidden=1024, stoch=32, classes=64, blocks=8)  # 200m
    others()
    for name, size in sorted(driver.shared.items()):
        print(f"{name:24} {size:8,d} bytes shared")
    assert max(driver.shared.values()) <= SHARED
    print(len(driver.shared), "kernels")
    print("same")


if __name__ == "__main__":
    sys.exit(main())
