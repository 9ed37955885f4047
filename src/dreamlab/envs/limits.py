"""How long episodes can be."""

from __future__ import annotations

from typing import Any

import gymnasium as gym


def episode_length(env: gym.Env[Any, Any]) -> int | None:
    """Return the maximum episode length, if a wrapper or the environment defines it."""
    found: list[int | None] = [getattr(env.unwrapped, "episode_length", None)]
    while isinstance(env, gym.Wrapper):
        if isinstance(env, gym.wrappers.TimeLimit):
            found.append(env._max_episode_steps)
        env = env.env
    return min((n for n in found if n is not None), default=None)
