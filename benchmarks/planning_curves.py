"""Agents that plan beside those that do not, at the same frames on a CPU: one figure per task.

    python benchmarks/planning_curves.py FOLDER [--only pendulum] [--seeds 1 2 3] [--record]
    python benchmarks/planning_curves.py FOLDER --minutes 0 --record

Trains what FOLDER does not have yet, first seeds first, each by a plain `dreamlab train` into
FOLDER/TASK/EXPERIMENT/seed_N; one that was interrupted goes on. `--minutes` ends that.
FOLDER/record gets a figure per task, a table and the numbers; `--record` copies them into
benchmarks/results, together with what is recorded there of other tasks, algorithms and seeds, and
writes the blocks of pages that show them. Minutes of the processor are those of a run's process.
"""

from __future__ import annotations

import argparse
import json
import os
import re
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
PAGES = Path(__file__).resolve().parents[1] / "docs" / "algorithms"
BLOCK = re.compile(r"(<!-- planning: (\w+), (.+?) -->).*?(<!-- /planning -->)", re.DOTALL)
"""A place in a page for what is recorded of a task and some of its algorithms."""
EVALS = (
    "eval/return", "eval/policy_return", "eval/overestimation", "eval/policy_overestimation"
)  # fmt: skip
"""Planned episodes, the policy's own, and how far the policy's value is above each."""
TITLES = ("returns", "policy alone", "overestimation", "of the policy alone")
SECONDS = ("time/wall_s", "time/cpu_s")

Found = dict[str, dict[str, list[dict[str, Any]]]]
"""By task, name and seed."""


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
UNCOMPILED = ("tdmpc_pendulum",)
"""Experiments whose workflow marks nothing to compile."""


