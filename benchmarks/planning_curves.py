"""Agents that plan beside those that do not, at the same frames on a CPU: one figure per task.

    python benchmarks/planning_curves.py FOLDER [--only pendulum] [--seeds 1 2 3] [--record]
    python benchmarks/planning_curves.py FOLDER --minutes 0 --record

Trains what FOLDER does not have yet, first seeds first, each by a plain `dreamlab train` into
FOLDER/TASK/EXPERIMENT/seed_N; one that was interrupted goes on. `--minutes` ends that.
FOLDER/record gets a figure per task, a table and the numbers; `--record` copies them into
benchmarks/results, together with what is recorded there of other tasks, algorithms and seeds.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dreamlab.runs.run import Run, hardware

RESULTS = Path(__file__).resolve().parent / "results"
EVALS = ("eval/return", "eval/overestimation", "eval/policy_return")


@dataclass(frozen=True)
class Study:
    """Experiments on one task, with what makes them comparable."""

    frames: int
    experiments: dict[str, str]
    """By the name in the figure."""
    options: tuple[str, ...] = ()


STUDIES = {
    "pendulum": Study(
        6_000,
        {
            "TD-MPC2": "tdmpc2_pendulum",
            "SAC": "sac_pendulum",
            "DreamerV3": "dreamer_pendulum",
            "TD-M(PC)²": "tdmpc_square_pendulum",
            "TD-MPC": "tdmpc_pendulum",
        },
        ("eval.every_frames=1000", "eval.episodes=10"),
    ),
    "cartpole_swingup": Study(
        40_000,
        {
            "TD-MPC2": "tdmpc2_cartpole_swingup",
            "SAC": "sac_cartpole_swingup",
            "DreamerV3": "dreamer_v3_cartpole_swingup",
        },
        ("eval.every_frames=5000", "eval.episodes=4"),
    ),
    "walker_walk": Study(
        30_000,
        {"TD-MPC2": "tdmpc2_walker", "TD-M(PC)²": "tdmpc_square_walker"},
        ("eval.every_frames=5000", "eval.episodes=4", "eval.policy_alone=true"),
    ),
}


def jobs(only: list[str], seeds: list[int], names: list[str]) -> list[tuple[str, str, int]]:
    """Return tasks, experiments and seeds in the order of their turn."""
    return [
        (task, experiment, seed)
        for task in only
        for seed in seeds
        for name, experiment in STUDIES[task].experiments.items()
        if not names or experiment in names
    ]


def train_one(folder: Path, task: str, experiment: str, seed: int, until: float) -> None:
    """Train one run, or go on with it, unless it is over; stop it when the time is."""
    place, study = folder / task / experiment / f"seed_{seed}", STUDIES[task]
    command = [sys.executable, "-m", "dreamlab"]
    if (place / "manifest.json").exists():
        if Run(place).manifest["status"] == "finished":
            return
        command += ["resume", str(place)]
    else:
        command += ["train", experiment, f"seed={seed}", f"run.dir={place}", "threads=1"]
        command += ["device=cpu", "log.terminal=off", "eval.video=false", "compile=true"]
        command += [f"training.total_frames={study.frames}", *study.options]
    print(f"{task} {experiment} seed {seed}", flush=True)
    process = subprocess.Popen(command)
    while process.poll() is None:
        time.sleep(0.5)
        if time.monotonic() > until:
            process.terminate()  # it saves, and the next call goes on
            process.wait()


def curves(folder: Path) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Return what every run of each task and name measured, finished or not."""
    out: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for task, study in STUDIES.items():
        for name, experiment in study.experiments.items():
            places = sorted((folder / task / experiment).glob("seed_*"))
            runs = [_curve(Run(p)) for p in places if (p / "manifest.json").exists()]
            if runs := [r for r in runs if r["points"]]:
                out.setdefault(task, {})[name] = runs
    return out


