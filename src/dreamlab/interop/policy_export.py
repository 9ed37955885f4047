"""A trained policy as one module for other programs; `policy_files` writes it.

What goes in is what the environment shows, what comes out is what it takes: normalisation of
observations, the memory (as explicit inputs and outputs) and the scaling of actions are inside.
Actions are the mode of the policy. DreamerV3's latent state is the mode too, where `dreamlab eval`
draws it: an exported policy has no dice.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from dreamlab.components.representation.rssm import Latent
from dreamlab.core.errors import LabError
from dreamlab.core.types import Array, ArraySpec, Mode, Spec
from dreamlab.core.workflow import Workflow
from dreamlab.envs import wrappers
from dreamlab.envs.normalize import NormalizeConfig
from dreamlab.workflows.dqn import DQN
from dreamlab.workflows.dreamer_v3 import DreamerV3
from dreamlab.workflows.ppo import PPO
from dreamlab.workflows.sac import SAC

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Actions:
    """From what a policy chooses to what the environment takes."""

    low: Array | None = None
    high: Array | None = None
    start: Array | int = 0

    def __call__(self, action: Tensor) -> Tensor:
        if self.low is None or self.high is None:
            return action + torch.as_tensor(self.start) if np.any(self.start) else action
        low, high = torch.from_numpy(self.low), torch.from_numpy(self.high)
        unit = action.clamp(-1.0, 1.0)
        return torch.clamp(low + (unit + 1.0) * 0.5 * (high - low), low, high)


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
        self.clip = config.clip if config is not None else 0.0
        self.names = sorted(statistics.get("obs", {})) if config is not None else []
        for i, name in enumerate(self.names):
            moments = statistics["obs"][name]
            mean, var = (torch.as_tensor(moments[k]).double() for k in ("mean", "var"))
            self.register_buffer(f"mean{i}", mean)
            self.register_buffer(f"scale{i}", torch.sqrt(var + 1e-8))

    def forward(self, obs: Tensors) -> Tensors:
        out = dict(obs)
        for i, name in enumerate(self.names):
            mean, scale = getattr(self, f"mean{i}"), getattr(self, f"scale{i}")
            out[name] = ((obs[name].double() - mean) / scale).clamp(-self.clip, self.clip).float()
        return out


# -- one policy per algorithm ---------------------------------------------------------------------

Policy = Callable[[Any, Tensors, Tensor, Tensors], tuple[Tensor, Tensors]]


def _ppo(w: PPO, obs: Tensors, is_first: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
    x = w.encoder(obs)
    if not w.recurrent:
        return w.actor(w.actor_net(x)[0]).mode(), {}
    before = tuple(state[k] for k in sorted(state))
    y, after = w.actor_net(x[:, None], before, is_first[:, None])
    return w.actor(y[:, 0]).mode(), {f"memory{i}": s for i, s in enumerate(after)}


def _sac(w: SAC, obs: Tensors, is_first: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
    return w.actor.act(w.online.encoder(obs), Mode.EVAL), {}


def _dqn(w: DQN, obs: Tensors, is_first: Tensor, state: Tensors) -> tuple[Tensor, Tensors]:
    return w.returns.q(w.online(obs)).argmax(-1), {}


def _dreamer(w: DreamerV3, obs: Tensors, is_first: Tensor, state: Tensors) -> tuple[Any, Tensors]:
    c, model = w.model.rssm.config, w.model
    before = Latent(state["deter"], state["stoch"])
    embedded, tokens = model.embed(state["action"]), model.encoder(obs)
    no_noise = torch.zeros(c.stoch, c.classes)
    latent, _ = model.rssm.observe_step(before, embedded, tokens, is_first, no_noise)
    action = w.actor.shaped(w.actor(latent.feature).mode())
    return action, {"deter": latent.deter, "stoch": latent.stoch, "action": action}


POLICIES: dict[type, Policy] = {PPO: _ppo, SAC: _sac, DQN: _dqn, DreamerV3: _dreamer}


def policy_of(workflow: Workflow[Any]) -> Policy:
    """Return how a workflow acts, or say that it cannot be exported."""
    for cls, policy in POLICIES.items():
        if isinstance(workflow, cls):
            return policy
    known = ", ".join(sorted(c.__name__ for c in POLICIES))
    raise LabError(f"export-policy: {type(workflow).__name__} cannot be exported; known: {known}")


def memory_of(workflow: Workflow[Any], state: Any) -> Tensors:
    """Return a policy's state by name; empty if it has none. PPO's critic has no part in acting."""
    if isinstance(workflow, PPO):
        return {f"memory{i}": s for i, s in enumerate(state["actor"])} if state else {}
    return dict(state) if state else {}


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
        self.normalize, self.actions, self.policy = normalize, actions, policy_of(workflow)
        self.eval()
        self.obs_names = sorted(workflow.spec.obs)
        self.memory_names = sorted(memory_of(workflow, workflow.initial_state(1)))

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
        is_first = values[num] if self.memory_names else torch.zeros(1, dtype=torch.bool)
        action, after = self.policy(self.workflow, obs, is_first, memory)
        return self.actions(action), *(after[n] for n in self.memory_names)

    def example(self) -> tuple[Tensor, ...]:
        """Return inputs of the right kind."""
        rows = self.batch or 2  # one row would be taken for a constant
        return self.arrange(random_obs(self.workflow.spec, rows, 0), np.ones(rows, bool), None)

    def arrange(self, obs: dict[str, Array], is_first: Array, memory: Any) -> tuple[Tensor, ...]:
        """Return one step's inputs in the order of `inputs`; no memory is the first one."""
        values = [torch.from_numpy(obs[n]) for n in self.obs_names]
        if self.memory_names:
            start = self.workflow.initial_state(len(is_first))
            memory = memory or memory_of(self.workflow, start)
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
