"""Read runs: train three seeds, average what their metrics.jsonl files say, and plot it."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np

from dreamlab import Run
from dreamlab.cli import main as dreamlab
from dreamlab.runs.run import new_folder

mpl.use("Agg")
import matplotlib.pyplot as plt


def curve(folder: Path, key: str) -> tuple[list[int], list[float]]:
    """Return env frames and values of one metric; records without it are passed over."""
    points = [(r["env_frames"], r[key]) for r in Run(folder).metrics() if key in r]
    return [frames for frames, _ in points], [value for _, value in points]


def main() -> None:
    root = new_folder("three_seeds")
    quiet = ["log.terminal=off", "eval.video=false", "eval.episodes=2"]
    dreamlab(["train", "+experiment=ppo_cartpole", "seed=1,2,3", f"run.dir={root}",
              "training.total_frames=3_000", "log.every_frames=500", *quiet])  # fmt: skip
    folders = sorted(root.glob("seed_*"))
    grid = np.linspace(500, 3_000, 6)  # seeds log at slightly different frames
    values = np.array([np.interp(grid, *curve(folder, "episode/return")) for folder in folders])
    figure, axes = plt.subplots()
    axes.plot(grid, values.T, color="gray", lw=0.7)
    axes.plot(grid, values.mean(0), lw=2, label=f"mean of {len(folders)} seeds")
    axes.set(xlabel="env frames", ylabel="episode/return")
    axes.legend()
    figure.savefig(root / "seeds.png")
    for folder in folders:
        manifest = Run(folder).manifest
        print(manifest["seed"], manifest["status"], manifest["final_eval"]["eval/return"])
    print("mean return at the end:", values.mean(0)[-1].round(1), root / "seeds.png")


if __name__ == "__main__":
    main()
