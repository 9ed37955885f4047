"""Demonstrations of PushT by a scripted expert, as a LeRobot data set.

    python benchmarks/pusht_demos.py FOLDER [--episodes 200] [--seed 0]

The expert pushes as a hand does. It tries short straight pushes at points around the block in a
second simulator, takes the one that brings the block's corners nearest to their places for the way
it costs, walks the disc around the block to where that push begins, and pushes. Only episodes that
end with success are kept. Starts are those of the environment's own seeds from `--seed` on;
evaluations use others.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from dreamlab.data.datasets.lerobot_write import LeRobotWriter, Recording
from dreamlab.data.datasets.table import Feature
from dreamlab.envs.suites import pusht

Array = np.ndarray
SUBSTEPS, KP, KV, DT = 10, 100.0, 20.0, 0.01
RADIUS, LOW, HIGH = 15.0, 22.0, 490.0
"""The disc's radius, and where its centre may be."""
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
    """How the expert pushes and walks."""

    spacing: float = 10.0
    """Between points of the outline at which a push may begin."""
    gap: float = 4.0
    """Between disc and block before a push."""
    clearance: float = 9.0
    """Between disc and block on the way around it."""
    tilts: tuple[float, ...] = (-0.5, 0.0, 0.5)
    """Angles of a push to the outline's normal."""
    lengths: tuple[float, ...] = (8.0, 20.0, 45.0)
    walk: float = 24.0
    push: float = 14.0
    """Pixels that a target moves in a decision."""
    way: float = 0.04
    """What a pixel of the way to a push costs, in pixels of the corners' distance."""
    near: float = 40.0
    """Corners' distance below which a way costs less, as there is less to gain."""


class Model:
    """A second world, to try pushes in."""

    def __init__(self) -> None:
        self.env: Any = pusht.make().unwrapped
        self.env.reset(seed=0)
        shapes = self.env.block.shapes
        self.corners = [v for shape in shapes for v in shape.get_vertices()]
        goal = self.env.get_goal_pose_body(self.env.goal_pose)
        self.places = np.array([goal.local_to_world(v) for v in self.corners])

    def put(self, disc: Array, block: Any) -> None:
        """Set the disc down at rest, and the block where the real one is."""
        ours = self.env.block
        ours.angle, ours.position = block.angle, block.position
        ours.velocity, ours.angular_velocity = (0.0, 0.0), 0.0
        self.env.agent.position, self.env.agent.velocity = tuple(disc), (0.0, 0.0)
        self.env.space.reindex_shapes_for_body(ours)
        self.env.space.reindex_shapes_for_body(self.env.agent)

    def step(self, target: Array) -> None:
        """Move the disc towards a target for a tenth of a second."""
        agent = self.env.agent
        for _ in range(SUBSTEPS):
            (x, y), (u, v) = agent.position, agent.velocity
            ax, ay = KP * (target[0] - x) - KV * u, KP * (target[1] - y) - KV * v
            agent.velocity = (u + DT * ax, v + DT * ay)
            self.env.space.step(DT)

    def far(self) -> float:
        """Return how far the corners are from their places."""
        corners = np.array([self.env.block.local_to_world(v) for v in self.corners])
        return float(np.sqrt(((corners - self.places) ** 2).sum(-1)).mean())


class Outline:
    """The block's outline where it lies: how far a point is, and rings around it."""

    def __init__(self, block: Any) -> None:
        bar, stem = sorted(
            (np.array(s.get_vertices()) for s in block.shapes), key=lambda v: -np.ptp(v[:, 0])
        )
        (x0, y0), (x1, y1) = bar.min(0), bar.max(0)
        (s0, _), (s1, end) = stem.min(0), stem.max(0)
        local = [(x0, y0), (x1, y0), (x1, y1), (s1, y1), (s1, end), (s0, end), (s0, y1), (x0, y1)]
        self.points = np.array([block.local_to_world(p) for p in local])
        self.next = np.roll(self.points, -1, 0)
        along = self.next - self.points
        self.size = np.linalg.norm(along, axis=1)
        self.along = along / self.size[:, None]
        turn = along[0, 0] * along[1, 1] - along[0, 1] * along[1, 0]
        self.normal = np.stack([self.along[:, 1], -self.along[:, 0]], -1) * np.sign(turn)

    def distance(self, points: Array) -> Array:
        """Return how far points are from the outline, negative inside."""
        ahead = ((points[:, None] - self.points) * self.along).sum(-1).clip(0, self.size)
        foot = self.points + ahead[..., None] * self.along
        far = np.linalg.norm(points[:, None] - foot, axis=-1).min(1)
        return np.where(self._inside(points), -far, far)

    def _inside(self, points: Array) -> Array:
        (x0, y0), (x1, y1) = self.points.T, self.next.T
        x, y = points[:, :1], points[:, 1:]
        spans = (y0 > y) != (y1 > y)
        with np.errstate(divide="ignore", invalid="ignore"):
            cross = x < (x1 - x0) * (y - y0) / (y1 - y0) + x0
        return (spans & cross).sum(1) % 2 == 1

    def contacts(self, spacing: float) -> tuple[Array, Array]:
        """Return points on the outline and the way out of the block at each."""
        points, out = [], []
        for start, along, size, normal in zip(
            self.points, self.along, self.size, self.normal, strict=True
        ):
            count = max(2, round(size / spacing))
            share = (np.arange(count) + 0.5) / count
            points.append(start + share[:, None] * size * along)
            out.append(np.tile(normal, (count, 1)))
        return np.concatenate(points), np.concatenate(out)

    def ring(self, distance: float) -> Array:
        """Return points around the block, this far from it, in order."""
        corner = np.linspace(0, 1, 5)[:, None]
        before = np.roll(self.normal, 1, 0)
        found = []
        for point, first, second, along, size in zip(
            self.points, before, self.normal, self.along, self.size, strict=True
        ):
            round_it = first + corner * (second - first)
            round_it /= np.linalg.norm(round_it, axis=1, keepdims=True)
            edge = point + along * np.linspace(0, size, 6)[1:-1, None] + distance * second
            found += [point + distance * round_it, edge]
        ring = np.concatenate(found)
        return ring[self.distance(ring) > distance - 1]


