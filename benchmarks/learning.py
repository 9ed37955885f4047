"""Trains experiments on several seeds and records what they reached, with curve and table.

    python benchmarks/learning.py ppo_cartpole --threshold 475 [--seeds 1 2 3] [overrides ...]
    python benchmarks/learning.py --collect walker run_folder [...]   record runs made elsewhere
    python benchmarks/learning.py --compare a b c    a table of recorded results: results/compare.md
    python benchmarks/learning.py --table          rewrite results/learning.md from results/*.json

Each seed is a plain `dreamlab train`; its records go to results/<name>.json, the picture beside it.
`--against dmc_proprio/dmc_walker_walk/dreamerv3` draws a published curve with its deviation.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from dreamlab import build, training
from dreamlab.config import compose, load_config
from dreamlab.results.published import published_rows
from dreamlab.runs.git_state import git_state
from dreamlab.runs.run import Run, hardware

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


KEYS = ("env_frames", "episode/return", "eval/return", "time/wall_s", "time/cpu_s")


def evaluated_at(curve: list[dict[str, Any]]) -> int:
    """Return the env frames of the last evaluation: training may have gone on after it."""
    return ([r["env_frames"] for r in curve if "eval/return" in r] or [curve[-1]["env_frames"]])[-1]


def evaluations_per_s(records: list[dict[str, Any]]) -> float | None:
    """Return the evaluations of controllers per second, the median of the last half of records.

    An evaluation is one candidate in one episode, dreamt or real; None where none is evolved.
    """
    key = "train/controller_evaluations"
    rates = [r[key] * r["time/updates_per_s"] for r in records if key in r]
    return float(np.median(rates[len(rates) // 2 :])) if rates else None


def published(which: str) -> list[tuple[int, float, float]]:
    """Return env frames, mean and deviation of a published curve, `suite/task/method`."""
    suite, task, method = which.split("/")
    return [
        (int(r["env_frames"]), float(r["mean"]), float(r["std"]))
        for r in published_rows()
        if (r["suite"], r["task"], r["method"]) == (suite, task, method)
    ]


def train_one(name: str, seed: int, overrides: list[str]) -> dict[str, Any]:
    """Train one seed in a scratch folder and return its curve."""
    with tempfile.TemporaryDirectory() as scratch:
        options = [f"+experiment={name}", f"seed={seed}", f"run.dir={scratch}/run", *overrides]
        config = load_config(compose(options))
        began = time.monotonic()
        run, status = training.train(config)
        seconds, records = time.monotonic() - began, run.metrics()
        final, best = run.manifest["final_eval"], measure_best(run.folder)
    return {"seed": seed, "status": status, "seconds": seconds, **measured(records),
            "final": final, "best": best}  # fmt: skip


def measured(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what a run's records tell: seconds of the processor, and its curve."""
    rate = evaluations_per_s(records)
    return {
        "cpu_seconds": records[-1].get("time/cpu_s"),
        **({} if rate is None else {"evaluations_per_s": rate}),
        "curve": [{k: r[k] for k in KEYS if k in r} for r in records],
    }


def measure_best(folder: Path) -> dict[str, float]:
    """Return how the checkpoint that was best on the way does in new episodes."""
    trained = training.load_policy(folder, "best")
    new = replace(trained.config.eval, episodes=20, seed=30_000)
    evaluator = build.build_evaluator(replace(trained.config, eval=new))
    result = evaluator.run(trained.workflow, trained.statistics).metrics()
    return {"env_frames": trained.env_frames, **result}


def collect(options: argparse.Namespace) -> None:
    """Record runs that were made by `dreamlab train`, whether they came to their end or not."""
    runs: list[dict[str, Any]] = []
    for folder in options.overrides:
        run = Run(Path(folder))
        records, m = run.metrics(), run.manifest
        last = [r["eval/return"] for r in records if "eval/return" in r]
        final = m.get("final_eval") or {"eval/return": last[-1] if last else 0.0}
        seconds = records[-1]["time/wall_s"]
        runs.append({"seed": m["seed"], "status": m["status"], "seconds": seconds,
                     "final": final, **measured(records)})  # fmt: skip
    m = Run(Path(options.overrides[0])).manifest
    machine = m["hardware"]
    place = ", ".join(machine["gpus"]) or f"{machine['cpu']}, {machine['cpus']} cores"
    given = [a for a in m["command"][1:] if not a.startswith(("run.dir=", "seed="))]
    command = ["dreamlab", *given]
    save(options, runs, " ".join(command), m["git"].get("commit", "")[:10], place)


def record(options: argparse.Namespace) -> None:
    """Train every seed and write results/<name>.json and .png."""
    name, seeds = options.name, options.seeds
    overrides = options.overrides
    commit = git_state().get("commit", "")[:10]  # now: hours later it may be another
    if options.jobs == 1:
        runs = [train_one(name, seed, overrides) for seed in seeds]
    else:
        with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
            jobs = [pool.submit(train_one, name, seed, overrides) for seed in seeds]
            runs = [job.result() for job in jobs]
    command = f"python benchmarks/learning.py {name} --seeds {' '.join(map(str, seeds))}"
    place = f"{hardware()['cpu']}, {hardware()['cpus']} cores"
    save(options, runs, " ".join([command, *overrides]), commit, place)


