"""Run by test_compile.py: means over bins, compiled with products and sums joined into one."""

from __future__ import annotations

import sys

import torch
import torch._inductor.config as inductor

from dreamlab.ops.scaling import symexp_bins, symmetric_mean


def main(device: str) -> None:
    """A symmetric distribution over symmetric bins has mean 0, whatever is rounded when."""
    inductor.cpp.enable_floating_point_contract_flag = "fast"  # as compilers for GPUs do
    compiled = torch.compile(symmetric_mean, fullgraph=True, dynamic=False)
    torch.manual_seed(0)
    bins = symexp_bins(255).to(device)
    half = 1e-5 * torch.rand(40, 127)  # after a few updates far bins are still alike, near ones not
    bent = torch.cat([half, torch.zeros(40, 1), half.flip(-1)], -1)
    for logits in (torch.zeros(40, 255), bent):
        mean = compiled(logits.to(device), bins)
        assert not mean.any(), float(mean.abs().max())
    lopsided = bent + 1e-3 * torch.randn(40, 255)
    wanted = (torch.softmax(lopsided.double(), -1) * bins.cpu().double()).sum(-1)
    torch.testing.assert_close(
        compiled(lopsided.to(device), bins).cpu().double(), wanted, rtol=1e-3, atol=1.0
    )
    print("same")


if __name__ == "__main__":
    main(sys.argv[1])
