"""LocoNav, as in DreamerV3: an ant finds its way through a maze (dm_control's locomotion)."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from dreamlab.core.errors import ConfigError, require, unknown
from dreamlab.core.limits import Positive
from dreamlab.envs.rendering import setup_gl

Info = dict[str, Any]

# Rooms of three by three cells: P is the start, G the goal, # is solid.
MAZES = {
    "maze_s": ("##G", "P.."),
    "maze_m": ("G..", "##.", "P.."),
    "maze_l": ("G..#", "##..", "P#..", "...#"),
}
TASKS = {f"ant_{name}": rows for name, rows in MAZES.items()}
COLORS = (
    (0.9, 0.3, 0.2), (0.2, 0.6, 0.3), (0.2, 0.4, 0.9), (0.9, 0.8, 0.2), (0.6, 0.3, 0.7),
    (0.2, 0.7, 0.8), (0.9, 0.5, 0.1), (0.5, 0.5, 0.5), (0.9, 0.6, 0.7),
)  # fmt: skip
CAMERA = "walker/egocentric_camera"


def layout(rows: tuple[str, ...]) -> str:
    """Return a maze cell by cell: rooms with walls around them, open where two rooms meet."""
    wide = [f"#{row}#" for row in ("#" * len(rows[0]), *rows, "#" * len(rows[0]))]
    grid = np.full((4 * len(rows) + 1, 4 * len(rows[0]) + 1), " ")
    for y, x in np.ndindex(grid.shape):
        # the one to four rooms that this cell lies in or between
        near = {wide[j][i] for j in {(y + 3) // 4, y // 4 + 1} for i in {(x + 3) // 4, x // 4 + 1}}
        if "#" in near:  # a wall, in the color of its region
            grid[y, x] = str(1 + (3 * (y // 5) + x // 5) % len(COLORS))
    for j, row in enumerate(rows):
        for i, room in enumerate(row):
            if room in "PG":
                grid[4 * j + 2, 4 * i + 2] = room
    return "".join("".join(line) + "\n" for line in grid)


class LocoNav(gym.Env[Any, Any]):
    """Rewards with 1 for every step since the goal was touched. Nothing terminates it but time.

    The ant feels its joints and sees through a camera on its back. The cells it came through are
    counted in `log/coverage`.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(self, env: Any, walker: Any) -> None:
        self.env, self.walker = env, walker
        spec, action = env.observation_spec(), env.action_spec()
        self.action_space = spaces.Box(
            action.minimum.astype(np.float32), action.maximum.astype(np.float32), dtype=np.float32
        )
        self.names = {k: k.replace("/", "_") for k, s in spec.items() if 0 not in s.shape}
        found: dict[str, spaces.Space[Any]] = {
            short: spaces.Box(0, 255, spec[name].shape, np.uint8)
            if name == CAMERA
            else spaces.Box(-np.inf, np.inf, spec[name].shape or (1,), np.float32)
            for name, short in self.names.items()
        }
        self.observation_space = spaces.Dict(found)
        self.visited: set[tuple[int, ...]] = set()

    def _obs(self, step: Any) -> dict[str, Any]:
        place = self.walker.get_pose(self.env.physics)[0][:2]
        self.visited.add(tuple(np.round(place).astype(int).tolist()))
        return {
            short: np.array(step.observation[name], np.uint8 if name == CAMERA else np.float32)
            if step.observation[name].ndim
            else np.array([step.observation[name]], np.float32)
            for name, short in self.names.items()
        }

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        if seed is not None:
            self.env._random_state.seed(seed)
        self.visited = set()
        return self._obs(self.env.reset()), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        step = self.env.step(action)
        obs = self._obs(step)
        terminated = bool(step.last() and step.discount == 0)
        info = {"log/coverage": float(len(self.visited))}
        truncated = bool(step.last() and not terminated)
        return obs, float(step.reward or 0.0), terminated, truncated, info

    def render(self) -> Any:
        return self.env.physics.render(240, 320, camera_id="top_camera")

    def close(self) -> None:
        self.env.close()


def _arena(rows: tuple[str, ...]) -> Any:
    """Return the maze with walls of one color per region, for orientation."""
    mjcf = require("dm_control.mjcf", "dmc")
    textures = require("dm_control.locomotion.arenas.labmaze_textures", "dmc")
    mazes = require("dm_control.locomotion.arenas.mazes", "dmc")

    class Paint(textures.WallTextures):
        def _build(self, color: tuple[float, float, float], name: str) -> None:
            self._mjcf_root = mjcf.RootElement(model=name)
            options = {"type": "2d", "builtin": "flat", "width": 100, "height": 100}
            texture = self._mjcf_root.asset.add("texture", name="wall", rgb1=color, **options)
            self._textures = [texture]

    paints = {str(i + 1): Paint(color, f"wall_{i + 1}") for i, color in enumerate(COLORS)}
    maze = require("labmaze", "dmc").FixedMazeWithRandomGoals(
        entity_layer=layout(rows),
        num_spawns=1,
        num_objects=1,
        random_state=np.random.RandomState(0),
    )
    return mazes.MazeWithTargets(maze, xy_scale=1.2, z_height=2.0, wall_textures=paints)


def _task(walker: Any, arena: Any) -> Any:
    """Return the task: the goal, once touched, stays so."""
    goals = require("dm_control.locomotion.tasks.random_goal_maze", "dmc")
    spheres = require("dm_control.locomotion.props.target_sphere", "dmc")

    class Stay(goals.RepeatSingleGoalMaze):
        def after_step(self, physics: Any, random_state: Any) -> None:
            goals.NullGoalMaze.after_step(self, physics, random_state)
            self._rewarded_this_step = self._target.activated

    return Stay(
        walker,
        arena,
        spheres.TargetSphere(radius=1.2, height_above_ground=0.0),
        aliveness_threshold=-1.0,  # lying on its back does not end the episode
        contact_termination=False,
        physics_timestep=0.005,
        control_timestep=0.02,
    )


def make(task: str = "ant_maze_m", seconds: Positive = 60.0) -> gym.Env[Any, Any]:
    """Return the ant in a maze: `ant_maze_s`, `ant_maze_m` or `ant_maze_l`; 50 steps a second."""
    if task not in TASKS:
        raise ConfigError(unknown("task of loconav", task, TASKS, "env.id"))
    setup_gl()
    composer = require("dm_control.composer", "dmc")
    walker = require("dm_control.locomotion.walkers.ant", "dmc").Ant()
    env = composer.Environment(
        _task(walker, _arena(TASKS[task])),
        time_limit=seconds,
        random_state=np.random.RandomState(0),
        strip_singleton_obs_buffer_dim=True,
    )
    return LocoNav(env, walker)
