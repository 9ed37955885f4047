"""Trains experiments on several seeds and records what they reached, with curve and table.

    python benchmarks/learning.py ppo_cartpole --threshold 475 [--seeds 1 2 3] [overrides ...]
    python benchmarks/learning.py --table          rewrite results/learning.md from results/*.json

Each seed is a plain `dreamlab train`; its records go to results/<name>.json, the picture beside it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from dreamlab import build
from dreamlab.config import compose, load_config
from dreamlab.runs.run import git_state, hardware

RESULTS = Path(__file__).parent / "results"

# env frames and mean return that others published, with the source, where there is something alike
PUBLISHED: dict[str, list[dict[str, Any]]] = {
    "sac_halfcheetah": [
        {
            "env_frames": 1_000_000,
            "mean": 10_310,
            "source": "CleanRL documentation, HalfCheetah-v2",
        },
        {"env_frames": 1_000_000, "mean": 11_250, "source": "Haarnoja et al. 2018, HalfCheetah-v2"},
    ],
}


def train(name: str, seed: int, overrides: list[str]) -> dict[str, Any]:
    """Train one seed in a scratch folder and return its curve."""
    with tempfile.TemporaryDirectory() as scratch:
        options = [f"+experiment={name}", f"seed={seed}", f"run.dir={scratch}/run", *overrides]
        config = load_config(compose(options))
        began = time.monotonic()
        run, status = build.train(config)
        seconds = time.monotonic() - began
        keys = ("env_frames", "episode/return", "eval/return")
        curve = [{k: r[k] for k in keys if k in r} for r in run.metrics()]
        final = run.manifest["final_eval"]
    return {"seed": seed, "status": status, "seconds": seconds, "final": final, "curve": curve}


def record(options: argparse.Namespace) -> None:
    """Train every seed and write results/<name>.json and .png."""
    name, threshold, seeds = options.name, options.threshold, options.seeds
    overrides = options.overrides
    commit = git_state().get("commit", "")[:10]  # now: hours later it may be another
    if options.jobs == 1:
        runs = [train(name, seed, overrides) for seed in seeds]
    else:
        with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
            jobs = [pool.submit(train, name, seed, overrides) for seed in seeds]
            runs = [job.result() for job in jobs]
    command = f"python benchmarks/learning.py {name} --seeds {' '.join(map(str, seeds))}"
    result = {
        "experiment": name,
        "command": " ".join([command, *overrides]),
        "commit": commit,
        "hardware": f"{hardware()['cpu']}, {hardware()['cpus']} cores",
        "threshold": threshold,
        "runs": runs,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    draw(result)
    for run in runs:
        print(f"seed {run['seed']}: eval {run['final']['eval/return']:.1f}, {run['seconds']:.0f} s")


def draw(result: dict[str, Any]) -> None:
    """Draw the seeds, the threshold and what others published."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), dpi=120)
    for run in result["runs"]:
        points = [
            (r["env_frames"], r["episode/return"]) for r in run["curve"] if "episode/return" in r
        ]
        (line,) = axes.plot(
            *zip(*points, strict=True), lw=1, alpha=0.6, label=f"seed {run['seed']}"
        )
        evals = [(r["env_frames"], r["eval/return"]) for r in run["curve"] if "eval/return" in r]
        axes.plot(*zip(*evals, strict=True), "o", ms=4, color=line.get_color())
    if result["threshold"] is not None:
        axes.axhline(result["threshold"], color="grey", ls="--", lw=1, label="threshold")
    for point in PUBLISHED.get(result["experiment"], []):
        axes.plot(
            point["env_frames"], point["mean"], "*", ms=10, color="black", label=point["source"]
        )
    axes.set(
        xlabel="env frames", ylabel="return", title=f"{result['experiment']} (dots: evaluation)"
    )
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(RESULTS / f"{result['experiment']}.png")
    plt.close(figure)


def table() -> None:
    """Write results/learning.md from every recorded result."""
    lines = [
        "# Learning results",
        "",
        "Return of the policy's mode over 10 episodes at the end of training, per seed. Made by",
        "`benchmarks/learning.py`; the curves are in the JSON files and pictures beside this page.",
        "A commit marked * was filled in afterwards; the JSON file says why.",
        "",
        "| experiment | frames | wanted | returns | seconds | commit, machine | command |",
        "|---|---|---|---|---|---|---|",
    ]
    for path in sorted(RESULTS.glob("*.json")):
        r = json.loads(path.read_text())
        finals = ", ".join(f"{x['final']['eval/return']:.1f}" for x in r["runs"])
        seconds = ", ".join(f"{x['seconds']:.0f}" for x in r["runs"])
        mark = "*" if "commit_note" in r else ""
        frames = r["runs"][0]["curve"][-1]["env_frames"]
        lines.append(
            f"| [{r['experiment']}]({r['experiment']}.png) | {frames:,} | {r['threshold']} "
            f"| {finals} | {seconds} | {r['commit']}{mark}, {r['hardware']} | `{r['command']}` |"
        )
    (RESULTS / "learning.md").write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", nargs="?")
    parser.add_argument("overrides", nargs="*", default=[])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--threshold", type=float)
    parser.add_argument("--jobs", type=int, default=1, help="seeds trained at the same time")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_intermixed_args()
    if options.name:
        record(options)
    elif not options.table:
        sys.exit(__doc__)
    table()


if __name__ == "__main__":
    main()
