"""Gymnasium's MuJoCo tasks (v5), from states, from pixels, or from both."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from dreamlab.core.errors import require
from dreamlab.core.limits import Side
from dreamlab.envs.rendering import draw_fast, setup_gl, share_context
from dreamlab.envs.suites.gym import make as make_gym
from dreamlab.envs.wrappers import resize

Info = dict[str, Any]
RENDER_SIZE = 480  # of videos, where the observation itself is not drawn


class Pixels(gym.Wrapper[Any, Any, Any, Any]):
    """Adds an image of the scene to the state, or shows the image alone."""

    def __init__(self, env: gym.Env[Any, Any], size: tuple[int, int], keep_state: bool) -> None:
        super().__init__(env)
        self.size, self.keep_state = size, keep_state
        self.image = np.zeros((*size, 3), np.uint8)
        env.unwrapped.drawing = True  # type: ignore[attr-defined]
        image = spaces.Box(0, 255, self.image.shape, np.uint8)
        # The default camera looks at where the model is when it is first drawn: let that be here.
        env.reset(seed=0)
        env.render()
        both = spaces.Dict({"state": env.observation_space, "image": image})
        self.observation_space = both if keep_state else image

    def _obs(self, state: Any, last: bool) -> Any:
        if self.env.unwrapped.drawing or last:  # type: ignore[attr-defined]
            frame = np.asarray(self.env.render(), np.uint8)
            self.image = frame if frame.shape[:2] == self.size else resize(frame, self.size)
        return {"state": state, "image": self.image} if self.keep_state else self.image

    def reset(self, **kwargs: Any) -> tuple[Any, Info]:
        state, info = self.env.reset(**kwargs)
        return self._obs(state, last=False), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Info]:
        state, reward, terminated, truncated, info = self.env.step(action)
        obs = self._obs(state, last=bool(terminated or truncated))
        return obs, reward, terminated, truncated, info


def make(
    task: str,
    obs: Literal["state", "vision", "both"] = "state",
    size: tuple[Side, Side] = (64, 64),
    camera: str = "track",
    fast_render: bool = False,
    **options: Any,
) -> gym.Env[Any, Any]:
    """Return a task by its id, e.g. `HalfCheetah-v5`; other options go to the environment.

    `camera` is the name of one in the model; where there is none of that name (Reacher, Pusher)
    the default view is drawn.
    """
    pixels = obs != "state"
    setup_gl(required=pixels)
    mujoco = require("mujoco", "mujoco")
    height, width = size if pixels else (RENDER_SIZE, RENDER_SIZE)
    env = share_context(make_gym(task, width=width, height=height, **options))
    base: Any = env.unwrapped
    number = mujoco.mj_name2id(base.model, mujoco.mjtObj.mjOBJ_CAMERA, camera)
    if number >= 0:
        # Gymnasium 1.4 draws from a camera that stands still, and the agent walks out of view.
        base.mujoco_renderer.camera_id = number
    if fast_render:
        draw_fast(base.model)
    return Pixels(env, size, keep_state=obs == "both") if pixels else env
