"""A learned world model behind the Gymnasium interface: an environment that is dreamt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from dreamlab.core.types import Array, ArraySpec, Spec

Info = dict[str, Any]


class Dreamer(Protocol):
    """What this environment asks of a world model; `state` is opaque to it."""

    spec: Spec

    def dream_step(self, state: Any, action: Tensor, generator: torch.Generator) -> Any:
        """Return the state after an action [1, ...]."""
        ...

    def dream_view(self, state: Any) -> tuple[dict[str, Array], float, float]:
        """Return the observation of a state [1], its reward, and the chance that it continues."""
        ...


Start = Callable[[np.random.Generator], Any]
"""Return the initial state of an episode."""


class ImaginedEnv(gym.Env[Any, Any]):
    """Episodes that happen inside a world model, from states that were really visited.

    An episode is a function of its seed and actions, as everywhere. At each step it ends with the
    probability that the model gives to the end, and at the latest after `length` steps.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(self, dreamer: Dreamer, start: Start, length: int = 64) -> None:
        self.dreamer, self.start, self.length = dreamer, start, length
        self.observation_space = spaces.Dict({k: _space(s) for k, s in dreamer.spec.obs.items()})
        self.action_space = _space(dreamer.spec.action)
        self.state: Any = None
        self.count = 0
        self.picture: Array | None = None
        self.generator = torch.Generator()

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        self.generator.manual_seed(int(self.np_random.integers(2**62)))
        self.state, self.count = self.start(self.np_random), 0
        obs, _, _ = self._view()
        return obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        given = torch.as_tensor(np.asarray(action))[None]
        self.state = self.dreamer.dream_step(self.state, given, self.generator)
        self.count += 1
        obs, reward, going = self._view()
        over = float(torch.rand((), generator=self.generator)) > going
        return obs, reward, over, self.count >= self.length, {}

    def _view(self) -> tuple[dict[str, Array], float, float]:
        obs, reward, going = self.dreamer.dream_view(self.state)
        images = [v for k, v in obs.items() if self.dreamer.spec.obs[k].is_image]
        self.picture = images[0] if images else None
        return obs, reward, going

    def render(self) -> Any:
        """Return the first dreamt image, or None where the model dreams of none."""
        return self.picture


def _space(spec: ArraySpec) -> spaces.Space[Any]:
    if isinstance(spec.classes, int):
        return spaces.Discrete(spec.classes)
    if spec.classes is not None:
        return spaces.MultiDiscrete(np.array(spec.classes))
    if spec.dtype == "uint8":
        return spaces.Box(0, 255, spec.shape, np.uint8)
    low = -np.inf if spec.low is None else spec.low
    high = np.inf if spec.high is None else spec.high
    return spaces.Box(low, high, spec.shape, np.float32)
