"""Microseconds of every kernel of `accel.rssm_scan` for several launch settings, on a GPU.

    python benchmarks/scan_kernels.py [--size 12m] [--write]

Prints the fastest settings of each kernel; `--write` puts them into `TUNING` of accel/rssm_scan.py.
"""

from __future__ import annotations

import argparse
import re
from itertools import product
from pathlib import Path

import torch

from dreamlab.accel import rssm_scan as scan
from dreamlab.components.world_models.rssm import RSSM, Latent
from dreamlab.core.config import load
from dreamlab.workflows.dreamer_v3 import DreamerV3Config


def once(rssm: RSSM, rows: int, steps: int) -> None:
    """Follow random sequences and go back."""
    start = rssm.initial(rows, "cuda")
    action = torch.randn(rows, steps, 6, device="cuda")
    tokens = torch.randn(rows, steps, 256, device="cuda", requires_grad=True)
    first = torch.rand(rows, steps, device="cuda") < 0.1
    with torch.autocast("cuda", torch.bfloat16):
        latent, logits = rssm.observe(Latent(*start), action, tokens, first)
        loss = latent.deter.float().square().mean() + latent.stoch.sum() + logits.float().mean()
    loss.backward()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="12m")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    config = load(DreamerV3Config, {"size": options.size}, "workflow").rssm.config
    torch.manual_seed(0)
    rssm = RSSM(config, 256, 6).cuda()
    found: dict[str, dict[scan.Tuning, float]] = {k: {} for k in scan.TUNING}
    for setting in (scan.Tuning(*s) for s in product((128, 256, 512), (4, 8), (3,))):
        scan.TUNING.update(dict.fromkeys(scan.TUNING, setting))
        try:
            once(rssm, 16, 2)
            with torch.profiler.profile() as prof:
                once(rssm, 16, 16)
                torch.cuda.synchronize()
        except Exception as error:  # too much shared memory, for example
            print(setting, type(error).__name__)
            continue
        for row in prof.key_averages():
            name = row.key.removesuffix("_kernel")
            if name in found and row.self_device_time_total:
                found[name][setting] = row.self_device_time_total / row.count
    for name, times in found.items():
        best = sorted(times, key=lambda s: times[s])[:3]
        print(name, *(f"{tuple(s)}: {times[s]:.2f}" for s in best), sep="  ")
    if options.write:
        path = Path(str(scan.__file__))
        text = path.read_text()
        for name, times in found.items():
            best = min(times, key=lambda s: times[s])
            text = re.sub(rf'"{name}": Tuning\(.*?\)', f'"{name}": Tuning{tuple(best)}', text)
        path.write_text(text)


if __name__ == "__main__":
    main()
