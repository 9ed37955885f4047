"""Microseconds of the kernels of `accel.latent_plans` and `accel.mppi`, by launch settings.

    python benchmarks/plan_kernels.py --check
    python benchmarks/plan_kernels.py [--envs 1 16] [--settings 16:64,4,3 64:32,8,4] [--write]

A setting is the rows of a tile, then rows of a weight read at once, warps, loads ahead. Settings
are built side by side, each in a process of its own, and timed one after the other: the scores of
one iteration of `--envs` environments (512 plans of 3 steps each, size `--size`), the policy's
plans, and a refit. Prints the fastest settings; `--write` puts those of each tile into `TUNING` of
accel/latent_plans.py. `--check` compares a decision's parts with the networks one by one: the
kernels' rounding errors must be those of the same precision.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch

from dreamlab.accel import latent_plans as accel
from dreamlab.accel import mppi
from dreamlab.accel.dispatch import reference_kernels
from dreamlab.core.config import load
from dreamlab.core.types import ArraySpec, Spec
from dreamlab.nn import latent_plans
from dreamlab.workflows.tdmpc2 import TDMPC2, TDMPC2Config

SETTINGS = [
    *product((16, 32), (32, 64), (4, 8), (2, 3, 4)),
    *product((16,), (32,), (4, 8), (6,)),
    *product((64,), (32, 64), (8,), (2, 3, 4)),
    *product((64,), (32,), (8,), (6,)),
    *product((64,), (64,), (4, 16), (3,)),
]
"""Rows of a tile, rows of a weight read at once, warps, loads ahead."""
REFITS = [*product((16, 32, 64), (4, 8, 16))]
"""Scores compared at once, warps."""
ACTIONS = 6
Times = dict[str, float]


def agent_of(size: str, device: str) -> TDMPC2:
    """Return an agent whose rewards and values are not all 0."""
    torch.manual_seed(0)
    spec = Spec({"state": ArraySpec((24,))}, ArraySpec((ACTIONS,), low=-1.0, high=1.0), 500)
    agent = TDMPC2(load(TDMPC2Config, {"size": size}, "workflow"), spec).to(device)
    for weight in (agent.model.reward.out.weight, agent.critics.linears[-1].weight):  # type: ignore[union-attr]
        weight.data.normal_(0.0, 0.05)  # type: ignore[operator]
    return agent


class Parts:
    """The parts of a decision that have kernels, on random numbers."""

    def __init__(self, agent: TDMPC2, envs: int, device: str) -> None:
        self.agent, n = agent, agent.sizes
        rand = lambda *shape: torch.randn(*shape, device=device)  # noqa: E731
        self.task = torch.zeros(envs, dtype=torch.int64, device=device)
        self.z = agent.model.encode({"state": rand(envs, 24)}, self.task)
        h, s = n.planner.horizon, n.planner.samples
        self.plans, self.last = rand(envs, s, h, ACTIONS).clamp(-1, 1), rand(envs, s, ACTIONS)
        self.noise = rand(h, envs, n.proposed, ACTIONS)
        self.pair = torch.tensor([3 % n.critics, 1], device=device)
        self.score = rand(envs, s)
        self.nets = agent.pack(self.z, self.task)

    def gains(self) -> Any:
        found = latent_plans.gains(self.nets, self.plans, self.last, self.pair)
        return torch.cat([found[:-2], found[-2:].sum(0)[None]])

    def plain_gains(self) -> Any:
        given = (self.plans, self.last, self.pair)
        return self.agent.parts.gains(self.z, self.task, None, *given)

    def proposals(self, fast: bool = True) -> Any:
        nets = self.nets if fast else None
        return self.agent.propose(self.z, self.task, self.noise, nets)

    def tell(self) -> Any:
        plan = self.agent.planner.start(self.plans[:, 0], self.plans[:, 0])
        return self.agent.planner.tell(plan, self.plans, self.score)


def kernel_times(run: Callable[[], Any], device: str, times: int = 20) -> Times:
    """Return the microseconds of each kernel of a call."""
    run()
    with torch.profiler.profile() as prof:
        for _ in range(times):
            run()
        if device == "cuda":
            torch.cuda.synchronize()
    rows = [r for r in prof.key_averages() if r.key.endswith("_kernel")]
    return {r.key.removesuffix("_kernel"): r.self_device_time_total / r.count for r in rows}


@torch.no_grad()
def measure(args: argparse.Namespace, setting: Sequence[int]) -> None:
    """Build the kernels, wait for a line, and print the times of each number of environments."""
    rows, *tuned = setting
    if rows:
        accel.ROWS.update(roll=rows, value=rows)
        accel.TUNING.update({(k, rows): accel.Tuning(*tuned) for k in ("roll", "value")})
        accel.TUNING["roll", accel.TILE] = accel.Tuning(*tuned) if rows == accel.TILE else SLIM
    else:
        mppi.TUNING.update(chunk=tuned[0], warps=tuned[1])
    agent = agent_of(args.size, args.device)
    with torch.autocast(args.device, torch.bfloat16):
        parts = {envs: Parts(agent, envs, args.device) for envs in args.envs}
        jobs: list[Callable[[Parts], Any]] = [Parts.gains] if rows else [Parts.tell]
        jobs += [Parts.proposals] if rows == accel.TILE else []
        for part in parts.values():
            for job in jobs:
                job(part)
        print("ready", flush=True)
        input()
        found: dict[str, Times] = {}
        for envs, part in parts.items():
            for job in jobs:
                times = kernel_times(lambda job=job, part=part: job(part), args.device)
                name = "" if job is not Parts.proposals else "policy_"
                found.setdefault(str(envs), {}).update({name + k: v for k, v in times.items()})
        print(json.dumps(found))


SLIM = accel.TUNING["roll", accel.TILE]


def measure_all(args: argparse.Namespace, settings: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return the times of each kernel, by environments and setting; what cannot be built is not."""
    found: dict[str, Any] = {}
    for i in range(0, len(settings), args.together):
        some = settings[i : i + args.together]
        started: list[tuple[Sequence[int], subprocess.Popen[str]]] = []
        for setting in some:
            words = [sys.executable, __file__, "--size", args.size, "--device", args.device]
            words += ["--envs", *map(str, args.envs), "--one", *map(str, setting)]
            pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
            started.append((setting, subprocess.Popen(words, text=True, **pipes)))
        for _, child in started:
            assert child.stdout is not None
            child.stdout.readline()
        for setting, child in started:
            said, error = child.communicate("\n")
            if child.returncode:  # too much shared memory, for example
                print(tuple(setting), error.splitlines()[-1:], flush=True)
                continue
            for envs, times in json.loads(said.splitlines()[-1]).items():
                for name, time in times.items():
                    found.setdefault(f"{name}, {envs} envs", {})[tuple(setting)] = time
    return found


