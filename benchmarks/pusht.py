"""PushT cloned from our own demonstrations: a Gaussian policy beside diffusion and flow.

    python benchmarks/pusht_demos.py data/pusht
    python benchmarks/pusht.py data/pusht [--seeds 1 2 3] [--updates 15000] [--record]

Every policy sees two steps of keypoints, as Fourier features, and predicts 8 actions; the Gaussian
executes 2 of them, the others 4. Networks are perceptrons that a core trains in minutes. The score
is the published one: the mean over 50 episodes of the largest reward. Runs are kept in a folder
beside the data and are not repeated.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dreamlab import build, training
from dreamlab.config import compose, load_config
from dreamlab.runs.run import Run, hardware

BATCH = 128
MEASURED = 30_000
"""Seed of the starts that are recorded; runs themselves evaluate from others."""
RESULTS = Path(__file__).parent / "results"
CHUNK = "obs_steps: 2, horizon: 8, encoder: {vector: {_target_: fourier}}"
NET = "net: {_target_: resnet_mlp, width: 256, blocks: 2, dropout: 0.0}, execute: 4"
POLICIES = {
    "Gaussian": f"{{_target_: gaussian, hidden: [512, 512, 512], execute: 2, {CHUNK}}}",
    "diffusion, DDIM 10": "{_target_: diffusion, prediction: sample, levels: 20, sampler: ddim, "
    f"sample_steps: 10, {NET}, {CHUNK}}}",
    "flow, Euler 10": f"{{_target_: flow, {NET}, {CHUNK}}}",
}
PUBLISHED = (
    "Elsewhere, from 206 human demonstrations: a released checkpoint on states (U-Net, 66 million "
    "weights) reached 0.969 and evaluates to 0.915 (README of real-stanford/diffusion_policy); "
    "LeRobot's on pictures 0.955 with success 0.64 (its model card)."
)


def run(name: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Return what a policy scores at the end of its run; one that is there already is read."""
    folder = args.runs / f"{name.split(',')[0].lower()}_{seed}"
    words = [
        "imitation_pusht", f"seed={seed}", f"run.dir={folder}", f"buffers.demos.path={args.data}",
        f"workflow.policy={POLICIES[name]}", "workflow.optimizer.lr=1e-3", "device=cpu",
        f"training.phases.0.duration_updates={args.updates}", "threads=1", "eval.every_updates=0",
        f"eval.episodes={args.episodes}", "eval.num_envs=25", "log.every_updates=200",
        "log.terminal=off", "eval.video=false", f"buffers.demos.batch={BATCH}",
        "buffers.demos.after=6",
    ]  # fmt: skip
    if not (folder / "manifest.json").exists() or "final_eval" not in Run(folder).manifest:
        training.train(load_config(compose(words)))
    found = measure(folder, args.episodes)
    found["commit"] = Run(folder).manifest["git"]["commit"][:10]
    print(f"{name:20s} seed {seed} {found}", flush=True)
    return found


def measure(folder: Path, episodes: int) -> dict[str, Any]:
    """Return what a trained policy scores from starts that no choice was made on."""
    trained = training.load_policy(folder)
    options = replace(trained.config.eval, seed=MEASURED, episodes=episodes)
    evaluator = build.build_evaluator(replace(trained.config, eval=options))
    found = evaluator.run(trained.workflow, trained.statistics).metrics()
    return {"score": found["eval/log/score"], "success": found["eval/success"]}


def table(facts: dict[str, Any]) -> str:
    """Return the numbers as a page."""
    f = facts
    lines = [
        "# PushT from our own demonstrations", "",
        f"{f['demonstrations']} demonstrations ({f['frames']:,} frames) of "
        f"`benchmarks/pusht_demos.py`; {f['updates']:,} updates of {BATCH} windows; "
        f"{f['episodes']} episodes from other starts. `{f['command']}` at {f['commit']}, "
        f"{f['hardware']}.", "",
        "| policy | score by seed | mean score | mean success |", "|---|---|---|---|",
    ]  # fmt: skip
    for name, rows in facts["policies"].items():
        each = ", ".join(f"{r['score']:.2f}" for r in rows)
        mean = [float(np.mean([r[k] for r in rows])) for k in ("score", "success")]
        lines.append(f"| {name} | {each} | {mean[0]:.2f} | {mean[1]:.2f} |")
    return "\n".join([*lines, "", PUBLISHED, ""])


def about(args: argparse.Namespace, numbers: dict[str, list[Any]]) -> dict[str, Any]:
    """Return the numbers, and how they were made."""
    info = json.loads((args.data / "meta" / "info.json").read_text())
    machine, seeds = hardware(), " ".join(map(str, args.seeds))
    return {
        "command": f"python benchmarks/pusht.py DATA --seeds {seeds} --updates {args.updates} "
        f"--policies {' '.join(repr(n) for n in numbers)} --record",
        "commit": ", ".join(dict.fromkeys(r["commit"] for rows in numbers.values() for r in rows)),
        "hardware": f"{machine['cpu']}, {machine['cpus']} cores, torch {torch.__version__}",
        "demonstrations": info["total_episodes"], "frames": info["total_frames"],
        "updates": args.updates, "episodes": args.episodes, "seeds": args.seeds,
        "policies": numbers,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--updates", type=int, default=15000)
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    args.runs = args.data.with_name(f"{args.data.name}_runs_{args.updates}")
    numbers: dict[str, list[Any]] = {}
    for name in args.policies:
        numbers[name] = [run(name, seed, args) for seed in args.seeds]
        facts = about(args, numbers)
        print(table(facts))
        if args.record:
            (RESULTS / "pusht.md").write_text(table(facts))
            (RESULTS / "pusht.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
