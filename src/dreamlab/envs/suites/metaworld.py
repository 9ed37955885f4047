"""Meta-World (Yu et al. 2019): fifty tasks of one robot arm."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from dreamlab.core.errors import ConfigError, unknown
from dreamlab.core.limits import Side
from dreamlab.envs.compat import need
from dreamlab.envs.rendering import draw_fast, setup_gl, share_context

Info = dict[str, Any]


class MetaWorld(gym.Wrapper[Any, Any, Any, Any]):
    """One task with its goal in sight, its start and goal drawn from the seed of each episode.

    It never terminates; 500 steps truncate. Success at any time in the episode counts.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        base: Any = env.unwrapped
        base._freeze_rand_vec, base.seeded_rand_vec = False, True
        space = env.observation_space
        # Declared in float64 with bounds that its own observations break.
        self.observation_space = spaces.Box(-np.inf, np.inf, space.shape, np.float32)
        self.success = False

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        if seed is not None:
            self.unwrapped.seed(seed)  # type: ignore[attr-defined]
        self.success = False
        obs, info = self.env.reset(options=options)
        return np.asarray(obs, np.float32), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        obs, reward, _, truncated, info = self.env.step(action)
        self.success = self.success or bool(info["success"])
        told = {"success": self.success}
        return np.asarray(obs, np.float32), float(reward), False, bool(truncated), told

    def render(self) -> Any:
        # Some of its cameras hang upside down.
        base: Any = self.unwrapped
        up = base.data.cam_xmat[base.mujoco_renderer.camera_id].reshape(3, 3)[2, 1]
        frame: Any = self.env.render()
        return frame[::-1, ::-1] if up < -0.3 else frame


def make(
    task: str,
    obs: Literal["state", "vision", "both"] = "state",
    size: tuple[Side, Side] = (64, 64),
    camera: str = "corner2",
    fast_render: bool = False,
) -> gym.Env[Any, Any]:
    """Return a task by name, e.g. `reach-v3`."""
    from dreamlab.envs.suites.mujoco import RENDER_SIZE, Pixels

    pixels = obs != "state"
    setup_gl(required=pixels)
    known = need("metaworld", "metaworld").ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE
    name = f"{task}-goal-observable"
    if name not in known:
        names = [n.removesuffix("-goal-observable") for n in known]
        raise ConfigError(unknown("task of metaworld", task, names, "env.id"))
    # With a seed it leaves the global generator as it was.
    base = known[name](seed=0, render_mode="rgb_array")
    renderer = base.mujoco_renderer
    renderer.height, renderer.width = size if pixels else (RENDER_SIZE, RENDER_SIZE)
    renderer.camera_id = base.model.camera(camera).id
    if fast_render:
        draw_fast(base.model)
    env = MetaWorld(share_context(base))
    return Pixels(env, size, keep_state=obs == "both") if pixels else env
