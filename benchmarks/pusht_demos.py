"""Demonstrations of PushT by a scripted expert, as a LeRobot data set.

    python benchmarks/pusht_demos.py FOLDER [--episodes 2000] [--seed 0] [--obs pixels]

The expert pushes as a hand does. It tries straight pushes at points around the block in a second
simulator, takes the one that brings the block's corners nearest to their places for the way it
costs, walks the disc around the block to where that push begins, and pushes. Only episodes that end
with success are kept, each as it was and as it is seen in a mirror. Starts are those of the
environment's own seeds from `--seed` on; evaluations use others.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pymunk

from dreamlab.data.datasets.lerobot_write import LeRobotWriter, Recording
from dreamlab.data.datasets.table import Feature
from dreamlab.envs.suites import pusht
from dreamlab.envs.suites.pusht import WORLD

Array = np.ndarray
Kind = Literal["keypoints", "pixels"]
Place = tuple[float, float]
Pose = tuple[Place, float]
SUBSTEPS, KP, KV, DT = 10, 100.0, 20.0, 0.01
RADIUS, LOW, HIGH = 15.0, 22.0, 490.0
"""The disc's radius, and where its centre may be."""
KEYPOINTS, IMAGE = "observation.environment_state", "observation.image"
FEATURES = {
    "observation.state": Feature("float32", (2,)),
    KEYPOINTS: Feature("float32", (16,)),
    "action": Feature("float32", (2,), low=(0.0, 0.0), high=(512.0, 512.0)),
    "next.reward": Feature("float32", (1,)),
    "next.done": Feature("bool", (1,)),
    "next.success": Feature("bool", (1,)),
}
FILMED = {k: v for k, v in FEATURES.items() if k != KEYPOINTS}
FILMED[IMAGE] = Feature("video", (96, 96, 3))


@dataclass(frozen=True)
class Search:
    """How the expert pushes and walks."""

    spacing: float = 12.0
    """Between points of the outline at which a push may begin."""
    gap: float = 4.0
    """Between disc and block before a push."""
    clearance: float = 9.0
    """Between disc and block on the way around it."""
    lengths: tuple[float, ...] = (3.0, 8.0, 20.0, 40.0, 70.0, 110.0)
    walk: float = 24.0
    push: float = 14.0
    """Pixels that a target moves in a decision."""
    stop: int = 1
    """Decisions for which a target stays where a push begins."""
    hold: int = 2
    """Decisions for which a target stays at the end of a push: the disc lags behind it."""
    way: float = 0.04
    """What a pixel of the way to a push costs, in pixels of the corners' distance."""
    near: float = 40.0
    """Corners' distance below which a way costs less, as there is less to gain."""


class Model:
    """A second world, to try pushes in: the environment's, without its count of contacts."""

    def __init__(self) -> None:
        made: Any = pusht.make().unwrapped
        made.reset(seed=0)
        self.space = pymunk.Space()
        self.space.damping = 0.0
        ends = [(5, 5), (506, 5), (506, 506), (5, 506), (5, 5)]
        self.space.add(*(made.add_segment(self.space, a, b, 2) for a, b in pairwise(ends)))
        self.disc = made.add_circle(self.space, (256, 400), 15)
        self.block, shapes = made.add_tee(self.space, (256, 300), 0)
        self.corners = np.array([v for shape in shapes for v in shape.get_vertices()])
        goal = made.get_goal_pose_body(made.goal_pose)
        self.places = np.array([goal.local_to_world(v) for v in self.corners.tolist()])
        self.at, self.speed = (0.0, 0.0), (0.0, 0.0)

    def put(self, disc: Place, block: Pose, speed: Place = (0.0, 0.0)) -> None:
        """Set the disc and the block down."""
        # the angle first: it turns the block about its centre of mass, which is not its origin
        self.block.angle, self.block.position, self.disc.position = block[1], block[0], disc
        self.block.velocity, self.block.angular_velocity = (0.0, 0.0), 0.0
        self.at, self.speed = disc, speed
        self.space.reindex_shapes_for_body(self.block)
        self.space.reindex_shapes_for_body(self.disc)

    def step(self, target: Place) -> None:
        """Move the disc towards a target for a tenth of a second; no contact moves the disc."""
        (tx, ty), (x, y), (u, v) = target, self.at, self.speed
        for _ in range(SUBSTEPS):
            u, v = u + DT * (KP * (tx - x) - KV * u), v + DT * (KP * (ty - y) - KV * v)
            self.disc.velocity = (u, v)
            self.space.step(DT)
            x, y = x + DT * u, y + DT * v
        self.at, self.speed = (x, y), (u, v)

    def held(self, target: Place, hold: int) -> float:
        """Return how far the corners will be when the disc has come to rest; go back to now."""
        disc, speed, block = self.at, self.speed, pose(self.block)
        for _ in range(hold):
            self.step(target)
        far = self.far()
        self.put(disc, block, speed)
        return far

    def far(self) -> float:
        """Return how far the corners are from their places."""
        angle, origin = self.block.angle, np.array(self.block.local_to_world((0, 0)))
        c, s = np.cos(angle), np.sin(angle)
        off = self.corners @ np.array([[c, s], [-s, c]]) + origin - self.places
        return float(np.sqrt((off**2).sum(-1)).mean())


