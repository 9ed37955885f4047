"""Demonstrations of PushT by a planning expert, as a LeRobot data set.

    python benchmarks/pusht_demos.py FOLDER [--episodes 200] [--seed 0]

The expert tries sequences of targets in a second simulator (cross-entropy method), rates them by
how far the block's corners end from their places, and executes the beginning of the best. Only
episodes that end with success are kept. Starts are those of the environment's own seeds from
`--seed` on; evaluations use others.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dreamlab.data.datasets.lerobot_write import LeRobotWriter, Recording
from dreamlab.data.datasets.table import Feature
from dreamlab.envs.suites import pusht

Array = np.ndarray
SUBSTEPS, KP, KV, DT = 10, 100.0, 20.0, 0.01
FEATURES = {
    "observation.state": Feature("float32", (2,)),
    "observation.environment_state": Feature("float32", (16,)),
    "action": Feature("float32", (2,), low=(0.0, 0.0), high=(512.0, 512.0)),
    "next.reward": Feature("float32", (1,)),
    "next.done": Feature("bool", (1,)),
    "next.success": Feature("bool", (1,)),
}


@dataclass(frozen=True)
class Search:
    """How the expert plans."""

    samples: int = 40
    elites: int = 6
    rounds: int = 3
    targets: int = 6
    hold: int = 2
    """Decisions that a target is kept."""
    execute: int = 2
    """Targets that are executed before the next plan."""
    spread: float = 70.0


class Model:
    """A second world, to try targets in."""

    def __init__(self) -> None:
        self.env: Any = pusht.make().unwrapped
        self.env.reset(seed=0)
        shapes = self.env.block.shapes
        self.corners = [v for shape in shapes for v in shape.get_vertices()]
        goal = self.env.get_goal_pose_body(self.env.goal_pose)
        self.places = np.array([goal.local_to_world(v) for v in self.corners])

    def copy(self, env: Any) -> None:
        """Take over where disc and block are, and how they move."""
        for theirs, ours in ((env.agent, self.env.agent), (env.block, self.env.block)):
            ours.angle = theirs.angle
            ours.position, ours.velocity = theirs.position, theirs.velocity
            ours.angular_velocity = theirs.angular_velocity

    def step(self, target: Array) -> None:
        """Move the disc towards a target for a tenth of a second."""
        agent = self.env.agent
        for _ in range(SUBSTEPS):
            (x, y), (u, v) = agent.position, agent.velocity
            ax, ay = KP * (target[0] - x) - KV * u, KP * (target[1] - y) - KV * v
            agent.velocity = (u + DT * ax, v + DT * ay)
            self.env.space.step(DT)

    def cost(self) -> tuple[float, float]:
        """Return how far the corners are from their places, and the disc from the block."""
        block = self.env.block
        corners = np.array([block.local_to_world(v) for v in self.corners])
        far = np.sqrt(((corners - self.places) ** 2).sum(-1)).mean()
        return float(far), float(np.hypot(*(np.array(self.env.agent.position) - corners.mean(0))))


class Expert:
    """Plans anew every few decisions, from where the last plan led."""

    def __init__(self, search: Search, seed: int) -> None:
        self.search, self.model, self.rng = search, Model(), np.random.default_rng(seed)
        self.mean: Array | None = None

    def plan(self, env: Any) -> Array:
        """Return the targets of the best sequence found."""
        s, agent = self.search, np.array(env.agent.position)
        mean = np.tile(agent, (s.targets, 1)) if self.mean is None else self.mean
        spread, best, least = np.full((s.targets, 2), s.spread), mean, np.inf
        for number in range(s.rounds):
            noise = self.rng.standard_normal((s.samples, s.targets, 2))
            tried = mean + spread * noise
            tried[0] = mean
            if number == 0:  # some straight ways: far from the block noise alone leads nowhere
                ways = self.rng.uniform(-150, 150, (s.samples // 5, 1, 2))
                tried[1 : 1 + len(ways)] = agent + ways * np.linspace(0.3, 1, s.targets)[:, None]
            tried = tried.clip(15, 497)
            costs = np.array([self.rate(env, targets) for targets in tried])
            order = costs.argsort()
            if costs[order[0]] < least:
                least, best = costs[order[0]], tried[order[0]]
            good = tried[order[: s.elites]]
            mean, spread = good.mean(0), good.std(0) + 8
        last = np.repeat(best[-1:], s.execute, 0)
        self.mean = np.concatenate([best[s.execute :], last])
        return best[: s.execute]

    def rate(self, env: Any, targets: Array) -> float:
        """Return how badly the block lies on the way and at the end."""
        self.model.copy(env)
        total, near = 0.0, 0.0
        for i, target in enumerate(targets):
            for _ in range(self.search.hold):
                self.model.step(target)
            far, near = self.model.cost()
            total += (1.5 if i == len(targets) - 1 else 0.3) * far
        return total + 0.03 * near


def episode(seed: int, search: Search) -> dict[str, Array] | None:
    """Return the columns of an episode, or None if it did not succeed."""
    env = pusht.make(obs="keypoints")
    obs, _ = env.reset(seed=seed)
    expert, rows = Expert(search, seed), []
    while True:
        for target in np.repeat(expert.plan(env.unwrapped), search.hold, 0):
            action = target.astype(np.float32)
            after, reward, terminated, truncated, info = env.step(action)
            rows.append((obs["state"], obs["environment_state"], action, reward, terminated))
            obs = after
            if terminated or truncated:
                return _columns(rows) if info["success"] else None


def _columns(rows: list[tuple[Any, ...]]) -> dict[str, Array]:
    state, corners, action, reward, done = (np.array(x) for x in zip(*rows, strict=True))
    names = list(FEATURES)
    values = (state, corners, action, reward[:, None], done[:, None], done[:, None])
    return {
        k: v.astype(FEATURES[k].dtype) for k, v in zip(names, values, strict=True)
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    kept, tried, frames, begun = 0, 0, 0, time.process_time()
    with LeRobotWriter(args.folder, Recording(10.0, FEATURES, "pusht")) as writer:
        while kept < args.episodes:
            columns = episode(args.seed + tried, Search())
            tried += 1
            if columns is not None:
                writer.add(columns, {}, "push the T onto its place")
                kept, frames = kept + 1, frames + len(columns["action"])
            if tried % 10 == 0:
                seconds = time.process_time() - begun
                print(f"{kept} of {tried} episodes, {frames} frames, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
