"""Microseconds of every kernel of `accel.dream` for several launch settings, on a GPU.

    python benchmarks/dream_kernels.py [--size 12m] [--only hidden gates] [--write]

Settings are built side by side, in as many processes as there are cores, checked against plain
torch, and timed one after the other, each launched repeatedly in a CUDA graph. Prints the fastest
settings of each kernel; `--write` puts them into `TUNING` of accel/dream.py.
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
from torch import Tensor
from torch.nn import functional as F

from dreamlab.accel import dream
from dreamlab.components.heads import LatentPolicy
from dreamlab.components.world_models import dreaming
from dreamlab.components.world_models.world_model import WorldModel
from dreamlab.core.config import load
from dreamlab.core.types import ArraySpec, Spec
from dreamlab.nn.dream import cast, outputs, weights
from dreamlab.workflows.dreamer_v3 import DreamerV3Config

Setting = tuple[int, ...]
LAUNCHES, REPLAYS, STEPS = 40, 7, 15
SETTINGS: dict[str, list[Setting]] = {
    "memory": [
        (128, 64, 64, 4, 4), (128, 64, 64, 4, 5), (128, 64, 128, 4, 3), (128, 64, 64, 8, 4),
        (64, 64, 64, 4, 5), (64, 64, 64, 4, 7), (64, 64, 128, 4, 4), (64, 128, 64, 4, 4),
        (64, 128, 128, 4, 4), (128, 128, 64, 8, 4), (128, 128, 64, 8, 5), (64, 256, 64, 4, 4),
    ],
    "stoch": [
        (64, 64, 64, 4, 4), (64, 64, 64, 4, 6), (64, 64, 128, 4, 3), (64, 64, 128, 4, 4),
        (64, 32, 128, 4, 4), (128, 64, 64, 4, 4), (64, 128, 64, 4, 4), (32, 64, 128, 4, 4),
    ],
    "policy": [*product((16, 32), (32, 64), (0,), (4, 8), (3,)), (16, 128, 0, 8, 2)],
    "hidden": [
        (128, 128, 64, 8, 4), (128, 128, 64, 8, 3), (128, 128, 64, 4, 4), (128, 128, 64, 8, 6),
        (128, 128, 128, 8, 3), (128, 64, 64, 4, 4), (64, 128, 64, 4, 4), (64, 256, 64, 8, 4),
        (64, 256, 64, 4, 3), (128, 256, 64, 8, 3), (128, 256, 64, 8, 4),
    ],
    "gates": [
        (64, 64, 64, 4, 3), (64, 64, 64, 4, 2), (64, 64, 64, 8, 3), (64, 64, 32, 4, 4),
        (128, 64, 64, 8, 3), (128, 64, 64, 4, 3), (128, 64, 64, 8, 4), (64, 128, 64, 8, 2),
        (64, 128, 64, 8, 3), (64, 32, 64, 4, 3), (128, 32, 64, 4, 3), (64, 128, 64, 4, 3),
    ],
    "prior": [*product((16, 32), (32, 64), (0,), (4, 8), (3,)), (16, 128, 0, 8, 2)],
}  # fmt: skip
"""A tile's rows and columns, numbers summed at once, warps, loads ahead."""
ROUNDING, CHOICES = 0.02, 0.98
"""Largest relative error of numbers, and smallest share of equal choices, in bfloat16."""


def normed(x: Tensor, scale: Tensor) -> Tensor:
    """Return what a layer passes on, given its output before the norm."""
    return F.silu(F.rms_norm(x.float(), scale.shape, scale, 1e-4))