def pose(block: Any) -> Pose:
    """Return where a block lies."""
    return tuple(block.position), block.angle


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
        push = self.best(pose(env.block), outline, disc)
        way = [] if push.start is disc else self.way(outline, disc, push.start)
        walked = _moved([disc, *way], s.walk) if way else []
        pushed = _moved([push.start, push.end], s.push)
        return [*walked, *walked[-1:] * s.stop, *pushed, *[push.end] * s.hold]

    def best(self, block: Pose, outline: Outline, disc: Array) -> Push:
        """Return the push that gains most for its way."""
        s = self.search
        self.model.put(_place(disc), block)
        now = self.model.far()
        points, out = outline.contacts(s.spacing)
        starts = points + out * (RADIUS + s.gap)
        free = outline.distance(starts) > RADIUS + s.gap - 1
        free &= ((starts > LOW) & (starts < HIGH)).all(1)
        tried = [(starts[i], -out[i]) for i in np.flatnonzero(free)]
        angles = np.linspace(0, 2 * np.pi, 16, endpoint=False)
        tried += [(disc, np.array([np.cos(a), np.sin(a)])) for a in angles]
        found = [self._try(block, *t, now, disc) for t in tried]
        return max(found, key=lambda p: p.gain)

    def _try(self, block: Pose, start: Array, direction: Array, now: float, disc: Array) -> Push:
        """Return the best length of a push, with what it gains."""
        s = self.search
        self.model.put(_place(start), block)
        straight = float(np.linalg.norm(start - disc))
        gap = s.gap if straight else 0.0
        cost = s.way * straight * min(1.0, now / s.near)
        best, at = Push(start, start, -np.inf), start
        for length in s.lengths:
            end = (start + direction * (length + gap)).clip(LOW - 6, HIGH + 6)
            for target in _moved([at, end], s.push):
                self.model.step(_place(target))
            at = end
            gain = now - self.model.held(_place(end), s.hold) - cost
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


def _place(point: Array) -> Place:
    return float(point[0]), float(point[1])


def _moved(corners: list[Array], speed: float) -> list[Array]:
    """Return points along straight lines, evenly spaced on each."""
    out = []
    for a, b in pairwise(corners):
        count = max(1, int(np.ceil(np.linalg.norm(b - a) / speed)))
        out += [a + (b - a) * k / count for k in range(1, count + 1)]
    return out


def episode(seed: int, search: Search, kind: Kind = "keypoints") -> dict[str, Array] | None:
    """Return the columns of an episode, or None if it did not succeed.

    Before every other one the disc is knocked about, so that the expert also shows how to go on
    from where a clone may get to by mistake.
    """
    env = pusht.make(obs=kind)
    obs, _ = env.reset(seed=seed)
    if seed % 2:
        obs = knocked(env, obs, np.random.default_rng(seed))
    return played(env, obs, Expert(search))


def knocked(env: Any, obs: dict[str, Array], rng: np.random.Generator) -> dict[str, Array]:
    """Send the disc to a few places near the block; return what is seen then."""
    for _ in range(rng.integers(1, 4)):
        target = np.array(env.unwrapped.block.position) + rng.normal(0, 50, 2)
        for _ in range(5):
            obs = env.step(target.clip(LOW, HIGH).astype(np.float32))[0]
    return obs


def played(env: Any, obs: dict[str, Array], expert: Expert) -> dict[str, Array] | None:
    """Play on from an observation; return the columns if that ends with success."""
    rows: list[tuple[Any, ...]] = []
    while True:
        for target in expert.targets(env.unwrapped):
            action = target.astype(np.float32)
            after, reward, terminated, truncated, info = env.step(action)
            rows.append((obs, action, reward, terminated))
            obs = after
            if terminated or truncated:
                return _columns(rows) if info["success"] else None


def _columns(rows: list[tuple[Any, ...]]) -> dict[str, Array]:
    obs, action, reward, done = zip(*rows, strict=True)
    columns = {f"observation.{k}": np.stack([o[k] for o in obs]) for k in obs[0]}
    columns |= {"action": np.stack(action), "next.reward": np.array(reward, np.float32)[:, None]}
    done = np.array(done)[:, None]
    return {**columns, "next.done": done, "next.success": done}


class Mirror:
    """The world seen in a mirror along the diagonal on which block and place are symmetric."""

    def __init__(self) -> None:
        corners = Model().corners
        far = np.abs(corners[:, None] * [-1, 1] - corners).sum(-1)
        self.order = far.argmin(0)
        """Which corner is seen where each corner is."""

    def __call__(self, columns: dict[str, Array]) -> dict[str, Array]:
        """Return an episode as it is seen in the mirror."""
        out = dict(columns)
        for name in ("observation.state", "action"):
            out[name] = WORLD - columns[name][:, ::-1]
        if KEYPOINTS in columns:
            corners = columns[KEYPOINTS].reshape(-1, 8, 2)[:, self.order, ::-1]
            out[KEYPOINTS] = (WORLD - corners).reshape(-1, 16)
        if IMAGE in columns:
            out[IMAGE] = columns[IMAGE][:, ::-1, ::-1].swapaxes(1, 2)
        return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--obs", choices=["keypoints", "pixels"], default="keypoints")
    args = parser.parse_args()
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    kept, tried, frames, begun, mirror = 0, 0, 0, time.process_time(), Mirror()
    features = FEATURES if args.obs == "keypoints" else FILMED
    with LeRobotWriter(args.folder, Recording(10.0, features, "pusht")) as writer:
        while kept < args.episodes:
            columns = episode(args.seed + tried, Search(), args.obs)
            tried += 1
            if columns is not None:
                for seen in (columns, mirror(columns)):
                    film = {k: seen.pop(k) for k in (IMAGE,) if k in seen}
                    writer.add(seen, film, "push the T onto its place")
                kept, frames = kept + 2, frames + 2 * len(columns["action"])
            if tried % 10 == 0:
                seconds = time.process_time() - begun
                print(f"{kept} of {tried} episodes, {frames} frames, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
