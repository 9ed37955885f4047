"""N environments behind one interface: actions in, a `Step` out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from dreamlab.core.config import dump
from dreamlab.core.errors import EnvError
from dreamlab.core.types import Array, ArraySpec, Spec, Step
from dreamlab.envs import suites, wrappers
from dreamlab.envs.normalize import NormalizeConfig, Normalizer


@dataclass(frozen=True)
class EnvConfig:
    """Which environment, how many of it, and what is done to what it shows."""

    id: str = "CartPole-v1"
    """A Gymnasium id, a user's `module:Class`, or a task of the suite."""
    suite: str = "gym"
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of the suite's `make`."""
    num_envs: int = 1
    vector: Literal["sync", "async"] = "sync"
    repeat: int = 1
    """Frames per decision. Suites that repeat by themselves (Atari) say so with `env.frames_per_step`."""
    time_limit: int | None = None
    """Decisions after which an episode is cut off (not a termination)."""
    size: tuple[int, int] | None = None
    gray: bool = False
    frame_stack: int = 1
    scale_actions: bool = True
    """Take continuous actions in [-1, 1] whatever the environment's own range is."""
    normalize_obs: NormalizeConfig | None = None
    normalize_reward: NormalizeConfig | None = None


def make_env(config: EnvConfig, seed: int, index: int) -> wrappers.Episodes:
    """Return one environment with every wrapper its config asks for."""
    env = suites.make(config.suite, config.id, config.options)
    if config.repeat > 1:
        env = wrappers.ActionRepeat(env, config.repeat)
    if config.time_limit is not None:
        env = gym.wrappers.TimeLimit(env, config.time_limit)
    if isinstance(env.action_space, spaces.Dict | spaces.Tuple | spaces.MultiBinary):
        env = wrappers.FlatActions(env)
    if isinstance(env.action_space, spaces.Box) and config.scale_actions:
        if not np.isfinite(env.action_space.low).all() or not np.isfinite(env.action_space.high).all():
            raise EnvError(
                f"env {config.id!r}: the action space is unbounded, so it cannot be scaled to "
                "[-1, 1]; give it bounds, or set env.scale_actions=false"
            )
        env = wrappers.ScaleAction(env)
    if not isinstance(env.observation_space, spaces.Box):
        env = _named(env)
    if config.size is not None or config.gray:
        env = wrappers.MapImages(env, config.size, config.gray)
    if config.frame_stack > 1:
        env = wrappers.FrameStack(env, config.frame_stack)
    return wrappers.Episodes(env, seed, index)


