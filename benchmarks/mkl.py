"""What AVX-512 in MKL gives on an AMD processor: matrix products, and training of experiments.

    python benchmarks/mkl.py [--rounds 3] [--only sac_pendulum] [--record]

Each figure is that of a process of its own, with and without (DREAMLAB_MKL_AVX512=0) in turn, and
is the median of the rounds. On other processors both are the same. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dreamlab.accel.before_torch import SWITCH, prepare

EXPERIMENTS = {
    "ppo_cartpole": (20_000, 100_000),
    "dqn_cartpole": (3_000, 20_000),
    "sac_pendulum": (500, 2_000),
    "dreamer_pendulum": (400, 500),
    "tdmpc2_pendulum": (1_200, 400),
}
"""Env frames before and in the timed part."""
SIZES = ((1, 256, 256), (64, 4, 256), (64, 256, 256), (256, 256, 256), (1024, 1024, 1024))
RESULT = Path(__file__).parent / "results" / "mkl.md"


def products() -> dict[str, float]:
    """Return microseconds of a product, and of the gradient of its weights, on one thread."""
    import torch

    torch.set_num_threads(1)
    out: dict[str, float] = {}
    for rows, into, outof in SIZES:
        x, w, g = torch.randn(rows, into), torch.randn(into, outof), torch.randn(rows, outof)
        name = f"{rows} x {into} x {outof}"
        out[name] = _fastest(lambda x=x, w=w: x @ w)
        out[f"{name}, gradient of the weights"] = _fastest(lambda x=x, g=g: x.t() @ g)
    return out


def _fastest(run: Any) -> float:
    """Return microseconds per call in the fastest of several rounds."""
    began = time.perf_counter()
    run()
    calls = max(3, int(0.02 / max(time.perf_counter() - began, 1e-6)))
    times: list[float] = []
    for _ in range(10):
        began = time.perf_counter()
        for _ in range(calls):
            run()
        times.append((time.perf_counter() - began) / calls * 1e6)
    return min(times)


def training(experiment: str) -> dict[str, float]:
    """Return env frames per second of training, without evaluations and the start."""
    from dreamlab.cli import main

    before, timed = EXPERIMENTS[experiment]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        options = [
            experiment, f"run.dir={folder}", "log.terminal=off", "device=cpu", "seed=1",
            "eval.every_frames=0", "checkpoint.every_frames=0", "checkpoint.every_s=0",
            "log.every_frames=100", f"training.total_frames={before + timed}",
        ]  # fmt: skip
        if code := main(["train", *options]):
            raise SystemExit(code)
        lines = (folder / "metrics.jsonl").read_text().splitlines()
    records = [r for r in map(json.loads, lines) if "time/wall_s" in r]
    first = next(r for r in records if r["env_frames"] >= before)
    frames = records[-1]["env_frames"] - first["env_frames"]
    return {experiment: frames / (records[-1]["time/wall_s"] - first["time/wall_s"])}


def measured(name: str, rounds: int) -> dict[str, tuple[float, float]]:
    """Return figures without and with AVX-512, each measured in fresh processes."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for _ in range(rounds):
        for i, switch in enumerate(("0", "1")):
            line = [sys.executable, __file__, "--one", name]
            done = subprocess.run(
                line, env={**os.environ, SWITCH: switch}, capture_output=True, text=True, check=True
            )
            for key, value in json.loads(done.stdout.strip().splitlines()[-1]).items():
                found.setdefault(key, ([], []))[i].append(value)
    return {k: (statistics.median(a), statistics.median(b)) for k, (a, b) in found.items()}


def table(times: dict[str, tuple[float, float]], speeds: dict[str, tuple[float, float]]) -> str:
    lines = ["| product, one thread, us | AVX2 | AVX-512 | times |", "|---|---|---|---|"]
    lines += [f"| {k} | {a:.1f} | {b:.1f} | {a / b:.2f} |" for k, (a, b) in times.items()]
    lines += ["", "| training, env frames/s | AVX2 | AVX-512 | times |", "|---|---|---|---|"]
    lines += [f"| {k} | {a:,.0f} | {b:,.0f} | {b / a:.2f} |" for k, (a, b) in speeds.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=list(EXPERIMENTS), default=list(EXPERIMENTS))
    parser.add_argument("--record", action="store_true", help="write benchmarks/results")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    prepare()
    if options.one:
        one = products() if options.one == "products" else training(options.one)
        print(json.dumps(one))
        return
    speeds: dict[str, tuple[float, float]] = {}
    for name in options.only:
        speeds |= measured(name, options.rounds)
    text = table(measured("products", 1), speeds)
    print(text)
    if options.record:
        from dreamlab.runs.run import git_state, hardware

        place = f"{hardware()['cpu']}, {hardware()['cpus']} cores"
        about = (
            f"# AVX-512 in MKL on an AMD processor\n\n"
            f"`python benchmarks/mkl.py --rounds {options.rounds} --only {' '.join(options.only)} "
            f"--record`, commit "
            f"{git_state().get('commit', '?')[:10]}, {place}, uncompiled.\nAVX2 is what MKL takes "
            f"by itself ([why](../../docs/decisions/015-mkl-on-amd.md)).\n\n"
        )
        RESULT.write_text(about + text)


if __name__ == "__main__":
    main()