def write(found: dict[str, Any]) -> None:
    """Put the fastest settings of each kernel and tile into the program.

    High tiles are timed with most environments, which have them, low ones with fewest.
    """
    path = Path(str(accel.__file__))
    text, envs = path.read_text(), [int(name.split()[1]) for name in found]
    for name, times in found.items():
        kernel, _, some = name.partition(", ")
        for rows in {s[0] for s in times if s[0]}:
            if int(some.split()[0]) != (max(envs) if rows == max(accel.TUNING)[1] else min(envs)):
                continue
            best = min((s for s in times if s[0] == rows), key=lambda s: times[s])
            place = rf'\("{kernel}", {rows}\): Tuning\(.*?\)'
            text = re.sub(place, f'("{kernel}", {rows}): Tuning{tuple(best[1:])}', text)
    path.write_text(text)


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
    parser.add_argument("--settings", nargs="*", default=[], help="rows:chunk,warps,stages ...")
    parser.add_argument("--rows", nargs="*", type=int, default=[16, 32, 64], help="of the default")
    parser.add_argument("--together", type=int, default=12, help="settings built side by side")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--one", nargs="+", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.check:
        return check(args)
    if args.one:
        measure(args, args.one)
        return 0
    given = [tuple(map(int, s.replace(":", ",").split(","))) for s in args.settings]
    usual = [s for s in SETTINGS if s[0] in args.rows] + [(0, *s) for s in REFITS]
    found = measure_all(args, given or usual)
    for name, times in found.items():
        for rows in sorted({s[0] for s in times}):
            best = sorted((s for s in times if s[0] == rows), key=lambda s: times[s])[:4]
            print(f"{name:24}", *(f"{s}: {times[s]:.1f}" for s in best), sep="  ")
    if args.write:
        write(found)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