class Bench:
    """Numbers of one step, and each kernel beside what it should compute of them."""

    def __init__(self, size: str, rows: int, device: str) -> None:
        torch.manual_seed(0)
        self.device, dtype = device, torch.bfloat16 if device == "cuda" else torch.float32
        c = load(DreamerV3Config, {"size": size}, "workflow")
        spec = Spec({"state": ArraySpec((24,))}, ArraySpec((6,), low=-1.0, high=1.0))
        model = WorldModel(c, spec).to(device)
        actor: LatentPolicy = c.actor.build(model.rssm.out_dim, spec.action).to(device)
        for p in (*model.parameters(), *actor.parameters()):
            p.data.add_(0.03 * torch.randn_like(p))
        layers, choices = dreaming.layers_of(model, actor)
        output = dreaming.output_of(model, actor)
        assert output is not None
        self.w = dream.Weights(*cast(weights(layers), dtype))
        self.chosen = dream.Chosen(dream.Output(*cast(outputs(output), dtype)), output.actions)
        widths = (len(self.w.hidden_bias), len(self.w.memory), len(self.w.actor))
        self.n = dream.Sizes(2, rows, model.rssm.deter_dim, *widths, *choices)
        self.noise = model.rssm.noise(rows, device=device)
        self.rssm = model.rssm

    def room(self) -> dream.Room:
        """Return a step's memory for the current settings, filled with random numbers."""
        torch.manual_seed(1)
        n, w = self.n, self.w
        zeros = [
            torch.zeros(n.rows, k, device=self.device, dtype=w.memory.dtype) for k in (n.d, n.z)
        ]
        room = dream.Room(w, n, (zeros[0], zeros[1]), self.chosen)
        for x in (room.state, room.o, room.p0, room.p1, room.a, room.half_a, room.x, room.q):
            x.normal_()
        room.part.zero_()
        room.part[:, 0] = room.q.float().square().sum(1)
        return room

    def call(self, name: str, room: dream.Room) -> Callable[[], Any]:
        """Return a kernel's launch for state 1."""
        return {
            "memory": lambda: room.read_memory(1, first=False, last=False),
            "stoch": lambda: room.read_sample(1, last=False),
            "policy": lambda: room.act(1),
            "hidden": lambda: room.mix(1),
            "gates": lambda: room.move(1),
            "prior": lambda: room.sample(1, self.noise),
        }[name]

    def pairs(self, name: str, room: dream.Room) -> list[tuple[Tensor, Tensor]]:
        """Return what a kernel computes, as views, and what it should, from the room's numbers."""
        return getattr(self, f"_{name}")(room, self.w.__class__(*(x.float() for x in self.w)))

    def _memory(self, r: dream.Room, w: dream.Weights) -> list[tuple[Tensor, Tensor]]:
        h = r.h(1).float()
        return [
            (r.o, F.linear(h, w.prior, w.prior_bias)),
            (r.half_a, F.linear(h, w.actor[:, : self.n.d])),
            (r.p0, F.linear(h, w.memory, w.memory_bias)),
        ]

    def _stoch(self, r: dream.Room, w: dream.Weights) -> list[tuple[Tensor, Tensor]]:
        z = r.z(1).float()
        a = r.half_a + F.linear(z, w.actor[:, self.n.d :], w.actor_bias)
        return [(r.a, a), (r.p1, F.linear(z, w.stoch, w.stoch_bias))]

    def _policy(self, r: dream.Room, w: dream.Weights) -> list[tuple[Tensor, Tensor]]:
        x = normed(r.a, w.actor_scale[0])
        for i, layer in enumerate(w.actor_more):
            x = normed(F.linear(x, layer, w.actor_more_bias[i]), w.actor_scale[i + 1])
        out = dream.Output(*(t.float() for t in r.out))
        a, u = self.chosen.actions, self.n.u
        std = (a.high - a.low) * torch.sigmoid(F.linear(x, out.spread, out.spread_bias) + 2) + a.low
        action = torch.tanh(F.linear(x, out.mean, out.mean_bias)) + std * r.chance[1]
        flat = action / action.abs().clamp(min=1)
        return [
            (r.action[:, 1], action),
            (r.x[:, :u], normed(r.p0, w.memory_scale)),
            (r.x[:, u : 2 * u], normed(r.p1, w.stoch_scale)),
            (r.x[:, 2 * u :], normed(F.linear(flat, out.act, out.act_bias), out.act_scale)),
        ]

    def _hidden(self, r: dream.Room, w: dream.Weights) -> list[tuple[Tensor, Tensor]]:
        n = self.n
        h = r.h(1).float().view(n.rows, n.g, n.w)
        both = torch.cat([h, r.x.float()[:, None].expand(n.rows, n.g, 3 * n.u)], -1)
        q = torch.einsum("rgk,gkw->rgw", both, w.hidden) + w.hidden_bias
        shares = q.reshape(n.rows, r.parts, -1).square().sum(-1)
        return [(r.q, q.flatten(1)), (r.part, shares)]

    def _gates(self, r: dream.Room, w: dream.Weights) -> list[tuple[Tensor, Tensor]]:
        n, h = self.n, r.h(1).float()
        x = normed(r.q, w.hidden_scale).view(n.rows, n.g, n.w)
        gates = torch.einsum("rgk,gkw->rgw", x, w.gates) + w.gates_bias
        reset, cand, update = (y.flatten(1) for y in gates.chunk(3, -1))
        update = torch.sigmoid(update - 1)
        return [(r.h(2), update * torch.tanh(torch.sigmoid(reset) * cand) + (1 - update) * h)]

    def _prior(self, r: dream.Room, w: dream.Weights) -> list[tuple[Tensor, Tensor]]:
        x = normed(r.o, w.prior_scale[0])
        for i, layer in enumerate(w.prior_more):
            x = normed(F.linear(x, layer, w.prior_more_bias[i]), w.prior_scale[i + 1])
        logits = F.linear(x, w.logits, w.logits_bias)
        return [(r.z(1), self.rssm.dist(self.rssm._logits(logits)).sample(self.noise))]


