"""Bring your own environment: any Gymnasium class, named `module:Class`."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from dreamlab import training
from dreamlab.config import compose, load_config
from dreamlab.envs.check import check


class Corridor(gym.Env[Any, Any]):
    """Walk to the right end; each step costs a little."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, length: int = 8, render_mode: str | None = None) -> None:
        self.length, self.render_mode, self.x = length, render_mode, 0
        self.observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def _obs(self) -> Any:
        return np.array([self.x / self.length], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x = int(self.np_random.integers(self.length // 2))
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.x = max(0, self.x + (1 if action == 1 else -1))
        done = self.x == self.length
        return self._obs(), 1.0 if done else -0.05, done, False, {"success": done}

    def render(self) -> Any:
        picture = np.full((16, 16 * (self.length + 1), 3), 40, np.uint8)
        picture[:, 16 * self.x : 16 * (self.x + 1)] = (250, 200, 60)
        return picture


def main() -> None:
    env = ["env=own_environment:Corridor", "env.options={length: 6}", "env.time_limit=50"]
    config = load_config(compose(["+experiment=ppo_cartpole", *env, "training.total_frames=4_000"]))
    for finding in check(config.env):  # what `dreamlab check env=own_environment:Corridor` prints
        print(f"{finding.level:8s} {finding.text}")
    run, status = training.train(config)
    print(status, run.manifest["final_eval"]["eval/success"])


if __name__ == "__main__":
    main()
