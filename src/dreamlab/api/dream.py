"""What a world model imagines, as arrays, and what really happened beside it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dreamlab.accel.dispatch import reference_kernels
from dreamlab.components.world_models.protocol import flatten_time, map_latent
from dreamlab.components.world_models.workflow import WorldModelWorkflow
from dreamlab.core.errors import LabError
from dreamlab.core.limits import EVAL_SEED
from dreamlab.core.types import Array

if TYPE_CHECKING:
    from dreamlab.api.agent import Agent, AgentState


@dataclass(frozen=True)
class Real:
    """What an environment did with the actions of a dream; shorter if the episode ended."""

    obs: dict[str, Array]
    reward: Array
    cont: Array
    """0 where the task ended, else 1."""


@dataclass(frozen=True)
class Dream:
    """Imagined steps [t, ...], of a batch [n, t, ...]; `action[i]` leads to `obs[i]`."""

    obs: dict[str, Array]
    """As the environment shows them; without those that the model does not decode."""
    reward: Array
    """In the units of training: normalized where `env.normalize_reward` is set."""
    cont: Array
    """The probability that the episode continues."""
    action: Any
    """In the environment's own units."""
    real: Real | None = None


def world_model(agent: Agent) -> WorldModelWorkflow:
    """Return the agent's workflow if it has a world model."""
    workflow = agent.workflow
    if not isinstance(workflow, WorldModelWorkflow):
        raise LabError(
            f"imagine: {type(workflow).__name__} has no world model. Agents that have one: "
            "DreamerV3, DreamerV2, DreamerV1, PlaNet, TD-MPC2, TD-MPC, MPC, World Models"
        )
    return workflow


@torch.no_grad()
def from_state(agent: Agent, horizon: int, state: AgentState, actions: Any = None) -> Dream:
    """Return a dream that starts in a state of `predict`."""
    if horizon < 1:
        raise LabError(f"imagine: horizon must be at least 1, got {horizon}")
    workflow = world_model(agent)
    start = workflow.unpack_state(state.tree)
    given = None if actions is None else _given(agent, actions, horizon, state)
    policy = None if given is None else _in_turn(given)
    with agent._stream, reference_kernels(agent.config.accel == "off"):
        latent, taken = workflow.imagine(horizon, start, policy)
        after = map_latent(lambda x: x[:, 1:], latent)
        seen = workflow.view(flatten_time(after))
    shape = (state.num, horizon)
    obs = {k: _shown(agent, k, v).reshape(*shape, *v.shape[1:]) for k, v in seen["obs"].items()}
    reward, cont = (seen[k].float().cpu().numpy().reshape(shape) for k in ("reward", "cont"))
    action = [agent._own_actions(row) for row in taken[:, :-1].cpu().numpy()]
    if state.single:
        return Dream({k: v[0] for k, v in obs.items()}, reward[0], cont[0], action[0])
    return Dream(obs, reward, cont, action if isinstance(action[0], list) else np.stack(action))


def _in_turn(actions: Tensor) -> Any:
    """Return the policy that takes these actions [n, h, ...]; the last is requested, not taken."""
    steps = iter([*actions.unbind(1), actions[:, -1]])
    return lambda _: next(steps)


def _given(agent: Agent, actions: Any, horizon: int, state: AgentState) -> Tensor:
    """Return actions of the environment as the model takes them, [n, h, ...]."""
    rows = [actions] if state.single else list(actions)
    if len(rows) != state.num or any(len(row) != horizon for row in rows):
        shape = f"[{horizon}, ...]" if state.single else f"[{state.num}, {horizon}, ...]"
        raise LabError(f"imagine: actions: expected {shape}")
    plain = np.stack([agent._plain_actions(row) for row in rows])
    return torch.from_numpy(plain).to(agent.workflow.device)


def _shown(agent: Agent, name: str, value: Tensor) -> Array:
    """Return a dreamt observation as the environment would show it."""
    array = value.float().cpu().numpy()
    if agent.spec.obs[name].is_image:
        return np.clip(array * 255, 0, 255).astype(np.uint8)
    return agent._normalizer.unscale(name, array)


def from_episode(agent: Agent, horizon: int, actions: Any, context: int, seed: int | None) -> Dream:
    """Return a dream that continues from a real episode, and what really comes of its actions."""
    world_model(agent)
    if context < 1:
        raise LabError(f"imagine: context must be at least 1, got {context}")
    env = agent.make_env()
    try:
        obs, _ = env.reset(seed=EVAL_SEED if seed is None else seed)
        action, state = agent.predict(obs)
        for step in range(1, context):
            obs, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                raise LabError(f"imagine: the episode ended after {step} steps: reduce context")
            action, state = agent.predict(obs, state)
        dream = from_state(agent, horizon, state, actions)
        return replace(dream, real=_real(agent, env, dream.action))
    finally:
        env.close()


def _real(agent: Agent, env: Any, actions: Any) -> Real:
    """Carry actions out and return what was seen, up to the end of the episode."""
    seen: list[Any] = []
    rewards: list[float] = []
    conts: list[float] = []
    for action in actions:
        obs, reward, terminated, truncated, _ = env.step(action)
        seen.append(agent._named(obs))
        rewards.append(float(reward))
        conts.append(float(not terminated))
        if terminated or truncated:
            break
    obs = {k: np.stack([s[k] for s in seen]) for k in seen[0]}
    return Real(obs, np.array(rewards, np.float32), np.array(conts, np.float32))
