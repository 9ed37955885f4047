"""Procgen (Cobbe et al. 2020): sixteen games whose levels are generated for every episode."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from dreamlab.core.errors import ConfigError, unknown
from dreamlab.core.limits import Range
from dreamlab.envs.compat import need

Info = dict[str, Any]


class Procgen(gym.Env[Any, Any]):
    """One game. The simulator jumps to the next level by itself when an episode ends.

    Therefore the last observation of an episode is the last one before its end, and every end
    counts as a termination: the simulator does not tell a time limit apart.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(self, maker: Any, name: str, options: dict[str, Any], hires: bool) -> None:
        self.maker, self.name, self.options, self.hires = maker, name, options, hires
        self.action_space = spaces.Discrete(15)
        side = 512 if hires else 64
        self.observation_space = spaces.Box(0, 255, (side, side, 3), np.uint8)
        self.env: Any = None
        self.image = np.zeros((side, side, 3), np.uint8)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        if seed is None:
            seed = int(self.np_random.integers(2**31))
        self.close()
        # Making one takes a millisecond, and is the only way to choose the seed.
        self.env = self.maker(num=1, env_name=self.name, rand_seed=seed, **self.options)
        self.image = self._image()
        return self.image, {}

    def _image(self) -> Any:
        if self.hires:
            return self.env.get_info()[0]["rgb"].copy()
        return self.env.observe()[1]["rgb"][0].copy()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        self.env.act(np.array([int(action)], np.int32))
        reward, _, first = self.env.observe()
        over = bool(first[0])
        if not over:
            self.image = self._image()
            return self.image, float(reward[0]), False, False, {"success": False}
        done = self.env.get_info()[0].get("prev_level_complete", 0)
        return self.image, float(reward[0]), True, False, {"success": bool(done)}

    def render(self) -> Any:
        return self.image if self.hires else self.image.repeat(4, 0).repeat(4, 1)

    def close(self) -> None:
        if self.env is not None:
            self.env.close()
            self.env = None


Level = Annotated[int, Range(0, 2**31 - 1)]


def make(
    task: str,
    mode: Literal["easy", "hard", "extreme", "memory", "exploration"] = "hard",
    num_levels: Level = 0,
    start_level: Level = 0,
    hires: bool = False,
) -> gym.Env[Any, Any]:
    """Return a game by name, e.g. `coinrun`; zero levels means no end of them.

    `hires` shows the 512x512 image that DreamerV3 resizes, instead of the native 64x64.
    """
    procgen = need("procgen", "procgen")
    known = need("procgen.env", "procgen").ENV_NAMES
    if task not in known:
        raise ConfigError(unknown("procgen game", task, known, "env.id"))
    options: dict[str, Any] = {"distribution_mode": mode, "num_threads": 0}
    if mode != "exploration":
        options |= {"num_levels": num_levels, "start_level": start_level}
    if hires:
        options["render_mode"] = "rgb_array"
    return Procgen(procgen.ProcgenGym3Env, task, options, hires)
