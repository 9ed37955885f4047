"""Microseconds of the kernels of `accel.latent_plans` and `accel.mppi`, by launch settings.

    python benchmarks/plan_kernels.py --check [--envs 1 16]
    python benchmarks/plan_kernels.py [--size 5m] [--only layer value_out] [--write]
    python benchmarks/plan_kernels.py --parts [--envs 1 16]

Settings are built side by side, in as many processes as there are cores, compared with plain torch,
and timed one after the other, each launched repeatedly in a CUDA graph: for the policy's plans of
one environment (tiny), and for 512 plans of one (few) or 16 environments (many), of 3 steps each.
Prints the fastest settings of each kernel; `--write` puts them into `TUNING`. `--parts` are the
microseconds of the parts of a decision with the current settings. `--check` compares these parts
with the networks one by one: the kernels' rounding errors must be those of the same precision.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from plan_parts import Pairs, Parts, Role, agent_of, bench_of

from dreamlab.accel import latent_plans as accel
from dreamlab.accel import mppi
from dreamlab.accel.dispatch import reference_kernels

Setting = tuple[int, ...]
TINY: list[Setting] = [
    *product((16,), (16, 32, 64), (128, 256), (4,), (5,)),
    (32, 32, 128, 4, 5),
    (32, 16, 128, 4, 5),
    (16, 32, 128, 2, 5),
    (16, 32, 128, 8, 5),
    (16, 16, 64, 4, 9),
]
FEW: list[Setting] = [
    (16, 128, 128, 4, 5),
    (16, 128, 128, 8, 5),
    (16, 128, 64, 4, 6),
    (32, 64, 128, 4, 5),
    (32, 64, 64, 4, 6),
    (32, 64, 256, 4, 3),
    (32, 64, 128, 8, 5),
    (16, 64, 128, 4, 5),
    (32, 128, 128, 4, 4),
    (64, 32, 128, 4, 5),
    (64, 64, 128, 4, 5),
    (64, 64, 64, 4, 6),
]
MIDDLE: list[Setting] = [
    (64, 128, 64, 4, 4),
    (32, 256, 64, 4, 3),
    (32, 256, 64, 8, 3),
    (64, 64, 64, 4, 5),
    (64, 64, 128, 4, 4),
    (64, 256, 64, 4, 3),
    (128, 128, 64, 8, 4),
    (32, 128, 128, 4, 4),
    (32, 128, 64, 4, 4),
    (64, 128, 128, 4, 3),
    (64, 128, 64, 8, 4),
]
MANY: list[Setting] = [
    (128, 256, 64, 8, 3),
    (128, 256, 64, 8, 4),
    (128, 256, 32, 8, 5),
    (64, 256, 64, 4, 3),
    (64, 256, 64, 4, 2),
    (64, 256, 32, 4, 4),
    (64, 256, 64, 8, 3),
    (128, 128, 64, 8, 3),
    (64, 128, 64, 4, 3),
    (64, 128, 64, 4, 4),
    (128, 256, 128, 8, 2),
    (64, 512, 32, 8, 3),
]
WHOLE_FEW: list[Setting] = [
    *product((16,), (0,), (128,), (2, 4), (5,)),
    (16, 0, 64, 4, 6),
    (16, 0, 256, 4, 3),
    (16, 0, 128, 8, 5),
    (32, 0, 128, 4, 5),
]
WHOLE_MANY: list[Setting] = [
    *product((32, 64), (0,), (64, 128), (4,), (4,)),
    (128, 0, 64, 4, 4),
    (128, 0, 64, 8, 4),
    (64, 0, 128, 8, 3),
]
ROWS: list[Setting] = [
    (32, 64, 0, 8, 1),
    (32, 64, 0, 4, 1),
    (32, 32, 0, 4, 1),
    (32, 32, 0, 8, 1),
    (16, 64, 0, 4, 1),
    (16, 64, 0, 8, 1),
    (16, 128, 0, 8, 1),
    (64, 32, 0, 8, 1),
    (64, 64, 0, 8, 1),
]
BEGIN_ROWS = [
    (32, 64, 0, 8, 1),
    (32, 64, 0, 4, 1),
    (16, 64, 0, 4, 1),
    (16, 64, 0, 8, 1),
    (16, 128, 0, 8, 1),
]
ROWS_TINY: list[Setting] = [
    *product((16,), (16, 32, 64), (0,), (4, 8), (1,)),
    (16, 16, 0, 2, 1),
    (32, 16, 0, 8, 1),
]
ROWS_WHOLE: list[Setting] = [*product((16,), (0,), (0,), (2, 4, 8), (1,)), (32, 0, 0, 8, 1)]
WHOLE: list[Setting] = [
    (64, 0, 32, 8, 3),
    (64, 0, 32, 8, 4),
    (64, 0, 32, 8, 5),
    (64, 0, 64, 8, 2),
    (64, 0, 64, 8, 3),
    (128, 0, 32, 16, 4),
    (128, 0, 64, 16, 2),
    (32, 0, 64, 8, 3),
]
WHOLE_ACT: list[Setting] = [
    *product((32, 64), (0,), (128, 64), (4,), (3,)),
    (64, 0, 128, 4, 4),
    (16, 0, 128, 4, 4),
]
WHOLE_OUT: list[Setting] = [
    *product((64, 128), (0,), (64, 128), (4, 8), (3,)),
    (64, 0, 64, 4, 5),
    (128, 0, 64, 8, 4),
]
SETTINGS: dict[Role, list[Setting]] = {
    ("row_layer", "tiny"): ROWS_TINY,
    ("row_layer", "few"): ROWS,
    ("row_begin", "few"): BEGIN_ROWS,
    ("row_act", "tiny"): ROWS_WHOLE,
    ("row_act", "few"): ROWS_WHOLE,
    ("whole_layer", "many"): WHOLE,
    ("whole_begin", "many"): [*product((8, 16, 32), (0,), (32,), (4, 8), (1,)), (4, 0, 32, 4, 1)],
    ("whole_value_first", "many"): WHOLE,
    ("whole_value_hidden", "many"): WHOLE,
    ("whole_value_out", "many"): WHOLE_OUT,
    ("whole_act", "many"): WHOLE_ACT,
    ("layer", "tiny"): TINY,
    ("layer", "few"): FEW,
    ("layer", "many"): MANY,
    ("begin", "tiny"): TINY[:8],
    ("begin", "few"): FEW[:10],
    ("begin", "many"): MANY[:9],
    ("act", "tiny"): WHOLE_FEW,
    ("act", "few"): WHOLE_FEW,
    ("act", "many"): WHOLE_MANY,
    ("value_first", "few"): MIDDLE,
    ("value_first", "many"): MANY,
    ("value_hidden", "few"): MIDDLE,
    ("value_hidden", "many"): MANY,
    ("value_out", "few"): [*WHOLE_FEW, (64, 0, 64, 4, 4)],
    ("value_out", "many"): WHOLE_MANY,
    ("tell", ""): [(1,), (2,), (4,), (8,)],
}  # fmt: skip
"""A tile's rows and columns, numbers summed at once, warps, loads ahead; of a refit the warps."""
ENVS = {"tiny": 1, "few": 1, "many": 16, "": 1}
LAUNCHES, REPLAYS = 40, 7
ROUNDING = 0.02
"""Largest relative error of a kernel's numbers in bfloat16."""


