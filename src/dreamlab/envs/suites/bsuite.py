"""Behaviour Suite (Osband et al. 2020): small experiments, each for one ability of an agent."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from dreamlab.core.errors import ConfigError, require, unknown

Info = dict[str, Any]


class BSuite(gym.Env[Any, Any]):
    """One setting of one experiment; its scores so far are reported as `log/bsuite_*`."""

    def __init__(self, env: Any) -> None:
        self.env = env
        spec = env.observation_spec()
        self.action_space = spaces.Discrete(int(env.action_spec().num_values))
        self.observation_space = spaces.Box(
            -np.inf, np.inf, (int(np.prod(spec.shape)),), np.float32
        )

    def _obs(self, step: Any) -> Any:
        return np.array(step.observation, np.float32).ravel()

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        super().reset(seed=seed)
        if seed is not None:
            for layer in self._layers():
                if hasattr(layer, "_rng"):
                    layer._rng.seed(seed)
        return self._obs(self.env.reset()), {}

    def _layers(self) -> list[Any]:
        layers, layer = [], self.env
        while layer is not None:
            layers.append(layer)
            layer = vars(layer).get("_env")
        return layers

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        step = self.env.step(int(action))
        terminated = bool(step.last() and step.discount == 0)
        scores = self.env.bsuite_info().items()
        told = {f"log/bsuite_{k}": float(v) for k, v in scores if np.ndim(v) == 0}
        truncated = bool(step.last() and not terminated)
        return self._obs(step), float(step.reward or 0.0), terminated, truncated, told


def make(task: str) -> gym.Env[Any, Any]:
    """Return an experiment by its id, e.g. `catch/0` (mnist downloads its data)."""
    bsuite = require("bsuite", "bsuite")
    known = require("bsuite.sweep", "bsuite").SWEEP
    if task not in known:
        raise ConfigError(unknown("bsuite experiment", task, known, "env.id"))
    with contextlib.redirect_stdout(io.StringIO()):  # it prints the id
        return BSuite(bsuite.load_from_id(task))
