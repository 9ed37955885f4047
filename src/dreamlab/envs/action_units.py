"""Actions as a policy gives them, and as the environment itself takes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from dreamlab.core.types import Array
from dreamlab.envs.wrappers import FlatActions, FromZero, ScaleAction


class ActionUnits:
    """What the wrappers of an environment do to one action, and back."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        self.space = env.action_space
        self.wrappers: list[ScaleAction | FromZero | FlatActions] = []
        while isinstance(env, gym.Wrapper):
            if isinstance(env, ScaleAction | FromZero | FlatActions):
                self.wrappers.append(env)
            env = env.env

    def own(self, action: Any) -> Any:
        """Return an action as the environment inside takes it."""
        for wrapper in self.wrappers:
            action = wrapper.action(action)
        return action

    def plain(self, action: Any) -> Array:
        """Return an action of the environment inside as a policy gives it."""
        for wrapper in reversed(self.wrappers):
            if isinstance(wrapper, ScaleAction):
                action = 2.0 * (action - wrapper.low) / (wrapper.high - wrapper.low) - 1.0
            elif isinstance(wrapper, FromZero):
                action = action - wrapper.start
            else:
                action = np.concatenate(list(_parts(wrapper.env.action_space, action)))
        return np.asarray(action, self.space.dtype)


def _parts(space: spaces.Space[Any], action: Any) -> Iterator[Array]:
    """Yield the parts of a nested action, each from zero."""
    if isinstance(space, spaces.Dict):
        for key, inner in space.spaces.items():
            yield from _parts(inner, action[key])
    elif isinstance(space, spaces.Tuple):
        for value, inner in zip(action, space.spaces, strict=True):
            yield from _parts(inner, value)
    else:
        start = getattr(space, "start", 0)
        yield np.atleast_1d(np.asarray(action) - start).ravel()