def wrong(pairs: Pairs) -> str:
    """Say how a kernel differs from plain torch, or nothing."""
    for i, (found, wanted) in enumerate(pairs):
        error = float((found.float() - wanted).norm() / wanted.norm())
        if not error < ROUNDING:
            return f"output {i} has a relative error of {error:.3g}"
    return ""


def time_of(call: Callable[[], Any], device: str, launches: int = LAUNCHES) -> float:
    """Return the microseconds of a call among many."""
    if device != "cuda":
        return 0.0
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(launches):
            call()
    times: list[float] = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * start.elapsed_time(end) / launches)
    return sorted(times)[len(times) // 2]


def choose(role: Role, setting: Sequence[int]) -> None:
    """Use a setting from now on."""
    if role[0] == "tell":
        mppi.TUNING.update(warps=setting[0])
    else:
        accel.TUNING[role] = accel.Tuning(*setting)


def built(parts: dict[int, Parts], role: Role) -> tuple[Any, str]:
    """Build a kernel with the current settings; return a call and what is wrong with it."""
    kind, size = role
    part = parts[ENVS[size]]
    if kind == "tell":
        part.tell()
        return part.told(), ""
    bench = bench_of(part, role)
    return lambda: bench.run(kind), wrong(bench.pairs(kind))


@torch.no_grad()
def measure(options: argparse.Namespace) -> list[tuple[Role, Setting, float, str]]:
    """Build and check settings, then time them when a line comes in."""
    agent = agent_of(options.size, options.device)
    low = torch.bfloat16 if options.device == "cuda" else None
    with torch.autocast(options.device, low, enabled=low is not None):
        parts = {envs: Parts(agent, envs, options.device) for envs in set(ENVS.values())}
    before, ready = dict(accel.TUNING), list[tuple[Role, Setting, Any, str]]()
    for words, setting in json.loads(options.one):
        role = (words[0], words[1])
        accel.TUNING.update(before)
        choose(role, setting)
        try:
            ready.append((role, setting, *built(parts, role)))
        except Exception as error:
            ready.append((role, setting, None, str(error).splitlines()[0][:90]))
    print("ready", flush=True)
    input()
    rows: list[tuple[Role, Setting, float, str]] = []
    for role, setting, call, fault in ready:
        accel.TUNING.update(before)
        choose(role, setting)
        per = 0.5 if role[0] in ("layer", "row_layer", "whole_layer") else 1.0
        rows.append((role, setting, 0.0 if fault else per * time_of(call, options.device), fault))
    return rows


def now(role: Role) -> Setting:
    """Return the current setting."""
    return (mppi.TUNING["warps"],) if role[0] == "tell" else tuple(accel.TUNING[role])


def measure_all(options: argparse.Namespace) -> dict[Role, dict[Setting, float]]:
    """Return the time of each setting of each kernel, and print those that failed."""
    roles = [r for r in SETTINGS if not options.only or r[0] in options.only]
    work = [(r, s) for r in roles for s in dict.fromkeys([now(r), *SETTINGS[r]])]
    count = min(len(work), os.cpu_count() or 1, options.processes)
    words = [sys.executable, __file__, "--size", options.size, "--device", options.device, "--one"]
    started = [
        subprocess.Popen(
            [*words, json.dumps(work[i::count])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for i in range(count)
    ]  # fmt: skip
    for child in started:
        assert child.stdout is not None
        child.stdout.readline()
    found: dict[Role, dict[Setting, float]] = {role: {} for role in roles}
    for child in started:
        said, _ = child.communicate("\n")
        for role, setting, time, fault in json.loads(said.splitlines()[-1]) if said else ():
            if fault:
                print(*role, f"{tuple(setting)}: {fault}")
            else:
                found[role[0], role[1]][tuple(setting)] = time
    return found


def report(found: dict[Role, dict[Setting, float]]) -> None:
    """Print the fastest settings of each kernel beside the current one."""
    for role, times in found.items():
        best = sorted(times, key=lambda s: times[s])
        print(*role, *(f"{s}: {times[s]:.2f}" for s in best[:4]), sep="  ")
        print(f"    now {now(role)}: {times.get(now(role), float('nan')):.2f}")


def write(found: dict[Role, dict[Setting, float]]) -> None:
    """Put the fastest settings into the program."""
    paths = [Path(str(module.__file__)) for module in (accel, mppi)]
    texts = [path.read_text() for path in paths]
    for (kind, size), times in found.items():
        best = min(times, key=lambda s: times[s])
        if kind == "tell":
            texts[1] = re.sub(r'"warps": \d+', f'"warps": {best[0]}', texts[1])
        else:
            place = rf'\("{kind}", "{size}"\): Tuning\(.*?\)'
            texts[0] = re.sub(place, f'("{kind}", "{size}"): Tuning{best}', texts[0])
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)


@torch.no_grad()
def time_parts(options: argparse.Namespace) -> None:
    """Print the microseconds of a decision's parts."""
    agent = agent_of(options.size, options.device)
    with torch.autocast(options.device, torch.bfloat16):
        for envs in options.envs:
            part = Parts(agent, envs, options.device)
            calls = {"gains": part.gains, "policy's plans": part.proposals, "tell": part.told()}
            for name, call in calls.items():
                print(f"{envs} envs, {name}: {time_of(call, options.device, 10):.1f}")


@torch.no_grad()
def check(args: argparse.Namespace) -> int:
    """Compare the parts of a decision in both forms; return 1 if a difference is too large."""
    wrong = 0
    for envs in args.envs:
        agent = agent_of(args.size, args.device)
        with reference_kernels():
            exact = Parts(agent, envs, args.device)
            truth = {"gains": exact.plain_gains(), "plans": exact.proposals(fast=False)}
        with torch.autocast(args.device, torch.bfloat16):
            parts = Parts(agent, envs, args.device)
            for name in ("z", "plans", "last", "noise", "pair"):
                setattr(parts, name, getattr(exact, name))
            parts.nets = agent.pack(parts.z, parts.task)
            fast = {"gains": parts.gains(), "plans": parts.proposals()}
            plain = {"gains": parts.plain_gains(), "plans": parts.proposals(fast=False)}
        for name, right in truth.items():
            errors = [float((x[name] - right).square().mean().sqrt()) for x in (fast, plain)]
            size = float(right.square().mean().sqrt())
            good = errors[0] <= 1.2 * errors[1] + 1e-4 * size
            wrong += not good
            words = f"error of the kernels {errors[0]:.2e}, of bfloat16 {errors[1]:.2e}"
            print(f"check {envs} envs, {name}: size {size:.4f}, {words}", "" if good else "WRONG")
        parts.score = fast["gains"].sum(0)
        told = parts.tell()
        with reference_kernels():
            plain_told = parts.tell()
        for name in ("mean", "std"):
            off = float((getattr(told, name) - getattr(plain_told, name)).abs().max())
            wrong += not off < 1e-4
            print(f"check {envs} envs, refit's {name}: difference {off:.2e}")
    return int(wrong > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="5m")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--envs", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--only", nargs="*", choices=sorted({kind for kind, _ in SETTINGS}))
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.check:
        return check(options)
    if options.parts:
        time_parts(options)
    elif options.one:
        print(json.dumps(measure(options)))
    else:
        found = measure_all(options)
        report(found)
        if options.write:
            write(found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
