"""Run by test_compile.py: means over bins, compiled with products and sums joined into one."""

from __future__ import annotations

import torch
import torch._inductor.config as inductor

from dreamlab.ops.scaling import symexp_bins, symmetric_mean


def main() -> None:
    """A uniform distribution over symmetric bins has mean 0, whatever is rounded when."""
    inductor.cpp.enable_floating_point_contract_flag = "fast"  # as compilers for GPUs do
    compiled = torch.compile(symmetric_mean, fullgraph=True, dynamic=False)
    bins = symexp_bins(255)
    mean = compiled(torch.softmax(torch.zeros(40, len(bins)), -1), bins)
    assert not mean.any(), float(mean.abs().max())
    print("same")


if __name__ == "__main__":
    main()
