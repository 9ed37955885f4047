"""Trains World Models, and evolves controllers in dreams of other temperatures.

    python benchmarks/world_models.py [--seeds 1 2 3] [--temperatures 0.1 0.5 1 ...]
    python benchmarks/world_models.py --experiment world_models_pixels --heated 1 2 3
    python benchmarks/world_models.py --draw       rewrite picture and page from the JSON file

Every seed is a plain `dreamlab train +experiment=world_models_cartpole`: a controller that is
evolved in dreams alone. For each other temperature a further run takes its V, M and data, and
evolves a controller from nothing (`--heated`: for these seeds only), and on CartPole one does so in
the environment. What chance scores is told twice: uniformly random actions, and controllers as the
search first draws them, on the V and M of the seed. Real scores are means over 100 episodes.
Results go to results/world_models.json, .png and .md; those of other experiments have their names.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dreamlab import build, training
from dreamlab.config import LabConfig, compose, load_config
from dreamlab.engine.evaluator import Evaluator
from dreamlab.engine.speed import cpu_seconds
from dreamlab.runs.git_state import git_state
from dreamlab.runs.run import Run, hardware

RESULTS = Path(__file__).parent / "results"
CARTPOLE = "world_models_cartpole"
TEMPERATURES = [0.1, 0.5, 1.0, 2.0]
EPISODES = 100
CHANCE, CHANCE_EPISODES = 16, 20
"""Random controllers per seed, and episodes of each."""
REAL_FRAMES = 641_280
"""20 generations of one episode per candidate."""
REAL = (
    "training.phases=[{name: evolve, buffer: episodes, workflow_hooks: [collect, "
    f"update_controller], collect_ticks: 501, duration_steps: {REAL_FRAMES}, "
    "fresh_episodes: true}]"
)
ROLLOUT = "buffers={episodes: {_target_: rollout, length: 501, keep_obs: false}}"


@dataclass(frozen=True)
class Task:
    """What is told of an experiment beside its scores."""

    title: str
    results: str
    """Name of the files."""
    steps: str
    """Length of a real episode."""
    seen: str
    """What V and M learned from."""
    real: bool = False
    """Whether controllers are evolved in the environment as well."""
    digits: int = 0
    """Of returns, at each temperature."""


TASKS = {
    "world_models_cartpole": Task(
        "CartPole", "world_models", "at most 500", "random actions and random controllers", True
    ),
    "world_models_pixels": Task(
        "a small image task", "world_models_pixels", "32", "random actions", digits=1
    ),
}


def config_of(experiment: str, *options: str) -> LabConfig:
    """Return the configuration of an experiment."""
    return load_config(compose([f"+experiment={experiment}", *options]))


def evaluator_of(trained: training.Trained, episodes: int, seed: int) -> Evaluator:
    """Return what plays new episodes of a run's environment, all at once."""
    options = replace(trained.config.eval, episodes=episodes, num_envs=episodes, seed=seed)
    return build.build_evaluator(replace(trained.config, eval=options))


def real_score(folder: Path, seed: int = 30_000) -> dict[str, float]:
    """Return how a run's last controller does in new episodes of the environment."""
    trained = training.load_policy(folder)
    evaluator = evaluator_of(trained, EPISODES, seed)
    found = evaluator.run(trained.workflow, trained.statistics).metrics()
    return {k.removeprefix("eval/"): v for k, v in found.items() if k.startswith("eval/return")}


@torch.no_grad()
def random_controllers(folder: Path, seed: int) -> list[float]:
    """Return the mean real return of each of some controllers of the search's first generation.

    They act on the V and M that a run trained.
    """
    trained = training.load_policy(folder)
    weights, sigma = (
        trained.workflow.controller.weights,
        trained.workflow.config.evolution.config.sigma,
    )
    draws, returns = torch.Generator().manual_seed(seed), []
    for _ in range(CHANCE):
        weights.copy_(sigma * torch.randn(weights.shape, generator=draws))
        evaluator = evaluator_of(trained, CHANCE_EPISODES, 40_000 + seed)
        returns.append(evaluator.run(trained.workflow, trained.statistics).mean)
    return returns