def _named(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    if isinstance(env.observation_space, spaces.Dict | spaces.Tuple):
        return wrappers.NameObs(env)
    return gym.wrappers.TransformObservation(
        env, lambda obs: {"state": obs}, spaces.Dict({"state": env.observation_space})
    )


def array_spec(space: spaces.Space[Any]) -> ArraySpec:
    """Return a space's shape, type and bounds as ours."""
    if isinstance(space, spaces.Discrete):
        return ArraySpec((), "int64", classes=int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return ArraySpec(space.shape, "int64", classes=tuple(int(n) for n in space.nvec.ravel()))
    if isinstance(space, spaces.MultiBinary):
        return ArraySpec(space.shape, "float32", low=0.0, high=1.0)
    if not isinstance(space, spaces.Box):
        raise EnvError(f"a space of type {type(space).__name__} is not supported")
    dtype = "uint8" if space.dtype == np.uint8 else "float32"
    bounded = bool(np.isfinite(space.low).all() and np.isfinite(space.high).all())
    low, high = (float(space.low.min()), float(space.high.max())) if bounded else (None, None)
    return ArraySpec(space.shape, dtype, low=low, high=high)


def spec_of(env: gym.Env[Any, Any]) -> Spec:
    """Return the spec of one wrapped environment."""
    space = env.observation_space
    named = dict(space.spaces) if isinstance(space, spaces.Dict) else {_name(space): space}
    return Spec({k: array_spec(s) for k, s in named.items()}, array_spec(env.action_space))


def _name(space: spaces.Space[Any]) -> str:
    return "image" if wrappers.is_image(space) else "state"


class Envs:
    """N environments that step together and start a new episode by themselves (on the next step)."""

    def __init__(self, config: EnvConfig, seed: int) -> None:
        self.config, self.seed = config, seed
        self.num_envs = config.num_envs
        makers = [partial(make_env, config, seed, i) for i in range(config.num_envs)]
        self.vec = _vector(config, makers)
        probe: gym.Env[Any, Any] = (
            self.vec.envs[0] if isinstance(self.vec, SyncVectorEnv) else makers[0]()
        )
        self.spec = spec_of(probe)
        self.start = int(getattr(probe.action_space, "start", 0) or 0) if np.ndim(
            getattr(probe.action_space, "start", 0)
        ) == 0 else 0
        self.frames_per_tick = config.repeat * int(getattr(probe.unwrapped, "frames_per_step", 1))
        if not isinstance(self.vec, SyncVectorEnv):
            probe.close()
        self.key = None if isinstance(probe.observation_space, spaces.Dict) else _name(probe.observation_space)
        self.normalizer = Normalizer(config.normalize_obs, config.normalize_reward, self.spec, self.num_envs)
        self.is_last = np.zeros(self.num_envs, bool)
        self.finals: list[dict[str, float]] = []

    def reset(self) -> Step:
        """Begin the next episode of every environment."""
        obs, _ = self.vec.reset()
        zeros, flags = np.zeros(self.num_envs, np.float32), np.zeros(self.num_envs, bool)
        self.is_last = flags
        step = Step(self._named(obs), zeros, np.ones(self.num_envs, bool), flags, flags)
        return self.normalizer(step)

    def step(self, action: Array) -> Step:
        """Advance every environment; one whose episode has ended begins anew and ignores its action.

        The arrays are overwritten by the next call.
        """
        first = self.is_last
        obs, reward, terminated, truncated, info = self.vec.step(action + self.start if self.start else action)
        self.is_last = terminated | truncated
        if info:
            self._collect_finals(info)
        step = Step(self._named(obs), reward.astype(np.float32), first, self.is_last, terminated)
        return self.normalizer(step)

    def _named(self, obs: Any) -> dict[str, Array]:
        if self.key is not None:
            obs = {self.key: obs}
        return {
            k: v.astype(np.float32) if v.dtype == np.float64 or v.dtype.kind == "b" else v
            for k, v in obs.items()
        }

    def _collect_finals(self, info: dict[str, Any]) -> None:
        names = [k for k in info if not k.startswith("_")]
        for i in np.flatnonzero(self.is_last):
            final = {k: float(info[k][i]) for k in names if info[f"_{k}"][i]}
            if final:
                self.finals.append(final)

    def pop_finals(self) -> list[dict[str, float]]:
        """Return what environments reported at the ends of episodes since the last call."""
        out, self.finals = self.finals, []
        return out

    def get_state(self) -> dict[str, Any]:
        """Return the state of every environment and of the normaliser, as plain data."""
        return {"envs": list(self.vec.call("get_state")), "normalizer": self.normalizer.get_state()}

    def set_state(self, state: dict[str, Any], step: Step) -> tuple[Step, list[int]]:
        """Bring every environment back to `step`; return the step to go on from, and who could not.

        Those begin a new episode, so their part of the returned step is a first one.
        """
        results = self.vec.call("set_state", [_arrays(s) for s in state["envs"]])
        self.normalizer.set_state(state["normalizer"])
        lost = [i for i, (same, _) in enumerate(results) if not same]
        self.is_last = step.is_last.copy()
        if lost:
            step = self._restart(step, lost, [obs for _, obs in results])
        return step, lost

    def _restart(self, step: Step, lost: list[int], obs: list[Any]) -> Step:
        for name in step.obs:
            for i in lost:
                step.obs[name][i] = obs[i][name] if self.key is None else obs[i]
        for array, value in ((step.reward, 0), (step.is_first, True), (step.is_last, False), (step.is_terminal, False)):
            array[lost] = value
        self.is_last = step.is_last.copy()
        return step

    def render(self) -> Array | None:
        """Return a picture of the first environment, or None where it cannot draw."""
        frame = self.vec.call("render")[0]
        return None if frame is None else np.asarray(frame)

    def close(self) -> None:
        self.vec.close()


def _arrays(state: dict[str, Any]) -> dict[str, Any]:
    actions = state["actions"]
    return {**state, "actions": None if actions is None else np.asarray(actions)}


def _vector(config: EnvConfig, makers: list[Callable[[], Any]]) -> Any:
    if config.vector == "sync":
        return SyncVectorEnv(makers, copy=False, autoreset_mode=AutoresetMode.NEXT_STEP)
    return AsyncVectorEnv(
        makers, shared_memory=True, copy=False, autoreset_mode=AutoresetMode.NEXT_STEP, context="spawn"
    )


def describe(config: EnvConfig) -> dict[str, Any]:
    """Return the config as plain data."""
    return dump(config)
