"""A trained policy as one module for other programs; `policy_files` writes it.

What goes in is what the environment shows, what comes out is what it takes: normalization of
observations, the memory (as explicit inputs and outputs) and the scaling of actions are inside.
It is the workflow's own `decide` in `Mode.FIXED`: exported policies are deterministic, also where
`dreamlab eval` draws latent states or candidates of a planner.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from dreamlab.core.affine import ACTION, Affine
from dreamlab.core.tree import tree_leaves, tree_map
from dreamlab.core.types import Array, ArraySpec, Mode, Spec
from dreamlab.core.workflow import Workflow
from dreamlab.envs import wrappers
from dreamlab.envs.normalize import NormalizeConfig

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Actions:
    """From what a policy chooses to what the environment takes."""

    low: Array | None = None
    high: Array | None = None
    start: Array | int = 0
    data: Affine | None = None
    """Normalization of the training data's actions."""

    def __call__(self, action: Tensor) -> Tensor:
        if self.data is not None:
            return self._of_data(action, self.data)
        if self.low is None or self.high is None:
            return action + torch.as_tensor(self.start) if np.any(self.start) else action
        low, high = torch.from_numpy(self.low), torch.from_numpy(self.high)
        unit = action.clamp(-1.0, 1.0)
        return torch.clamp(low + (unit + 1.0) * 0.5 * (high - low), low, high)

    def _of_data(self, action: Tensor, data: Affine) -> Tensor:
        scale, shift = torch.from_numpy(data.scale), torch.from_numpy(data.shift)
        own = (action.double() * scale + shift).float()
        if self.low is None or self.high is None:
            return own
        return torch.clamp(own, torch.from_numpy(self.low), torch.from_numpy(self.high))


def action_wrapper(env: Any) -> Any:
    """Return the wrapper that turns a policy's actions into the environment's own, if any."""
    while isinstance(env, gym.Wrapper):
        if isinstance(env, wrappers.ScaleAction | wrappers.FromZero):
            return env
        env = env.env
    return None


def actions_of(wrapper: Any) -> Actions:
    """Return what such a wrapper does, as tensors."""
    if isinstance(wrapper, wrappers.ScaleAction):
        return Actions(wrapper.low, wrapper.high)
    return Actions(start=np.asarray(wrapper.start)) if wrapper is not None else Actions()


class Normalize(nn.Module):
    """Observations by the statistics of training, in double precision as in training."""

    def __init__(self, config: NormalizeConfig | None, statistics: dict[str, Any]) -> None:
        super().__init__()
        self.clip = config.clip if config is not None else math.inf
        found = _moments(statistics) if config is not None else _of_data(statistics)
        self.names = sorted(found)
        for i, name in enumerate(self.names):
            mean, scale = found[name]
            self.register_buffer(f"mean{i}", mean)
            self.register_buffer(f"scale{i}", scale)

    def forward(self, obs: Tensors) -> Tensors:
        out = dict(obs)
        for i, name in enumerate(self.names):
            mean, scale = getattr(self, f"mean{i}"), getattr(self, f"scale{i}")
            scaled = (obs[name].double() - mean) / scale
            bounded = scaled.clamp(-self.clip, self.clip) if math.isfinite(self.clip) else scaled
            out[name] = bounded.float()
        return out


Moments = dict[str, tuple[Tensor, Tensor]]
"""The mean subtracted from an observation, and the scale it is divided by."""


def _moments(statistics: dict[str, Any]) -> Moments:
    """Return what training normalized with while it collected."""
    pairs = {
        k: [torch.as_tensor(m[n]).double() for n in ("mean", "var")]
        for k, m in statistics.get("obs", {}).items()
    }
    return {k: (mean, torch.sqrt(var + 1e-8)) for k, (mean, var) in pairs.items()}


def _of_data(statistics: dict[str, Any]) -> Moments:
    """Return what the data was normalized with that a policy learned from."""
    return {
        k: (torch.as_tensor(a["shift"]).double(), torch.as_tensor(a["scale"]).double())
        for k, a in statistics.get("scaling", {}).items()
        if k != ACTION
    }