def wrong(name: str, pairs: list[tuple[Tensor, Tensor]]) -> str:
    """Say how a kernel differs from plain torch, or nothing."""
    for i, (found, wanted) in enumerate(pairs):
        a, b = found.float(), wanted.float()
        error, same = float((a - b).norm() / b.norm()), float((a == b).float().mean())
        if name != "prior":
            if not error < ROUNDING:
                return f"output {i} has a relative error of {error:.3g}"
        elif not same > CHOICES or not bool((a.sum(1) == b.sum(1)).all()):
            return f"{same:.1%} of choices are the same"
    return ""


def time_of(call: Callable[[], Any], device: str) -> float:
    """Return the microseconds of a launch among many."""
    if device != "cuda":
        call()
        return 0.0
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            call()
    times: list[float] = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * start.elapsed_time(end) / LAUNCHES)
    return sorted(times)[len(times) // 2]


@torch.no_grad()
def measure(options: argparse.Namespace) -> list[tuple[str, Setting, float, str]]:
    """Build and check settings, then time them when a line comes in."""
    bench = Bench(options.size, options.rows, options.device)
    before, ready = dict(dream.TUNING), list[tuple[str, Setting, Any, str]]()
    for name, setting in json.loads(options.one):
        dream.TUNING.update(before)
        dream.TUNING[name] = dream.Tuning(*setting)
        room = bench.room()
        call = bench.call(name, room)
        try:
            pairs = bench.pairs(name, room)
            call()
            ready.append((name, setting, call, wrong(name, pairs)))
        except Exception as error:
            ready.append((name, setting, None, str(error).splitlines()[0][:90]))
    print("ready", flush=True)
    input()
    rows: list[tuple[str, Setting, float, str]] = []
    for name, setting, call, fault in ready:
        dream.TUNING.update(before)
        dream.TUNING[name] = dream.Tuning(*setting)
        rows.append((name, setting, 0.0 if fault else time_of(call, options.device), fault))
    return rows


def measure_all(options: argparse.Namespace) -> dict[str, dict[Setting, float]]:
    """Return the time of each setting of each kernel, and print those that failed."""
    names = options.only or list(SETTINGS)
    work = [
        (name, s) for name in names for s in dict.fromkeys([dream.TUNING[name], *SETTINGS[name]])
    ]
    count = min(len(work), os.cpu_count() or 1, options.processes)
    words = [sys.executable, __file__, "--size", options.size, "--device", options.device]
    words += ["--rows", str(options.rows), "--one"]
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
    found: dict[str, dict[Setting, float]] = {name: {} for name in names}
    for child in started:
        said, _ = child.communicate("\n")
        for name, setting, time, fault in json.loads(said.splitlines()[-1]) if said else ():
            if fault:
                print(f"{name} {tuple(setting)}: {fault}")
            else:
                found[name][tuple(setting)] = time
    return found


def report(found: dict[str, dict[Setting, float]]) -> None:
    """Print the fastest settings of each kernel beside the current one."""
    total = [0.0, 0.0]
    for name, times in found.items():
        best, now = sorted(times, key=lambda s: times[s]), tuple(dream.TUNING[name])
        print(name, *(f"{s}: {times[s]:.2f}" for s in best[:4]), sep="  ")
        print(f"    now {now}: {times.get(now, float('nan')):.2f}")
        total[0] += times[best[0]] if best else float("nan")
        total[1] += times.get(now, float("nan"))
    print(f"microseconds of a step: {total[0]:.1f}, with the current settings {total[1]:.1f}")


def write(found: dict[str, dict[Setting, float]]) -> None:
    """Put the fastest settings into the program."""
    path = Path(str(dream.__file__))
    text = path.read_text()
    for name, times in found.items():
        best = min(times, key=lambda s: times[s])
        text = re.sub(rf'"{name}": Tuning\(.*?\)', f'"{name}": Tuning{best}', text)
    path.write_text(text)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="12m")
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", nargs="*", choices=list(SETTINGS))
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.one:
        print(json.dumps(measure(options)))
        return
    found = measure_all(options)
    report(found)
    if options.write:
        write(found)


if __name__ == "__main__":
    main()
