"""Environments that step in turn, in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from dreamlab.core.types import Array


class InTurn(SyncVectorEnv):
    """Gymnasium's vector of one process, with less overhead: with a small environment it dominates.

    The observations are overwritten by the next step.
    """

    def __init__(self, makers: Sequence[Callable[[], gym.Env[Any, Any]]]) -> None:
        super().__init__(list(makers), copy=False, autoreset_mode=AutoresetMode.NEXT_STEP)
        self.plain = isinstance(self.single_observation_space, gym.spaces.Box)

    def step(self, actions: Array) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Step every environment; one whose episode has ended starts over instead."""
        infos: dict[str, Any] = {}
        for i, env in enumerate(self.envs):
            if self._autoreset_envs[i]:
                self._env_obs[i], info = env.reset()
                self._rewards[i], self._terminations[i], self._truncations[i] = 0.0, False, False
            else:
                obs, reward, terminated, truncated, info = env.step(actions[i])
                self._env_obs[i], self._rewards[i] = obs, reward
                self._terminations[i], self._truncations[i] = terminated, truncated
            if info:
                infos = self._add_info(infos, info, i)
        self._autoreset_envs = self._terminations | self._truncations
        flags = self._terminations.copy(), self._truncations.copy()
        return self._together(), self._rewards.copy(), *flags, infos

    def _together(self) -> Any:
        """Return the observations of all environments as one."""
        out: Any = self._observations
        each: list[Any] = self._env_obs
        if not self.plain or any(np.shape(obs) != out.shape[1:] for obs in each):
            space = self.single_observation_space
            self._observations = gym.vector.utils.concatenate(space, each, out)
            return self._observations
        for i, obs in enumerate(each):
            out[i] = obs
        return out
