"""Demonstrations with two modes: which policies keep both, and which take the mean of them.

    python benchmarks/two_modes.py [--seeds 3] [--updates 1500] [--record]

A scripted expert goes from the left to the right around a disc, above or below it by the toss of a
coin. Every policy is cloned from the same demonstrations by the same workflow (`Imitation`, chunks
of 8 actions, 4 of them executed) and then acts in 200 episodes: how many arrive without touching
the disc, and how many of those above it. `--record` writes a table, numbers and a picture to
benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dreamlab.core.config import load
from dreamlab.core.phase import Phase
from dreamlab.core.types import ArraySpec, Batch, Mode, Spec
from dreamlab.workflows.imitation import Imitation, ImitationConfig

RESULTS = Path(__file__).parent / "results"
SPEC = Spec({"state": ArraySpec((2,))}, ArraySpec((2,), low=-1.0, high=1.0))
START, GOAL, RADIUS, HEIGHT = -0.9, 0.9, 0.3, 0.55
SPEED, STEPS, SHOWN, EPISODES, BATCH = 0.12, 24, 32, 200, 128
"""Steps of an episode; of a demonstration, which stays at the goal in the end."""
CHUNK = {"horizon": 8, "execute": 4}
NET = {"width": 128, "dropout": 0.0}
POLICIES: dict[str, dict[str, Any]] = {
    "gaussian": {"_target_": "gaussian", "hidden": [256, 256]},
    "diffusion": {"_target_": "diffusion", "levels": 50, "net": NET},
    "flow": {"_target_": "flow", "net": NET},
    "autoregressive": {
        "_target_": "autoregressive", "dim": 48, "heads": 4, "layers": 2, "bins": 32,
        "dropout": 0.0,
    },
}  # fmt: skip
OPTIMIZER = {"_target_": "adamw", "lr": 1e-3, "ema": 0.999, "ema_power": 0.75}
CASES = {
    "Gaussian, its mean": ("gaussian", Mode.EVAL),
    "Gaussian, sampled": ("gaussian", Mode.SAMPLE),
    "diffusion": ("diffusion", Mode.SAMPLE),
    "flow matching": ("flow", Mode.SAMPLE),
    "autoregressive": ("autoregressive", Mode.SAMPLE),
}


def expert(rows: int) -> tuple[Tensor, Tensor]:
    """Return places and actions [rows, SHOWN, 2]: half a wave above or below the disc."""
    side = torch.randint(0, 2, (rows, 1)) * 2.0 - 1
    place = torch.stack([torch.full((rows,), START), torch.zeros(rows)], -1)
    place = place + 0.02 * torch.randn(rows, 2)
    places, actions = [], []
    for step in range(SHOWN):
        share = min(1.0, (step + 1) / (STEPS - 4))
        wave = HEIGHT * math.sin(math.pi * share)
        target = torch.cat([torch.full((rows, 1), START + share * (GOAL - START)), side * wave], 1)
        action = ((target - place) / SPEED + 0.05 * torch.randn(rows, 2)).clamp(-1, 1)
        places.append(place)
        actions.append(action)
        place = place + SPEED * action
    return torch.stack(places, 1), torch.stack(actions, 1)


def train(kind: str, seed: int, updates: int) -> tuple[Imitation, float]:
    """Return a workflow that has learnt, and the seconds of a core it took."""
    torch.manual_seed(seed)
    node = {"policy": {**POLICIES[kind], **CHUNK}, "optimizer": OPTIMIZER}
    workflow = Imitation(load(ImitationConfig, node, "workflow"), SPEC)
    place, action = expert(200)
    begun = time.process_time()
    for _ in range(updates):
        row = torch.randint(0, len(place), (BATCH, 1))
        step = torch.randint(0, SHOWN - CHUNK["horizon"] + 1, (BATCH, 1))
        step = step + torch.arange(CHUNK["horizon"])
        flags = torch.zeros(step.shape, dtype=torch.bool)
        seen, done = place[row, step], action[row, step]
        batch = Batch({"state": seen}, done, torch.zeros(step.shape), flags, flags, flags)
        workflow.update_policy(batch, phase=Phase("clone", ("update_policy",)))
    return workflow, time.process_time() - begun


@torch.no_grad()
def play(workflow: Imitation, mode: Mode, seed: int) -> Tensor:
    """Return the ways [EPISODES, STEPS + 1, 2] of episodes that a policy acts in."""
    torch.manual_seed(seed)
    place = torch.tensor([[START, 0.0]]).repeat(EPISODES, 1) + 0.02 * torch.randn(EPISODES, 2)
    state, ways = workflow.initial_state(EPISODES), [place]
    with workflow.averaged():
        for step in range(STEPS):
            first = torch.full((EPISODES,), step == 0)
            decision = workflow.decide({"state": place}, first, state, mode)
            state = decision.state
            place = place + SPEED * decision.action
            ways.append(place)
    return torch.stack(ways, 1)


def judged(ways: Tensor) -> dict[str, float]:
    """Return how many arrive without touching the disc, and how many of these above it."""
    clear = ways.norm(dim=-1).min(1).values > RADIUS
    there = (ways[:, -1] - torch.tensor([GOAL, 0.0])).norm(dim=-1) < 0.2
    good = clear & there
    middle = ways[:, STEPS // 2, 1]
    above = (middle[good] > 0).float().mean().item() if good.any() else math.nan
    return {"success": good.float().mean().item(), "above": above}


def measure(seeds: int, updates: int) -> tuple[dict[str, list[dict[str, float]]], dict[str, Any]]:
    """Return what every case came to for every seed, and the ways of the first one."""
    numbers: dict[str, list[dict[str, float]]] = {case: [] for case in CASES}
    shown: dict[str, Any] = {}
    for seed in range(seeds):
        trained = {kind: train(kind, seed, updates) for kind in POLICIES}
        for case, (kind, mode) in CASES.items():
            workflow, seconds = trained[kind]
            ways = play(workflow, mode, 1000 + seed)
            found = {**judged(ways), "train_s": round(seconds, 1)}
            numbers[case].append({k: round(v, 3) for k, v in found.items()})
            shown.setdefault(case, ways[:60].tolist())
            print(f"seed {seed} {case:20s} {numbers[case][-1]}", flush=True)
    return numbers, shown


def draw(shown: dict[str, Any], path: Path) -> None:
    """Draw the demonstrations and the ways of each policy."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    torch.manual_seed(0)
    panels = {"demonstrations": expert(60)[0].tolist(), **shown}
    figure, axes = plt.subplots(1, len(panels), figsize=(3 * len(panels), 2.9), sharey=True)
    for axis, (title, ways) in zip(axes, panels.items(), strict=True):
        axis.add_patch(plt.Circle((0, 0), RADIUS, color="0.75"))
        for way in ways:
            axis.plot(*np.array(way).T, color="C0", alpha=0.25, linewidth=0.8)
        axis.plot([START, GOAL], [0, 0], "k.")
        axis.set(title=title, xlim=(-1.15, 1.15), ylim=(-0.9, 0.9), aspect="equal")
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def table(numbers: dict[str, list[dict[str, float]]], updates: int) -> str:
    """Return the numbers as a page."""
    seeds = len(next(iter(numbers.values())))
    lines = [
        "# Two modes", "",
        f"Demonstrations go above or below a disc. Success of {EPISODES} episodes, and how many of "
        f"the successful ones go above, for {seeds} seeds after {updates:,} updates of {BATCH} "
        f"chunks ({platform.machine()}, one thread, torch {torch.__version__}). "
        "`python benchmarks/two_modes.py --record` makes this.", "",
        "| policy | success | mean | above | training, s of a core |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for case, rows in numbers.items():
        good, above = ([r[k] for r in rows] for k in ("success", "above"))
        each = ", ".join(f"{x:.2f}" for x in good)
        up = ", ".join("-" if math.isnan(x) else f"{x:.2f}" for x in above)
        seconds = np.mean([r["train_s"] for r in rows])
        lines.append(f"| {case} | {each} | {np.mean(good):.2f} | {up} | {seconds:.0f} |")
    return "\n".join([*lines, "", "![ways](two_modes.png)", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=1500)
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    numbers, shown = measure(args.seeds, args.updates)
    page = table(numbers, args.updates)
    print(page)
    if args.record:
        (RESULTS / "two_modes.md").write_text(page)
        facts = {"updates": args.updates, "episodes": EPISODES, "cases": numbers}
        (RESULTS / "two_modes.json").write_text(json.dumps(facts, indent=1) + "\n")
        draw(shown, RESULTS / "two_modes.png")


if __name__ == "__main__":
    main()