def with_recorded(found: dict[str, dict[str, list[dict[str, Any]]]]) -> None:
    """Add the recorded runs of tasks, names and seeds that were not found."""
    path = RESULTS / "planning.json"
    recorded = json.loads(path.read_text()) if path.exists() else {}
    for task, named in recorded.items():
        for name, runs in named.items():
            own = found.setdefault(task, {}).setdefault(name, [])
            known = {run["seed"] for run in own}
            own += [run for run in runs if run["seed"] not in known]
            own.sort(key=lambda run: run["seed"])


def _curve(run: Run) -> dict[str, Any]:
    m, records = run.manifest, run.metrics()
    points = [
        {k: r[k] for k in ("env_frames", "time/wall_s", *EVALS) if k in r}
        for r in records
        if "eval/return" in r
    ]
    given = [a for a in m["command"][1:] if not a.startswith(("run.dir=", "seed="))]
    return {
        "seed": m["seed"],
        "status": m["status"],
        "seconds": records[-1]["time/wall_s"] if records else 0.0,
        "commit": m["git"].get("commit", "")[:10],
        "command": " ".join(["dreamlab", *given]),
        "points": points,
    }


def draw(task: str, named: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Draw every seed thinly and the mean of all where all were measured."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    shown = [k for k in EVALS if any(k in p for runs in named.values() for p in runs[0]["points"])]
    shown = shown if "eval/policy_return" in shown else ["eval/return"]
    figure, axes = plt.subplots(1, len(shown), figsize=(6 * len(shown), 4), dpi=120, squeeze=False)
    for axis, key in zip(axes[0], shown, strict=True):
        for name, runs in named.items():
            lines = [np.array([(p["env_frames"], p[key]) for p in r["points"]]).T for r in runs]
            last = min(len(line[0]) for line in lines)
            mean = np.mean([line[:, :last] for line in lines], axis=0)
            (drawn,) = axis.plot(*mean, lw=2, label=f"{name} ({len(runs)} seeds)")
            for line in lines:
                axis.plot(*line, lw=0.8, alpha=0.5, color=drawn.get_color())
        axis.set(xlabel="env frames", ylabel=key, title=task)
        axis.grid(alpha=0.3)
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def table(found: dict[str, dict[str, list[dict[str, Any]]]]) -> str:
    """Return the last measurement of each run, and how long it took."""
    place = f"{hardware()['cpu']}, {hardware()['cpus']} cores"
    lines = [
        "# Agents that plan, on a CPU", "",
        f"`python benchmarks/planning_curves.py FOLDER --record`, {place}, one thread per run,",
        "beside other work; the last evaluation of each seed, minutes of training and evaluating.",
        "", "| task | algorithm | frames | returns | policy alone | overestimation | minutes "
        "| commit |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for task, named in found.items():
        for name, runs in named.items():
            ends = [r["points"][-1] for r in runs]
            cells = [", ".join(f"{e[k]:.4g}" for e in ends if k in e) or "-" for k in EVALS]
            frames = ", ".join(sorted({f"{e['env_frames']:,}" for e in ends}))
            minutes = ", ".join(f"{r['seconds'] / 60:.0f}" for r in runs)
            commits = ", ".join(sorted({r["commit"] for r in runs}))
            row = [f"[{task}](planning_{task}.png)", name, frames, cells[0], cells[2], cells[1]]
            lines.append(f"| {' | '.join([*row, minutes, commits])} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", choices=list(STUDIES), default=list(STUDIES))
    parser.add_argument("--names", nargs="*", default=[], help="experiments, if not all of a task")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--record", action="store_true", help="write benchmarks/results")
    options = parser.parse_args()
    until = time.monotonic() + 60 * options.minutes
    for job in jobs(options.only, options.seeds, options.names):
        if time.monotonic() < until:
            train_one(options.folder, *job, until)
    record = options.folder / "record"
    record.mkdir(parents=True, exist_ok=True)
    found = curves(options.folder)
    if options.record:
        with_recorded(found)
    for task, named in found.items():
        draw(task, named, record / f"planning_{task}.png")
    (record / "planning.md").write_text(table(found))
    (record / "planning.json").write_text(json.dumps(found, indent=1) + "\n")
    if options.record:
        for path in record.iterdir():
            shutil.copy(path, RESULTS)
    print(table(found))


if __name__ == "__main__":
    main()