def memory_of(state: Any) -> Tensors:
    """Return a policy's state by name; empty if it has none."""
    return dict(tree_leaves(state))


def state_of(like: Any, memory: Tensors) -> Any:
    """Return the state, built as `like` is, with the tensors that have these names."""
    names = iter([name for name, _ in tree_leaves(like)])
    return tree_map(lambda leaf: memory.get(next(names), leaf), like)


class Exported(nn.Module):
    """Observations, `is_first` and memory in; action and memory out; all are tensors [batch, ...].

    Without a memory there is no `is_first` either. A `batch` fixes the number of rows in the file.
    """

    def __init__(
        self,
        workflow: Workflow[Any],
        normalize: Normalize,
        actions: Actions,
        batch: int | None = None,
    ) -> None:
        super().__init__()
        self.batch = batch
        self.workflow = copy.deepcopy(workflow).cpu().eval().requires_grad_(False)
        for module in self.workflow.modules():
            if hasattr(module, "fusible"):  # that way leads through numpy
                object.__setattr__(module, "fusible", False)
        self.normalize, self.actions = normalize, actions
        self.eval()
        self.obs_names = sorted(workflow.spec.obs)
        self.memory_names = sorted(memory_of(self._example_state()))

    @torch.no_grad()
    def _example_state(self) -> Any:
        """Return the state after one decision: it holds what acting needs."""
        made = random_obs(self.workflow.spec, 1, seed=0)
        obs = {k: torch.from_numpy(v) for k, v in made.items()}
        first, state = torch.ones(1, dtype=torch.bool), self.workflow.initial_state(1)
        return self.workflow.decide(obs, first, state, Mode.FIXED).state

    @property
    def inputs(self) -> list[str]:
        memory = ["is_first", *(f"memory/{n}" for n in self.memory_names)]
        return [f"obs/{n}" for n in self.obs_names] + (memory if self.memory_names else [])

    @property
    def outputs(self) -> list[str]:
        return ["action", *(f"memory_out/{n}" for n in self.memory_names)]

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        num = len(self.obs_names)
        obs = self.normalize(dict(zip(self.obs_names, values[:num], strict=True)))
        memory = dict(zip(self.memory_names, values[num + 1 :], strict=True))
        first = values[num] if self.memory_names else torch.zeros(1, dtype=torch.bool)
        state = state_of(self.workflow.initial_state(1), memory)
        decision = self.workflow.decide(obs, first, state, Mode.FIXED)
        after = memory_of(decision.state)
        return self.actions(decision.action), *(after[n] for n in self.memory_names)

    def example(self) -> tuple[Tensor, ...]:
        """Return inputs of the right kind."""
        rows = self.batch or 2  # one row would be taken for a constant
        return self.arrange(random_obs(self.workflow.spec, rows, 0), np.ones(rows, bool), None)

    def arrange(self, obs: dict[str, Array], is_first: Array, memory: Any) -> tuple[Tensor, ...]:
        """Return one step's inputs in the order of `inputs`; no memory is the first one."""
        values = [torch.from_numpy(obs[n]) for n in self.obs_names]
        if self.memory_names:
            start = self.workflow.initial_state(len(is_first))
            memory = memory or memory_of(start)
            values += [torch.from_numpy(is_first), *(memory[n] for n in self.memory_names)]
        return tuple(values)


def random_obs(spec: Spec, num: int, seed: int) -> dict[str, Array]:
    """Return observations [num, ...] that the spec allows."""
    rng = np.random.default_rng(seed)
    return {k: _random(rng, s, num) for k, s in spec.obs.items()}


def _random(rng: np.random.Generator, spec: ArraySpec, num: int) -> Array:
    shape = (num, *spec.shape)
    if spec.classes is not None:
        return rng.integers(0, np.asarray(spec.classes), shape).astype(spec.dtype)
    if spec.dtype == "uint8":
        return rng.integers(0, 256, shape).astype(np.uint8)
    if spec.low is not None and spec.high is not None:
        return rng.uniform(spec.low, spec.high, shape).astype(np.float32)
    return rng.standard_normal(shape).astype(np.float32)
