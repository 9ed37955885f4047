"""An environment that fails in one process of a run, after a while."""

from __future__ import annotations

import os
from typing import Any

from gymnasium.envs.classic_control import CartPoleEnv


class BreaksOnRank1(CartPoleEnv):
    """CartPole, whose pole breaks in the second process once it has been stepped for a while."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self.steps_done = 0

    def step(self, action: Any) -> Any:
        self.steps_done += 1
        if os.environ.get("RANK") == "1" and self.steps_done > 1_000:
            raise RuntimeError("the pole broke")
        return super().step(action)
