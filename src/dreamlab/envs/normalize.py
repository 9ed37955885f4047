"""Normalization of observations and rewards: running, over all environments of a run, or given."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from dreamlab.core import world
from dreamlab.core.affine import ACTION, Affine, Scaling
from dreamlab.core.limits import Positive, Share
from dreamlab.core.types import Array, Spec, Step


@dataclass(frozen=True)
class NormalizeConfig:
    """Divide by the running standard deviation and clip; observations are centred too."""

    clip: Positive = 10.0
    gamma: Share = 0.99
    """Discount of the return whose standard deviation scales the reward; unused for
    observations."""


class RunningMoments:
    """Mean and variance of everything seen so far (Chan et al. 1979, in float64)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count = 1e-4
        self.mean = np.zeros(shape)
        self.var = np.ones(shape)

    def update(self, x: Array) -> None:
        if (n := x.shape[0]) > 0:
            self.merge(n, x.mean(0, dtype=np.float64), x.var(0, dtype=np.float64))

    def merge(self, n: float, mean: Any, var: Any) -> None:
        """Take in `n` numbers of this mean and variance."""
        if n == 0:
            return
        total, delta = self.count + n, mean - self.mean
        m2 = self.var * self.count + var * n + delta**2 * self.count * n / total
        self.mean, self.var, self.count = self.mean + delta * n / total, m2 / total, total

    def get_state(self) -> dict[str, Any]:
        return {"count": self.count, "mean": self.mean.copy(), "var": self.var.copy()}

    def set_state(self, state: dict[str, Any]) -> None:
        self.count, shape = float(state["count"]), self.mean.shape
        self.mean = np.array(state["mean"]).reshape(shape)  # a file has no arrays without an axis
        self.var = np.array(state["var"]).reshape(shape)