@dataclass(frozen=True)
class Push:
    """A straight push."""

    start: Array
    end: Array
    gain: float


class Expert:
    """Chooses a push, walks to it, pushes, chooses the next."""

    def __init__(self, search: Search) -> None:
        self.search, self.model = search, Model()

    def targets(self, env: Any) -> list[Array]:
        """Return where the disc shall go until the next choice."""
        s, disc = self.search, np.array(env.agent.position)
        outline = Outline(env.block)
        push = self.best(env, outline, disc)
        way = [] if push.start is disc else self.way(outline, disc, push.start)
        walked = _moved([disc, *way], s.walk) if way else []
        pushed = _moved([push.start, push.end], s.push)
        hold = [push.end] if np.linalg.norm(push.end - push.start) < 25 else []
        return [*walked, *walked[-1:], *pushed, *hold]

    def best(self, env: Any, outline: Outline, disc: Array) -> Push:
        """Return the push that gains most for its way."""
        s = self.search
        now = self._far(env, disc)
        points, out = outline.contacts(s.spacing)
        starts = points + out * (RADIUS + s.gap)
        free = outline.distance(starts) > RADIUS + s.gap - 1
        free &= ((starts > LOW) & (starts < HIGH)).all(1)
        tried = [
            (starts[i], _turned(-out[i], tilt)) for i in np.flatnonzero(free) for tilt in s.tilts
        ]  # fmt: skip
        angles = np.linspace(0, 2 * np.pi, 16, endpoint=False)
        tried += [(disc, np.array([np.cos(a), np.sin(a)])) for a in angles]
        found = [self._try(env, *t, now, disc) for t in tried]
        return max(found, key=lambda p: p.gain)

    def _far(self, env: Any, disc: Array) -> float:
        self.model.put(disc, env.block)
        return self.model.far()

    def _try(self, env: Any, start: Array, direction: Array, now: float, disc: Array) -> Push:
        """Return the best length of a push, with what it gains."""
        s = self.search
        self.model.put(start, env.block)
        straight = float(np.linalg.norm(start - disc))
        gap = s.gap if straight else 0.0
        best, at = Push(start, start, -np.inf), start
        for length in s.lengths:
            end = (start + direction * (length + gap)).clip(LOW - 6, HIGH + 6)
            for target in _moved([at, end], s.push):
                self.model.step(target)
            at = end
            gain = now - self.model.far() - s.way * straight * min(1.0, now / s.near)
            if gain > best.gain:
                best = Push(start, end, gain)
        return best

    def way(self, outline: Outline, disc: Array, goal: Array) -> list[Array]:
        """Return corners of a way from the disc to a point, around the block."""
        if _clear(outline, disc, goal, RADIUS + 2):
            return [goal]
        ring = outline.ring(RADIUS + self.search.clearance)
        first, last = (int(np.linalg.norm(ring - p, axis=1).argmin()) for p in (disc, goal))
        ways = []
        for step in (1, -1):
            count = (step * (last - first)) % len(ring) + 1
            way = ring[(first + step * np.arange(count)) % len(ring)]
            outside = ((way < LOW - 6) | (way > HIGH + 6)).any()
            length = np.linalg.norm(np.diff(way, axis=0), axis=1).sum()
            ways.append((length + 1e4 * outside, way))
        way = min(ways, key=lambda w: w[0])[1].clip(LOW - 6, HIGH + 6)
        return [*_shortened(outline, disc, way), goal]


def _shortened(outline: Outline, disc: Array, way: Array) -> list[Array]:
    """Leave out what can be cut short."""
    out, here, i = [], disc, 0
    while i < len(way):
        seen = [j for j in range(i, len(way)) if _clear(outline, here, way[j], RADIUS + 4)]
        i = max(seen, default=i)
        here = way[i]
        out.append(here)
        i += 1
    return out


def _clear(outline: Outline, a: Array, b: Array, room: float) -> bool:
    """Tell whether the disc can go straight; it may begin nearer to the block than `room`."""
    share = np.linspace(0, 1, 12)[:, None]
    far = outline.distance(a + share * (b - a))
    return bool((far[1:] >= np.minimum(room, far[0] + 2 * np.arange(1, 12))).all())


def _turned(v: Array, angle: float) -> Array:
    c, s = np.cos(angle), np.sin(angle)
    return np.array([c * v[0] - s * v[1], s * v[0] + c * v[1]])


def _moved(corners: list[Array], speed: float) -> list[Array]:
    """Return points along straight lines, evenly spaced on each."""
    out = []
    for a, b in pairwise(corners):
        count = max(1, int(np.ceil(np.linalg.norm(b - a) / speed)))
        out += [a + (b - a) * k / count for k in range(1, count + 1)]
    return out


def episode(seed: int, search: Search) -> dict[str, Array] | None:
    """Return the columns of an episode, or None if it did not succeed."""
    env = pusht.make(obs="keypoints")
    obs, _ = env.reset(seed=seed)
    return played(env, obs, Expert(search))


def played(env: Any, obs: dict[str, Array], expert: Expert) -> dict[str, Array] | None:
    """Play on from an observation; return the columns if that ends with success."""
    rows: list[tuple[Any, ...]] = []
    while True:
        for target in expert.targets(env.unwrapped):
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