def save(
    options: argparse.Namespace, runs: list[dict[str, Any]], command: str, commit: str, place: str
) -> None:
    """Write results/<name>.json and .png."""
    result = {
        "experiment": options.name,
        "command": command,
        "commit": commit,
        "hardware": place,
        "threshold": options.threshold,
        "against": options.against,
        "runs": runs,
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{options.name}.json").write_text(json.dumps(result, indent=1) + "\n")
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
        curves = [
            [(r["env_frames"], r[key]) for r in run["curve"] if key in r]
            for key in ("episode/return", "eval/return")
        ]
        points, evals = (np.array(c).reshape(-1, 2).T for c in curves)
        (line,) = axes.plot(points[0], points[1], lw=1, alpha=0.6, label=f"seed {run['seed']}")
        axes.plot(evals[0], evals[1], "o", ms=4, color=line.get_color())
    if result["threshold"] is not None:
        axes.axhline(result["threshold"], color="grey", ls="--", lw=1, label="threshold")
    if result.get("against"):
        frames, mean, std = map(np.array, zip(*published(result["against"]), strict=True))
        axes.plot(frames, mean, color="black", lw=1, label=f"published: {result['against']}")
        axes.fill_between(frames, mean - std, mean + std, color="black", alpha=0.15)
        last = max(run["curve"][-1]["env_frames"] for run in result["runs"])
        axes.set_xlim(0, 1.1 * last)
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
        "Return over 10 episodes at the end of training, per seed, as `eval` has it. Made by",
        "`benchmarks/learning.py`; the curves are in the JSON files and pictures beside this page.",
        "A commit marked * was filled in afterwards; the JSON file says why.",
        "`best` is the checkpoint that was best on the way, in 20 other episodes.",
        "`frames` are those of the last evaluation. CPU minutes are those of the run's process,",
        "evaluations included; a run without them is older than their measurement.",
        "",
        "| experiment | frames | wanted | returns | best | seconds | CPU minutes "
        "| commit, machine | command |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for path in sorted(RESULTS.glob("*.json")):
        r = json.loads(path.read_text())
        if "experiment" not in r or "runs" not in r:
            continue
        finals = ", ".join(f"{x['final']['eval/return']:.1f}" for x in r["runs"])
        known = [x["best"]["eval/return"] for x in r["runs"] if "best" in x]
        best = ", ".join(f"{x:.1f}" for x in known) or "-"
        seconds = ", ".join(f"{x['seconds']:.0f}" for x in r["runs"])
        cpu = [x["cpu_seconds"] for x in r["runs"] if x.get("cpu_seconds") is not None]
        cpu_minutes = ", ".join(f"{s / 60:.1f}" for s in cpu) or "-"
        code = f"{r['commit']}{'*' if 'commit_note' in r else ''}"
        frames = evaluated_at(r["runs"][0]["curve"])
        lines.append(
            f"| [{r['experiment']}]({r['experiment']}.png) | {frames:,} | {r['threshold']} "
            f"| {finals} | {best} | {seconds} | {cpu_minutes} | {code}, {r['hardware']} "
            f"| `{r['command']}` |"
        )
    (RESULTS / "learning.md").write_text("\n".join(lines) + "\n")


def compare(names: list[str]) -> None:
    """Write results/compare.md: recorded results side by side, at the same budgets."""
    results = {n: json.loads((RESULTS / f"{n}.json").read_text()) for n in names}
    budgets = sorted({
        r["env_frames"] // 10_000 * 10_000 for x in results.values() for run in x["runs"]
        for r in run["curve"] if "eval/return" in r
    } - {0})  # fmt: skip
    lines = [
        "# Side by side", "",
        "Mean return of evaluations at about these env frames; single seeds in brackets.",
        "", f"| | seeds | {' | '.join(f'{b:,}' for b in budgets)} | seconds per seed |",
        "|---" * (len(budgets) + 3) + "|",
    ]  # fmt: skip
    for name, result in results.items():
        cells: list[str] = []
        for budget in budgets:
            values = [near(run["curve"], budget) for run in result["runs"]]
            there = [v for v in values if v is not None]
            single = ", ".join(f"{v:.0f}" for v in there)
            cells.append(f"{sum(there) / len(there):.0f} ({single})" if there else "")
        seconds = sum(run["seconds"] for run in result["runs"]) / len(result["runs"])
        seeds = len(result["runs"])
        lines.append(f"| [{name}]({name}.png) | {seeds} | {' | '.join(cells)} | {seconds:.0f} |")
    (RESULTS / "compare.md").write_text("\n".join(lines) + "\n")


def near(curve: list[dict[str, float]], budget: int) -> float | None:
    """Return the evaluation at a budget, or None if there was none within 5 % of it."""
    found = [r for r in curve if "eval/return" in r]
    close = [r for r in found if abs(r["env_frames"] - budget) <= 0.05 * budget]
    return close[-1]["eval/return"] if close else None


def parsed(words: list[str]) -> argparse.Namespace:
    """Return the options; words with `=` are overrides wherever they stand."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", nargs="?")
    parser.add_argument("overrides", nargs="*", default=[], help="or folders, with --collect")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--threshold", type=float)
    parser.add_argument("--jobs", type=int, default=1, help="seeds trained at the same time")
    parser.add_argument("--against", help="a published curve: suite/task/method")
    parser.add_argument("--collect", action="store_true", help="name, then folders of runs")
    parser.add_argument("--compare", nargs="+", metavar="NAME")
    parser.add_argument("--table", action="store_true")
    given = [w for w in words if "=" in w and not w.startswith("-")]
    options = parser.parse_intermixed_args([w for w in words if w not in given])
    options.overrides += given
    return options


def main() -> None:
    options = parsed(sys.argv[1:])
    if options.compare:
        compare(options.compare)
        return
    if options.collect:
        collect(options)
    elif options.name:
        record(options)
    elif not options.table:
        sys.exit(__doc__)
    table()


if __name__ == "__main__":
    main()