class SharedMoments(RunningMoments):
    """Moments of what several processes see.

    Each counts its own numbers at once, and those of the others when all `agree`: `agreed` is what
    they had then, `fresh` what this one has seen since.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        self.agreed, self.fresh = RunningMoments(shape), _nothing(shape)

    def merge(self, n: float, mean: Any, var: Any) -> None:
        super().merge(n, mean, var)
        self.fresh.merge(n, mean, var)

    def numbers(self) -> Array:
        """Return what this process has seen since all have agreed, for the others."""
        new = self.fresh
        return np.concatenate([[new.count], new.mean.ravel(), new.var.ravel()])

    def agree(self, rows: Array) -> None:
        """Take in the `numbers` of all processes, by rank; all come to the same ones."""
        size, shape = self.mean.size, self.mean.shape
        for row in rows:
            self.agreed.merge(row[0], *(v.reshape(shape) for v in np.split(row[1:], [size])))
        super().set_state(self.agreed.get_state())
        self.fresh = _nothing(shape)

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self.agreed.set_state(state)
        self.fresh = _nothing(self.mean.shape)

    def get_parts(self) -> dict[str, Any]:
        """Return what the next `agree` depends on."""
        return {"agreed": self.agreed.get_state(), "fresh": self.fresh.get_state()}

    def set_parts(self, parts: dict[str, Any]) -> None:
        """Go on from what `get_parts` returned."""
        self.agreed.set_state(parts["agreed"])
        self.fresh.set_state(parts["fresh"])


def _nothing(shape: tuple[int, ...]) -> RunningMoments:
    moments = RunningMoments(shape)
    moments.count = 0.0
    return moments


class Normalizer:
    """Normalizes the steps of N environments; with neither config it passes them on untouched.

    `frozen` stops the statistics, for evaluation with those of training. A `scaling` is that of the
    data a policy learns from: observations by it, and actions back.
    """

    def __init__(
        self,
        obs: NormalizeConfig | None,
        reward: NormalizeConfig | None,
        spec: Spec,
        num_envs: int,
        scaling: Scaling | None = None,
    ) -> None:
        self.obs, self.reward, self.frozen = obs, reward, False
        self.scaling: Scaling = dict(scaling or {})
        vectors = [k for k, s in spec.obs.items() if s.dtype == "float32"] if obs else []
        kind = SharedMoments if world.size() > 1 else RunningMoments
        self.moments = {k: kind(spec.obs[k].shape) for k in vectors}
        self.returns = np.zeros(num_envs)
        self.return_moments = kind(())

    def __call__(self, step: Step) -> Step:
        if self.obs is not None or self.scaling:
            step = replace(step, obs={k: self._observe(k, v) for k, v in step.obs.items()})
        if self.reward is not None:
            step = replace(step, reward=self._scale_reward(step))
        return step

    def agree(self) -> None:
        """Take in what other processes have seen since the last time."""
        shared = list(self._shared().values())
        if not shared:
            return
        own = [m.numbers() for m in shared]
        rows = world.gathered(torch.from_numpy(np.concatenate(own))[None]).numpy()
        ends = np.cumsum([len(n) for n in own])[:-1]
        for moments, theirs in zip(shared, np.split(rows, ends, axis=1), strict=True):
            moments.agree(theirs)

    def _shared(self) -> dict[str, SharedMoments]:
        """Return what several processes have to agree on; nothing with one."""
        named = {**self.moments, **({"": self.return_moments} if self.reward else {})}
        return {k: m for k, m in named.items() if isinstance(m, SharedMoments)}

    def _observe(self, name: str, value: Array) -> Array:
        if name in self.moments and not self.frozen:
            self.moments[name].update(value)
        return self.scale(name, value)

    def action(self, action: Array) -> Array:
        """Return a policy's action in the environment's own units."""
        return self.scaling[ACTION].invert(action) if ACTION in self.scaling else action

    def scale(self, name: str, value: Array) -> Array:
        """Return one observation normalized by the statistics so far, without counting it."""
        if name in self.scaling:
            return self.scaling[name].apply(value)
        if name not in self.moments or self.obs is None:
            return value
        moments = self.moments[name]
        scaled = (value - moments.mean) / np.sqrt(moments.var + 1e-8)
        return np.clip(scaled, -self.obs.clip, self.obs.clip).astype(np.float32)

    def unscale(self, name: str, value: Array) -> Array:
        """Return one observation as it was before `scale`, but for what that had clipped."""
        if name in self.scaling:
            return self.scaling[name].invert(value)
        if name not in self.moments or self.obs is None:
            return value
        moments = self.moments[name]
        return (value * np.sqrt(moments.var + 1e-8) + moments.mean).astype(np.float32)

    def _scale_reward(self, step: Step) -> Array:
        assert self.reward is not None
        if not self.frozen:
            before = np.where(step.is_first, 0.0, self.returns)
            self.returns = before * self.reward.gamma + step.reward
            self.return_moments.update(self.returns[~step.is_first])
        scaled = step.reward / np.sqrt(self.return_moments.var + 1e-8)
        return np.clip(scaled, -self.reward.clip, self.reward.clip).astype(np.float32)

    def get_state(self) -> dict[str, Any]:
        """Return the statistics as plain data."""
        state = {
            "obs": {k: m.get_state() for k, m in self.moments.items()},
            "returns": self.returns.copy(),
            "reward": self.return_moments.get_state(),
        }
        if self._shared():
            state["shared"] = {k: m.get_parts() for k, m in self._shared().items()}
        given = {k: a.get_state() for k, a in self.scaling.items()}
        return {**state, "scaling": given} if given else state

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from saved statistics."""
        for name, moments in self.moments.items():
            moments.set_state(state["obs"][name])
        returns = np.array(state["returns"])
        if returns.shape == self.returns.shape:
            self.returns = returns
        self.return_moments.set_state(state["reward"])
        for name, moments in self._shared().items() if "shared" in state else ():
            moments.set_parts(state["shared"][name])
        if "scaling" in state:
            self.scaling = {k: Affine.of_state(a) for k, a in state["scaling"].items()}
