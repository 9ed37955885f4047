"""Microseconds of every kernel of `accel.rssm_scan` for several launch settings, on a GPU.

    python benchmarks/scan_kernels.py [--size 12m] [--settings 128,4,3 256,8,3] [--write]

Settings are built side by side, each in a process of its own, and timed one after the other.
Prints the fastest settings of each kernel; `--write` puts them into `TUNING` of accel/rssm_scan.py.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import torch

from dreamlab.accel import rssm_scan as scan
from dreamlab.components.world_models.rssm import RSSM, Latent
from dreamlab.core.config import load
from dreamlab.workflows.dreamer_v3 import DreamerV3Config

SETTINGS = [*product((128, 256, 512), (2, 4, 8), (3,)), (256, 4, 1), (512, 4, 1), (512, 8, 1)]
"""Columns read at once, warps, loads ahead."""
Settings = Sequence[tuple[int, ...]]


def once(rssm: RSSM, rows: int, steps: int, device: str) -> None:
    """Follow random sequences and go back."""
    start = rssm.initial(rows, device)
    action = torch.randn(rows, steps, 6, device=device)
    tokens = torch.randn(rows, steps, 256, device=device, requires_grad=True)
    first = torch.rand(rows, steps, device=device) < 0.1
    with torch.autocast(device, torch.bfloat16):
        latent, logits = rssm.observe(Latent(*start), action, tokens, first)
        loss = latent.deter.float().square().mean() + latent.stoch.sum() + logits.float().mean()
    loss.backward()


def measure(size: str, device: str, setting: scan.Tuning) -> dict[str, float]:
    """Return the microseconds of each kernel, timed when a line comes in."""
    scan.TUNING.update(dict.fromkeys(scan.TUNING, setting))
    config = load(DreamerV3Config, {"size": size}, "workflow").rssm.config
    torch.manual_seed(0)
    rssm = RSSM(config, 256, 6).to(device)
    once(rssm, 16, 2, device)
    print("ready", flush=True)
    input()
    with torch.profiler.profile() as prof:
        once(rssm, 16, 16, device)
        if device == "cuda":
            torch.cuda.synchronize()
    rows = [r for r in prof.key_averages() if r.self_device_time_total]
    times = {r.key.removesuffix("_kernel"): r.self_device_time_total / r.count for r in rows}
    return {k: v for k, v in times.items() if k in scan.TUNING}


def measure_all(size: str, device: str, settings: Settings) -> dict[str, dict[scan.Tuning, float]]:
    """Return the times of each kernel by setting; settings that cannot be built are left out."""
    started: list[tuple[scan.Tuning, subprocess.Popen[str]]] = []
    for setting in settings:
        words = [sys.executable, __file__, "--size", size, "--device", device, "--one"]
        child = subprocess.Popen(
            [*words, *map(str, setting)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append((scan.Tuning(*setting), child))
    for _, child in started:
        assert child.stdout is not None
        child.stdout.readline()
    found: dict[str, dict[scan.Tuning, float]] = {k: {} for k in scan.TUNING}
    for setting, child in started:
        said, error = child.communicate("\n")
        if child.returncode:  # too much shared memory, for example
            print(tuple(setting), error.splitlines()[-1:])
            continue
        for name, time in json.loads(said.splitlines()[-1]).items():
            found[name][setting] = time
    return found


def write(found: dict[str, dict[scan.Tuning, float]]) -> None:
    """Put the fastest settings into the program."""
    path = Path(str(scan.__file__))
    text = path.read_text()
    for name, times in found.items():
        best = min(times, key=lambda s: times[s])
        text = re.sub(rf'"{name}": Tuning\(.*?\)', f'"{name}": Tuning{tuple(best)}', text)
    path.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="12m")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--settings", nargs="*", default=[], help="columns,warps,stages ...")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--one", nargs=3, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.size, options.device, scan.Tuning(*options.one))))
        return
    given = [tuple(map(int, s.split(","))) for s in options.settings]
    found = measure_all(options.size, options.device, given or SETTINGS)
    for name, times in found.items():
        best = sorted(times, key=lambda s: times[s])[:4]
        print(name, *(f"{tuple(s)}: {times[s]:.2f}" for s in best), sep="  ")
    print("sum of the fastest", sum(min(t.values()) for t in found.values() if t))
    if options.write:
        write(found)


if __name__ == "__main__":
    main()