def train_one(experiment: str, folder: Path, options: list[str]) -> dict[str, Any]:
    """Train a run and return its real score, its last fitness, and how fast it was.

    Evaluations per second (an evaluation is one candidate in one episode, dreamt or real) are
    those of records of nothing but the search.
    """
    began, computed = time.monotonic(), cpu_seconds()
    fixed = [f"run.dir={folder}", "device=cpu", "log.terminal=off", "eval.every_updates=0",
             "log.every_updates=10", "threads=1"]  # fmt: skip
    run, _ = training.train(config_of(experiment, *fixed, *options))
    seconds, cpu = time.monotonic() - began, cpu_seconds() - computed
    records = [r for r in run.metrics() if "train/fitness" in r]
    rates = [r["time/updates_per_s"] * r["train/controller_evaluations"] for r in records]
    return {"seconds": seconds, "cpu_seconds": cpu, "real": real_score(folder),
            "dream": records[-1]["train/fitness"],
            "evaluations_per_s": float(np.median(rates))}  # fmt: skip


def at_temperature(
    experiment: str, scratch: Path, seed: int, temperature: float, overrides: list[str]
) -> dict[str, Any]:
    """Evolve a controller in dreams of this temperature, with the V, M and data of a seed."""
    first, config = scratch / f"seed{seed}", config_of(experiment, *overrides)
    dream, replay = config.training.phases[-1], config.buffers["replay"].config
    options = [
        "training.phases=[{name: dream, type: offline, workflow_hooks: "
        f"[update_controller_in_dream], duration_updates: {dream.duration_updates}}}]",
        f"seed={seed}", f"workflow.dream.temperature={temperature}", f"+start.run={first}",
        "+start.modules=[model]", f"buffers.replay={{_target_: run_replay, run: {first}, "
        f"batch: {replay.batch}, length: {replay.length}, sampler: passes}}",
        "log.every_frames=0",
    ]  # fmt: skip
    return train_one(experiment, scratch / f"seed{seed}_{temperature}", [*overrides, *options])


def in_the_environment(
    experiment: str, scratch: Path, seed: int, overrides: list[str]
) -> dict[str, Any]:
    """Evolve a controller in the environment itself, on the V and M of a seed."""
    options = [
        REAL, ROLLOUT, f"seed={seed}", f"+start.run={scratch / f'seed{seed}'}",
        "+start.modules=[model]", "log.every_updates=0", "log.every_frames=1",
        "eval.every_updates=0", "workflow.controller.rollouts=1",
    ]  # fmt: skip
    found = train_one(experiment, scratch / f"seed{seed}_real", [*overrides, *options])
    return {**{k: v for k, v in found.items() if k != "dream"}, "frames": REAL_FRAMES}


def random_actions(experiment: str, seeds: list[int]) -> list[float]:
    """Return what uniformly random actions score, one mean per seed."""
    out: list[float] = []
    env = config_of(experiment).env
    for seed in seeds:
        with tempfile.TemporaryDirectory() as scratch:
            options = [f"env.suite={env.suite}", f"env.id={env.id}", f"seed={seed}",
                       f"run.dir={scratch}/run", "log.terminal=off",
                       "training.total_frames=100"]  # fmt: skip
            training.train(config_of("random_cartpole", *options))
            out.append(real_score(Path(scratch) / "run", 40_000 + seed)["return"])
    return out


