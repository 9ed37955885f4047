"""Normalization shared by all actors: each reports its moments, the learner merges them."""

from __future__ import annotations

from typing import Any

import numpy as np

from dreamlab.core.types import Step
from dreamlab.envs.normalize import Normalizer, RunningMoments

REWARD = "reward"
OBS = "obs/"


class Seen:
    """Moments of one actor's observations since the last request."""

    def __init__(self, envs: Any) -> None:
        self.envs = envs
        self.normalizer: Normalizer = envs.normalizer
        self.new = self._empty()

    def _empty(self) -> dict[str, RunningMoments]:
        out = {f"{OBS}{k}": _nothing(m.mean.shape) for k, m in self.normalizer.moments.items()}
        return {**out, REWARD: _nothing(())} if self.normalizer.reward is not None else out

    def add(self, step: Step) -> None:
        """Add the current step, before normalization."""
        for name, moments in self.new.items():
            if name == REWARD:
                moments.update(self.normalizer.returns[~step.is_first])
            else:
                moments.update(self.envs.shown[name.removeprefix(OBS)])

    def pop(self) -> dict[str, Any]:
        """Return the moments as plain data, and reset them."""
        out = {k: m.get_state() for k, m in self.new.items()}
        self.new = self._empty()
        return out


def add_up(normalizer: Normalizer, seen: dict[str, Any]) -> None:
    """Merge an actor's moments into the global statistics."""
    for name, state in seen.items():
        of_obs = normalizer.moments.get(name.removeprefix(OBS))
        target = normalizer.return_moments if name == REWARD else of_obs
        assert target is not None, f"nobody normalises {name}"
        target.merge(float(state["count"]), np.asarray(state["mean"]), np.asarray(state["var"]))


def take_statistics(normalizer: Normalizer, state: dict[str, Any]) -> None:
    """Load the global statistics, but keep the running returns of one's own episodes."""
    normalizer.set_state({**state, "returns": normalizer.returns})


def _nothing(shape: tuple[int, ...]) -> RunningMoments:
    moments = RunningMoments(shape)
    moments.count = 0.0
    return moments
