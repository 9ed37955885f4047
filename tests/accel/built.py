"""Run by test_rssm_scan.py: build every Triton kernel for a GPU that is not there.

The interpreter shows what kernels compute; this shows that they can be built, and whether a
multiprocessor has room for them. Nothing is launched: a driver that does nothing stands in.
"""

from __future__ import annotations

import sys
import threading
from functools import partial
from typing import Any

import torch
import triton
from triton.runtime.jit import JITFunction

import tests.conftest  # noqa: F401 (checks shapes as every test does: kernels must stand it)
from dreamlab.accel import dispatch, dream
from dreamlab.accel.fused_laprop import FusedLaProp, Layout
from dreamlab.components.heads import LatentPolicy, PolicyConfig
from dreamlab.components.world_models import dreaming
from dreamlab.components.world_models.rssm import RSSM, Latent, RSSMConfig
from dreamlab.components.world_models.world_model import WorldModel, WorldModelConfig
from dreamlab.core.config import load
from dreamlab.core.optim import LaPropConfig, Optimizer
from dreamlab.core.types import ArraySpec, Spec
from dreamlab.ops.returns import lambda_return
from tests.accel.nowhere import SHARED, Nowhere

KERNELS, OF_DREAMS = 16, 6

SIZES = {
    "1m": {"deter": 512, "hidden": 64, "classes": 4},
    "12m": {"deter": 2048, "hidden": 256, "classes": 16},
    "200m": {"deter": 8192, "hidden": 1024, "classes": 64},
    "400m": {"deter": 12288, "hidden": 1536, "classes": 96},
}


def scan(size: str, dtype: torch.dtype, rows: int = 16, t: int = 2) -> None:
    """Follow sequences there and back, as far as launching goes."""
    rssm = RSSM(RSSMConfig(**SIZES[size], stoch=32, blocks=8), token_dim=64, action_dim=6)
    zero = rssm.initial(rows, "cpu")
    start = Latent(zero.deter.to(dtype), zero.stoch.to(dtype))
    action, tokens = torch.zeros(rows, t, 6), torch.zeros(rows, t, 64, requires_grad=True)
    first, noise = torch.zeros(rows, t, dtype=torch.bool), rssm.noise(t, rows, device="cpu")
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        latent, logits = rssm._scan(start, action, tokens, first, noise)
    sum(x.float().sum() for x in (*latent, logits)).backward()


def imagine(size: str, rows: int = 1024) -> int:
    """Dream one step in bfloat16, if this size is dreamt so; return how many kernels that takes."""
    options = {**SIZES[size], "stoch": 32, "blocks": 8}
    if options["hidden"] > dream.WIDEST:
        return 0
    small = {"rssm": options, "encoder": {"units": 8, "layers": 1}}
    action = ArraySpec((6,), low=-1.0, high=1.0)
    spec = Spec({"state": ArraySpec((4,))}, action)
    model = WorldModel(load(WorldModelConfig, small, "model"), spec)
    actor = LatentPolicy(PolicyConfig(units=options["hidden"]), model.rssm.out_dim, action)
    idle = lambda latent: latent.deter  # noqa: E731 (never called)
    choose = partial(dreaming.chosen, model, actor)
    dreamer = dreaming.Dreamer(model, actor, partial(model.advance, idle), choose)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        dreamer.dream(model.initial(rows, "cpu"), idle, 1)
    return OF_DREAMS


def others() -> None:
    """The optimizer's kernels and the one of returns."""
    config = LaPropConfig(lr=1e-2, eps=1e-20, agc=0.3, warmup_steps=3)
    params = [torch.nn.Parameter(torch.zeros(s)) for s in ((70, 130), (130,))]
    opt = Optimizer(config, params)
    inner = FusedLaProp(config, params, Layout(params[:1], params[1:]))
    opt.inner, opt.fused = inner, inner.step_from
    opt.step(sum(p.sum() for p in params))
    zeros = torch.zeros(16, 64)
    for lam in (0.95, zeros):
        lambda_return(zeros, zeros, zeros, lam)


def compiled_at_launch() -> set[str]:
    """Return a set that will name the kernels that the main thread compiles, and so waits for."""
    found: set[str] = set()
    compile_kernel = JITFunction._do_compile

    def counted(kernel: Any, *args: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            found.add(kernel.fn.__name__)
        return compile_kernel(kernel, *args)

    JITFunction._do_compile = counted
    return found


def main(size: str, dtype: str) -> None:
    driver: Any = Nowhere()
    late = compiled_at_launch()
    triton.runtime.driver.set_active(driver)
    dispatch.INTERPRETED = True  # take the GPU's way on tensors of the CPU
    scan(size, getattr(torch, dtype))
    others()
    wanted = KERNELS + (imagine(size) if dtype == "bfloat16" else 0)
    for name, shared in sorted(driver.shared.items()):
        print(f"{name:24} {shared:8,d} bytes shared")
    assert len(driver.shared) == wanted, sorted(driver.shared)
    assert max(driver.shared.values()) <= SHARED
    assert not late, late  # all were built before, side by side
    print("same")


if __name__ == "__main__":
    main(*sys.argv[1:])