def train_seed(
    experiment: str, seed: int, temperatures: list[float], options: list[str]
) -> dict[str, Any]:
    """Train the whole curriculum, then a controller for each temperature."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        whole = train_one(experiment, scratch / f"seed{seed}", [f"seed={seed}", *options])
        frames = Run(scratch / f"seed{seed}").metrics()[-1]["env_frames"]
        by_heat = {t: at_temperature(experiment, scratch, seed, t, options) for t in temperatures}
        chance = random_controllers(scratch / f"seed{seed}", seed)
        found = {"frames": frames, "whole": whole, "temperatures": by_heat, "chance": chance}
        if TASKS[experiment].real:
            found["real"] = in_the_environment(experiment, scratch, seed, options)
    return found


def record(options: argparse.Namespace) -> dict[str, Any]:
    """Train everything and return what came of it."""
    name, seeds, heated = options.experiment, options.seeds, options.heated or options.seeds
    commit = git_state().get("commit", "")[:10]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        waiting = {
            s: pool.submit(
                train_seed, name, s, options.temperatures if s in heated else [], options.overrides
            )
            for s in seeds
        }
        found = {seed: job.result() for seed, job in waiting.items()}
    dream = config_of(name, *options.overrides).workflow.config.dream
    warm = [s for s in seeds if s in heated]
    return {
        "command": command(options),
        "commit": commit,
        "hardware": f"{hardware()['cpu']}, {hardware()['cpus']} cores",
        "experiment": name,
        "horizon": dream.horizon,
        "frames": found[seeds[0]]["frames"],
        "seeds": {s: x["whole"] for s, x in found.items()},
        "random_actions": random_actions(name, seeds),
        "random_controllers": {s: x["chance"] for s, x in found.items()},
        "in_the_environment": {s: x["real"] for s, x in found.items() if "real" in x},
        "heated": warm,
        "temperatures": {
            dream.temperature: [found[s]["whole"] for s in warm],
            **{t: [found[s]["temperatures"][t] for s in warm] for t in options.temperatures},
        },
    }


def command(options: argparse.Namespace) -> str:
    """Return the command line that makes the record again."""
    words = ["python benchmarks/world_models.py"]
    if options.experiment != CARTPOLE:
        words += ["--experiment", options.experiment]
    words += ["--seeds", *map(str, options.seeds)]
    if options.temperatures != TEMPERATURES:
        words += ["--temperatures", *map(str, options.temperatures)]
    words += ["--heated", *map(str, options.heated)] if options.heated else []
    return " ".join([*words, *options.overrides])


def task_of(result: dict[str, Any]) -> Task:
    """Return what was recorded."""
    return TASKS[result.get("experiment", CARTPOLE)]


def draw(result: dict[str, Any], folder: Path) -> None:
    """Draw real and dreamt scores over the temperature of the dreams."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    task, heats = task_of(result), sorted(result["temperatures"], key=float)
    x = np.array([float(t) for t in heats])
    real, dream = (
        np.array([[pick(r) for r in result["temperatures"][t]] for t in heats])
        for pick in (lambda r: r["real"]["return"], lambda r: r["dream"])
    )
    figure, axes = plt.subplots(figsize=(7, 4), dpi=120)
    for y, color, label in ((real, "tab:blue", "real"), (dream, "tab:orange", "dreamt")):
        axes.plot(x, y.mean(1), "-", color=color, label=f"{label}, mean of {y.shape[1]} seeds")
        axes.plot(np.repeat(x, y.shape[1]), y.ravel(), "o", color=color, ms=3, alpha=0.6)
    axes.axhline(
        np.mean(result["random_actions"]), color="grey", ls="--", lw=1, label="random actions"
    )
    if chance := result.get("random_controllers"):
        mean = np.mean([*chance.values()])
        axes.axhline(mean, color="grey", ls=":", lw=1, label="random controllers")
    axes.set(xscale="log", xlabel="temperature of the dream",
             ylabel=f"return (real: {task.steps} steps, dreamt: {result.get('horizon', 300)})",
             title=f"Controllers evolved in dreams of {task.title}")  # fmt: skip
    axes.set_xticks(x, [f"{t:g}" for t in x])
    axes.minorticks_off()
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(folder / f"{task.results}.png")
    plt.close(figure)


def speed(result: dict[str, Any]) -> float:
    """Return the evaluations per second in dreams, the median over runs that only dream."""
    own = [r["evaluations_per_s"] for r in result["seeds"].values()]  # V and M learn in them too
    every = [r["evaluations_per_s"] for runs in result["temperatures"].values() for r in runs]
    rates = [r for r in every if r not in own]
    return float(np.median(rates))


