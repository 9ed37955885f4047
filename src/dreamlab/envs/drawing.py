"""Images of what an observation says, for tasks whose state can be read off it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from dreamlab.core.types import Array
from dreamlab.envs.vector import EnvConfig

Paint = Callable[[Array], Array]
"""Convert an observation [n] to an image [h, w, 3]."""

# the simulator's state that an observation shows, by the class of the task
STATES: dict[str, Callable[[Array], Any]] = {
    "CartPoleEnv": lambda o: tuple(float(x) for x in o),
    "MountainCarEnv": lambda o: tuple(float(x) for x in o),
    "Continuous_MountainCarEnv": lambda o: np.asarray(o, np.float32),
    "PendulumEnv": lambda o: np.array([np.arctan2(o[1], o[0]), o[2]]),
    "AcrobotEnv": lambda o: np.array(
        [np.arctan2(o[1], o[0]), np.arctan2(o[3], o[2]), o[4], o[5]], np.float32
    ),
}


def painter(config: EnvConfig) -> Paint | None:
    """Return a function that draws observations of this task, or None where there is none."""
    plain = config.suite == "gym" and config.normalize_obs is None and config.frame_stack == 1
    if not plain or config.id not in gym.registry:
        return None
    if not str(gym.spec(config.id).entry_point).startswith("gymnasium.envs.classic_control"):
        return None
    env = gym.make(config.id, render_mode="rgb_array")
    env.reset(seed=0)
    inner: Any = env.unwrapped
    state_of = STATES.get(type(inner).__name__)
    if state_of is None:
        return None

    def paint(observation: Array) -> Array:
        inner.state = state_of(observation)
        return np.asarray(inner.render())

    return paint
