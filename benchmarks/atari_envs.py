"""Decisions per second of Atari games: ours one after another, in processes, and ALE's own vector.

    python benchmarks/atari_envs.py [--game pong] [--num-envs 8] [--seconds 5] [--rounds 3]

All show 64 x 64 colour pictures, repeat an action four times and are sticky. They are measured in
turns with random actions, and the median round counts. ALE's vector runs its games on threads and
cannot seed a single episode, on which exact resume stands: it is here for comparison.
Results go to results/atari_envs.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from ale_py.vector_env import AtariVectorEnv

from dreamlab.envs.vector import EnvConfig, Envs
from dreamlab.runs.git_state import git_state
from dreamlab.runs.run import hardware

RESULTS = Path(__file__).parent / "results" / "atari_envs.md"
SIDE = 64
Step = Callable[[np.ndarray], object]


def rate(step: Step, num_envs: int, actions: int, seconds: float) -> float:
    """Return decisions per second of all games together, with random actions."""
    rng = np.random.default_rng(0)
    done, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        step(rng.integers(0, actions, num_envs))
        done += num_envs
    return done / spent


def opened(game: str, num_envs: int) -> dict[str, tuple[Step, int]]:
    """Return how each kind advances its games, and how many actions there are."""
    found: dict[str, tuple[Step, int]] = {}
    for name, vector in (("ours, one after another", "sync"), ("ours, in processes", "async")):
        config = EnvConfig(game, "atari", num_envs=num_envs, vector=vector, size=(SIDE, SIDE))
        envs = Envs(config, seed=0)
        envs.reset()
        found[name] = (envs.step, int(envs.vec.single_action_space.n))
    for threads in (1, os.cpu_count() or 1):
        theirs = AtariVectorEnv(
            game, num_envs, num_threads=threads, img_height=SIDE, img_width=SIDE, grayscale=False,
            stack_num=1, repeat_action_probability=0.25, full_action_space=True,
            reward_clipping=False, use_fire_reset=False,
        )  # fmt: skip
        theirs.reset()
        found[f"ALE's vector, {threads} threads"] = (theirs.step, int(theirs.single_action_space.n))
    return found


def page(given: argparse.Namespace, rates: dict[str, list[float]]) -> str:
    """Return the rates as a page."""
    machine = hardware()
    words = f"--game {given.game} --num-envs {given.num_envs} --seconds {given.seconds:g}"
    lines = [
        "# Atari: decisions per second", "",
        f"`python benchmarks/atari_envs.py {words} --rounds {given.rounds} --record` at "
        f"{git_state().get('commit', '')[:10]}, {machine['cpu']}, {machine['cpus']} cores. "
        f"{given.num_envs} games of {given.game}, {SIDE} x {SIDE} in colour, four frames each "
        "decision; the median of the rounds (lowest to highest).", "",
        "| environments | decisions/s |", "|---|---|",
    ]  # fmt: skip
    for name, found in rates.items():
        middle = statistics.median(found)
        lines.append(f"| {name} | {middle:,.0f} ({min(found):,.0f} to {max(found):,.0f}) |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--game", default="pong")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--record", action="store_true")
    given = parser.parse_args()
    kinds = opened(given.game, given.num_envs)
    rates: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(given.rounds):
        for name, (step, actions) in kinds.items():
            rates[name].append(rate(step, given.num_envs, actions, given.seconds))
    text = page(given, rates)
    if given.record:
        RESULTS.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