def page(result: dict[str, Any]) -> str:
    """Return the results as a page."""
    whole, task = result["seeds"], task_of(result)
    told = f"{{:.{task.digits}f}}".format
    lines = [
        f"# World Models on {task.title}", "",
        f"Made by `{result['command']}` at {result['commit']}, {result['hardware']}.",
        f"A core evaluates {speed(result):.0f} candidates per second, each in one dream of at most "
        f"{result.get('horizon', 300)} steps.",
        f"Controllers are evolved in dreams alone; V and M saw {int(result['frames']):,} frames of "
        f"{task.seen}. Means over {EPISODES} real episodes of {task.steps} steps.", "",
        "| seed | real return | deviation | dreamt return | seconds | CPU seconds |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for seed, r in whole.items():
        lines.append(
            f"| {seed} | {r['real']['return']:.1f} | {r['real']['return_std']:.1f} "
            f"| {r['dream']:.1f} | {r['seconds']:.0f} | {_rounded(r.get('cpu_seconds'))} |"
        )
    lines += ["", *_beside(result), "", f"![temperature]({task.results}.png)", "",
        *_heated(result),
        "| temperature | real returns | mean | dreamt returns | mean |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for heat in sorted(result["temperatures"], key=float):
        runs = result["temperatures"][heat]
        cells = [[r["real"]["return"] for r in runs], [r["dream"] for r in runs]]
        texts = [f"{', '.join(map(told, c))} | {told(np.mean(c))}" for c in cells]
        lines.append(f"| {heat} | {' | '.join(texts)} |")
    lines += ["", result["note"]] if "note" in result else []
    return "\n".join(lines) + "\n"


def _beside(result: dict[str, Any]) -> list[str]:
    """Return what is told beside the dreams: chance, and the search in the environment."""
    lines = [
        f"Uniformly random actions: {', '.join(f'{x:.1f}' for x in result['random_actions'])}."
    ]
    if chance := result.get("random_controllers"):
        each = ", ".join(
            f"{np.mean(v):.1f} ({min(v):.0f} to {max(v):.0f})" for v in chance.values()
        )
        lines += ["", f"{CHANCE} random controllers per seed, as the search first draws them, mean "
                  f"and range over {CHANCE_EPISODES} episodes of each: {each}."]  # fmt: skip
    if real := result.get("in_the_environment"):
        rate = np.median([r["evaluations_per_s"] for r in real.values()])
        scores = ", ".join(f"{r['real']['return']:.0f}" for r in real.values())
        frames = next(iter(real.values()))["frames"]
        lines += ["", f"Evolved in the environment, on the same V and M, for {frames:,} frames: "
                  f"{scores}. A core evaluates {rate:.0f} candidates per second there, each in one "
                  "episode of at most 500 steps."]  # fmt: skip
    return lines


def _heated(result: dict[str, Any]) -> list[str]:
    """Return which seeds were tried at other temperatures, unless it was all of them."""
    warm = [*map(str, result.get("heated", result["seeds"]))]
    return [] if warm == [*result["seeds"]] else [f"Seeds {', '.join(warm)}:", ""]


def _rounded(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--experiment", choices=TASKS, default=CARTPOLE)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--temperatures", type=float, nargs="*", default=TEMPERATURES)
    parser.add_argument(
        "--heated", type=int, nargs="*", help="seeds of the temperatures, if not all"
    )
    parser.add_argument("--jobs", type=int, default=1, help="seeds trained at the same time")
    parser.add_argument("--draw", action="store_true")
    parser.add_argument("overrides", nargs="*", default=[], help="options of the curriculum")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of what is written")
    options = parser.parse_intermixed_args()
    options.out.mkdir(parents=True, exist_ok=True)
    name = TASKS[options.experiment].results
    path = options.out / f"{name}.json"
    if not options.draw:
        result = record(options)
        path.write_text(json.dumps(result, indent=1) + "\n")
    result = json.loads(path.read_text())
    draw(result, options.out)
    (options.out / f"{name}.md").write_text(page(result))
    print(page(result))


if __name__ == "__main__":
    main()
