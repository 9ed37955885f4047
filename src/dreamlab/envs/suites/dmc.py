"""DeepMind Control Suite (Tassa et al. 2018), from joint states, from pixels, or from both."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from dreamlab.core.errors import ConfigError, require, unknown
from dreamlab.core.limits import Natural, Side
from dreamlab.envs.compat import give_numpy
from dreamlab.envs.rendering import draw_fast, setup_gl

Info = dict[str, Any]

CAMERAS = {"quadruped": 2}  # all other domains: camera 0
PROPRIO_18 = (
    *("acrobot_swingup", "ball_in_cup_catch", "cartpole_balance", "cartpole_balance_sparse"),
    *("cartpole_swingup", "cartpole_swingup_sparse", "cheetah_run", "finger_spin"),
    *("finger_turn_easy", "finger_turn_hard", "hopper_hop", "hopper_stand", "pendulum_swingup"),
    *("reacher_easy", "reacher_hard", "walker_run", "walker_stand", "walker_walk"),
)
VISION_20 = (*PROPRIO_18, "quadruped_run", "quadruped_walk")


class ControlSuite(gym.Env[Any, Any]):
    """One task. It terminates only where the task says so (discount 0); 1000 steps truncate it."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 25}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(self, env: Any, obs: str, size: tuple[int, int], camera: int | str) -> None:
        self.env, self.size, self.camera = env, size, camera
        self.proprio, self.vision = obs in ("proprio", "both"), obs in ("vision", "both")
        self.drawing = True
        self.image = np.zeros((*size, 3), np.uint8)
        spec = env.action_spec()
        self.action_space = spaces.Box(
            np.broadcast_to(spec.minimum, spec.shape).astype(np.float32),
            np.broadcast_to(spec.maximum, spec.shape).astype(np.float32),
            dtype=np.float32,
        )
        self.names = {
            name: name.replace("/", "_")
            for name, s in env.observation_spec().items()
            if self.proprio and 0 not in s.shape
        }
        self.observation_space = spaces.Dict(self._spaces(env.observation_spec()))

    @property
    def episode_length(self) -> int | None:
        """Return the steps after which it is cut off, if there is a limit."""
        limit = float(getattr(self.env, "_step_limit", np.inf))
        return int(np.ceil(limit)) if np.isfinite(limit) else None

    @property
    def obs_order(self) -> tuple[str, ...]:
        """Return the names of vectors in the order in which the suite lists them."""
        return tuple(self.names.values())

    def _spaces(self, spec: Any) -> dict[str, spaces.Space[Any]]:
        found: dict[str, spaces.Space[Any]] = {}
        for name, short in self.names.items():
            shape = spec[name].shape or (1,)
            found[short] = spaces.Box(-np.inf, np.inf, shape, np.float32)
        if self.vision:
            found["image"] = spaces.Box(0, 255, (*self.size, 3), np.uint8)
        return found

    def _obs(self, step: Any) -> dict[str, Any]:
        out: dict[str, Any] = {
            short: np.atleast_1d(np.asarray(step.observation[name], np.float32))
            for name, short in self.names.items()
        }
        if self.vision:
            if self.drawing or step.last():
                self.image = self._draw(*self.size)
            out["image"] = self.image
        return out

    def _draw(self, height: int, width: int) -> Any:
        return self.env.physics.render(height, width, camera_id=self.camera)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        if seed is not None:
            # A task draws its initial state from this generator, which it was built with.
            self.env.task._random = np.random.RandomState(seed)
        return self._obs(self.env.reset()), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        step = self.env.step(action)
        terminated = bool(step.last() and step.discount == 0)
        truncated = bool(step.last() and not terminated)
        return self._obs(step), float(step.reward or 0.0), terminated, truncated, {}

    def render(self) -> Any:
        setup_gl()
        return self._draw(240, 320)

    def close(self) -> None:
        self.env.close()


def make(
    task: str,
    obs: Literal["proprio", "vision", "both"] = "proprio",
    size: tuple[Side, Side] = (64, 64),
    camera: Natural | str | None = None,
    fast_render: bool = False,
) -> gym.Env[Any, Any]:
    """Return a task by `domain_task`, e.g. `walker_walk` (`cup_catch` is ball_in_cup)."""
    setup_gl(required=obs != "proprio")
    suite = require("dm_control.suite", "dmc")
    give_numpy(require("dm_control.suite.quadruped", "dmc"), in1d=np.isin)
    known = {f"{domain}_{name}": (domain, name) for domain, name in suite.ALL_TASKS}
    full = f"ball_in_{task}" if task.startswith("cup_") else task
    if full not in known:
        raise ConfigError(unknown("task of the control suite", task, known, "env.id"))
    domain, name = known[full]
    # The seed here only matters to tasks that draw their body (lqr): it is the same every time.
    env = suite.load(domain, name, task_kwargs={"random": 0})
    if fast_render:
        draw_fast(env.physics.model)
    return ControlSuite(env, obs, size, CAMERAS.get(domain, 0) if camera is None else camera)