def jobs(only: list[str], seeds: list[int], names: list[str]) -> list[tuple[str, str, int]]:
    """Return tasks, experiments and seeds in the order of their turn."""
    return [
        (task, experiment, seed)
        for task in only
        for seed in seeds
        for experiment in STUDIES[task].experiments.values()
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
        command += ["device=cpu", "log.terminal=off", "eval.video=false"]
        command += [f"compile={str(experiment not in UNCOMPILED).lower()}"]
        command += [f"training.total_frames={study.frames}", *study.options]
    print(f"{task} {experiment} seed {seed}", flush=True)
    # compilers are processes that the run waits for, so that its seconds hold theirs
    process = subprocess.Popen(command, env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"})
    while process.poll() is None:
        time.sleep(0.5)
        if time.monotonic() > until:
            process.terminate()  # it saves, and the next call goes on
            process.wait()


def curves(folder: Path) -> Found:
    """Return what every run of each task and name measured, finished or not."""
    out: Found = {}
    for task, study in STUDIES.items():
        for name, experiment in study.experiments.items():
            places = sorted((folder / task / experiment).glob("seed_*"))
            runs = [_curve(Run(p)) for p in places if (p / "manifest.json").exists()]
            if runs := [r for r in runs if r["points"]]:
                out.setdefault(task, {})[name] = runs
    return out


def with_recorded(found: Found) -> None:
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
        {k: r[k] for k in ("env_frames", *SECONDS, *EVALS) if k in r}
        for r in records
        if "eval/return" in r
    ]
    given = [a for a in m["command"][1:] if not a.startswith(("run.dir=", "seed="))]
    return {
        "seed": m["seed"],
        "status": m["status"],
        "seconds": records[-1]["time/wall_s"] if records else 0.0,
        "cpu_seconds": records[-1].get("time/cpu_s") if records else None,
        "commit": m["git"].get("commit", "")[:10],
        "command": " ".join(["dreamlab", *given]),
        "points": points,
    }


def has(run: dict[str, Any], key: str) -> bool:
    """Tell whether a run measured something."""
    return any(key in point for point in run["points"])


def draw(task: str, named: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Draw every seed thinly and the mean of all where all were measured."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    planned = any(has(r, "eval/policy_return") for runs in named.values() for r in runs)
    shown = [k for k in EVALS if any(has(r, k) for runs in named.values() for r in runs)]
    shown = shown if planned else ["eval/return"]
    figure, axes = plt.subplots(1, len(shown), figsize=(6 * len(shown), 4), dpi=120, squeeze=False)
    for axis, key in zip(axes[0], shown, strict=True):
        for i, (name, runs) in enumerate(named.items()):
            if not (those := [r for r in runs if has(r, key)]):
                continue
            lines = [
                np.array([(p["env_frames"], p[key]) for p in r["points"] if key in p]).T
                for r in those
            ]
            last = min(len(line[0]) for line in lines)
            mean = np.mean([line[:, :last] for line in lines], axis=0)
            axis.plot(*mean, lw=2, color=f"C{i}", label=f"{name} ({len(those)} seeds)")
            for line in lines:
                axis.plot(*line, lw=0.8, alpha=0.5, color=f"C{i}")
        axis.set(xlabel="env frames", ylabel=key, title=task)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def table(found: Found) -> str:
    """Return the last measurement of each run, and how long it took."""
    place = f"{hardware()['cpu']}, {hardware()['cpus']} cores"
    lines = [
        "# Agents that plan, on a CPU", "",
        f"`python benchmarks/planning_curves.py FOLDER --record`, {place}, one thread per run,",
        "beside other work; the last evaluation of each seed, minutes of training and evaluating",
        "by the clock and of the processor. Overestimation: the critics' value of the policy at",
        "the start minus the discounted return, of planned episodes and of the policy's own.", "",
        *rows([(task, name, runs) for task, named in found.items() for name, runs in named.items()])
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def rows(of: list[tuple[str, str, list[dict[str, Any]]]], whole: bool = True) -> list[str]:
    """Return a table of runs by task and algorithm; columns of nothing only if it is `whole`."""
    columns: dict[str, list[str]] = {}
    if whole:
        columns["task"] = [f"[{task}](planning_{task}.png)" for task, _, _ in of]
    columns["algorithm"] = [name for _, name, _ in of]
    columns["frames"] = [_frames(runs) for _, _, runs in of]
    for title, key in zip(TITLES, EVALS, strict=True):
        columns[title] = [_ends(runs, key) for _, _, runs in of]
    columns["minutes"] = [", ".join(f"{r['seconds'] / 60:.0f}" for r in runs) for _, _, runs in of]
    columns["CPU minutes"] = [_cpu_minutes(runs) for _, _, runs in of]
    if whole:
        columns["commit"] = [", ".join(sorted({r["commit"] for r in runs})) for _, _, runs in of]
    shown = {k: v for k, v in columns.items() if whole or set(v) != {"-"}}
    lines = [list(shown), ["---"] * len(shown), *zip(*shown.values(), strict=True)]
    return [f"| {' | '.join(line)} |" for line in lines]


def _frames(runs: list[dict[str, Any]]) -> str:
    return ", ".join(f"{f:,}" for f in sorted({r["points"][-1]["env_frames"] for r in runs}))


def _ends(runs: list[dict[str, Any]], key: str) -> str:
    ends = [r["points"][-1] for r in runs]
    return ", ".join(f"{e[key]:.4g}" for e in ends if key in e) or "-"


def _cpu_minutes(runs: list[dict[str, Any]]) -> str:
    """Return those of all runs; of older ones they are not known."""
    known = [r.get("cpu_seconds") for r in runs]
    return ", ".join("?" if s is None else f"{s / 60:.1f}" for s in known) if any(known) else "-"


def placed(text: str, found: Found) -> str:
    """Return a page with its blocks as they are now: the runs of a task, and the figure."""
    return BLOCK.sub(lambda m: f"{m[1]}\n{_block(m[2], m[3].split(', '), found)}\n{m[4]}", text)


def _block(task: str, names: list[str], found: Found) -> str:
    those = [(task, n, found[task][n]) for n in names if n in found.get(task, {})]
    if not those:
        given = " ".join(STUDIES[task].experiments[n] for n in names)
        command = f"python benchmarks/planning_curves.py FOLDER --only {task} --names {given}"
        return f"Not recorded so far: `{command} --record`."
    figure = f"![{task}](../../benchmarks/results/planning_{task}.png)"
    return "\n".join([*rows(those, whole=False), "", figure])


def record(folder: Path, found: Found) -> None:
    """Copy what was made into benchmarks/results, and write the blocks of the pages."""
    for path in folder.iterdir():
        shutil.copy(path, RESULTS)
    for path in sorted(PAGES.glob("*.md")):
        text = path.read_text()
        if (new := placed(text, found)) != text:
            path.write_text(new)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
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
    place = options.folder / "record"
    place.mkdir(parents=True, exist_ok=True)
    found = curves(options.folder)
    if options.record:
        with_recorded(found)
    for task, named in found.items():
        draw(task, named, place / f"planning_{task}.png")
    (place / "planning.md").write_text(table(found))
    (place / "planning.json").write_text(json.dumps(found, indent=1) + "\n")
    if options.record:
        record(place, found)
    print(table(found))


if __name__ == "__main__":
    main()
