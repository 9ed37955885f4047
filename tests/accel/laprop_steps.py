"""Run by test_fused_laprop.py: the kernels against the optimizer as it is written."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

from dreamlab.accel.fused_laprop import FusedLaProp, Layout
from dreamlab.core.optim import LaPropConfig, Optimizer, optimizer_part

SHAPES = ((70, 130), (130,), (5,), (90, 100), (3,))
OPTIONS: list[dict[str, Any]] = [
    {"agc": 0.3, "warmup_steps": 3},
    {"clip": 20.0},
    {"clip": 20.0, "agc": 0.3, "weight_decay": 0.1, "ema": 0.5},
    {"schedule": {"_target_": "cosine", "steps": 4, "final": 0.1}},
]


def params(device: str) -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(*s).to(device)) for s in SHAPES]


def compare(device: str, options: dict[str, Any]) -> None:
    """Take five steps in both forms; the last parameter has no gradient, the third a tiny one."""
    config = optimizer_part("laprop", lr=1e-2, eps=1e-20, **options)
    a, b = params(device), params(device)
    plain, fused = Optimizer(config, a), Optimizer(config, b)
    assert isinstance(fused.config, LaPropConfig)
    inner = FusedLaProp(fused.config, b, Layout([b[0], b[3]], [b[1], b[2], b[4]]))
    fused.inner, fused.fused = inner, inner.step_from
    for step in range(5):
        torch.manual_seed(step)
        sizes = (1.0, 10.0, 1e-18, 1.0)
        pull = [torch.randn(s).to(device) * x for s, x in zip(SHAPES[:4], sizes, strict=True)]
        norms = [
            opt.step(sum((p * x).sum() for p, x in zip(ps, pull, strict=False)))
            for opt, ps in ((plain, a), (fused, b))
        ]
        torch.testing.assert_close(norms[1], norms[0])
        assert norms[0] > 100  # both limits matter
        if step == 2:  # a checkpoint of one is a checkpoint of the other
            fused.load_state_dict(plain.state_dict())
    for one, other in zip((*a, *plain.average), (*b, *fused.average), strict=True):
        torch.testing.assert_close(other, one, atol=1e-6, rtol=1e-6)
        assert one.grad_fn is None
    assert not torch.equal(a[0], params(device)[0])


def main(device: str) -> None:
    for options in OPTIONS:
        compare(device, options)
    print("same")


if __name__ == "__main__":
    main(sys.argv[1])
