"""N environments behind one interface: actions in, a `Step` out."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from dreamlab.core.affine import ACTION, Scaling, scaled_spec
from dreamlab.core.errors import ConfigError, EnvError
from dreamlab.core.limits import NonNegative, PositiveInt, Range, Side
from dreamlab.core.types import Array, ArraySpec, Spec, Step, TaskSpec
from dreamlab.envs import suites, wrappers
from dreamlab.envs.guard import Guarded, making
from dreamlab.envs.in_turn import InTurn
from dreamlab.envs.limits import episode_length
from dreamlab.envs.normalize import NormalizeConfig, Normalizer
from dreamlab.envs.workers import Workers

WITHIN = ("is_terminal", "raw_reward")
"""Info keys that are read at every step; all others only at the end of an episode."""


@dataclass(frozen=True)
class EnvConfig:
    """Which environment, how many of it, and what is done to what it shows."""

    id: str = ""
    """A Gymnasium id, a user's `module:Class`, or a task of the suite; optional for offline
    runs."""
    suite: str = "gym"
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of the suite's `make`."""
    num_envs: Annotated[int, Range(1, 65_536)] = 1
    vector: Literal["sync", "async"] = "sync"
    step_timeout_s: NonNegative = 300.0
    """Timeout of a reset or step, in seconds; 0: none. With `sync` a call that hangs in native code
    can only be reported."""
    repeat: Annotated[int, Range(1, 1_000)] = 1
    """Action repeat: frames per decision, multiplied by the suite's own (Atari:
    `frames_per_step`)."""
    time_limit: PositiveInt | None = None
    """Decisions after which an episode is truncated."""
    size: tuple[Side, Side] | None = None
    gray: bool = False
    frame_stack: Annotated[int, Range(1, 1_000)] = 1
    scale_actions: bool = True
    """Rescale continuous actions from [-1, 1] to the environment's range."""
    normalize_obs: NormalizeConfig | None = None
    normalize_reward: NormalizeConfig | None = None

    @property
    def named(self) -> bool:
        """Return whether there is an environment."""
        return bool(self.id)


def make_env(config: EnvConfig, seed: int, index: int) -> wrappers.Episodes:
    """Return one environment with every wrapper its config requests."""
    suite = _of_suite(config, index)
    length = _decisions(episode_length(suite), config)
    tasks = [
        replace(t, episode_length=_decisions(t.episode_length, config))
        for t in getattr(suite.unwrapped, "tasks", ())
    ]
    env = _observed(_plain_actions(_timed(suite, config), config), config)
    env = Guarded(env, index, config.step_timeout_s)
    env = wrappers.Episodes(env, seed, index, context=config.frame_stack)
    env.episode_length, env.tasks = length, tuple(tasks)
    return env


def make_own_env(config: EnvConfig) -> gym.Env[Any, Any]:
    """Return one environment whose observations are wrapped and whose actions are its own.

    It is reset with a seed, as any other: episodes get none of ours.
    """
    return _observed(_timed(_of_suite(config, 0), config), config)


def _of_suite(config: EnvConfig, index: int) -> gym.Env[Any, Any]:
    if not config.named:
        raise ConfigError("env.id is required: no environment is set")
    with making(config.id, index):
        return suites.make(config.suite, config.id, config.options)


def _timed(env: gym.Env[Any, Any], config: EnvConfig) -> gym.Env[Any, Any]:
    """Return an environment with action repeat and a time limit, where they are requested."""
    if config.repeat > 1:
        env = wrappers.ActionRepeat(env, config.repeat)
    if config.time_limit is not None:
        env = gym.wrappers.TimeLimit(env, config.time_limit)
    return env


def _observed(env: gym.Env[Any, Any], config: EnvConfig) -> gym.Env[Any, Any]:
    """Return an environment that shows what an agent sees, before it is normalized."""
    if not isinstance(env.observation_space, spaces.Box):
        env = _named(env)
    if config.size is not None or config.gray:
        env = wrappers.MapImages(env, config.size, config.gray)
    if config.frame_stack > 1:
        env = wrappers.FrameStack(env, config.frame_stack)
    return env


def _decisions(steps: int | None, config: EnvConfig) -> int | None:
    """Return the decisions of the longest episode, of which the suite takes so many steps."""
    limits = [-(-steps // config.repeat)] if steps is not None else []
    limits += [config.time_limit] if config.time_limit is not None else []
    return min(limits, default=None)


def _make(parent: int, config: EnvConfig, seed: int, index: int) -> wrappers.Episodes:
    """Return an environment of a vector that the process `parent` owns."""
    if os.getpid() != parent:  # a terminal tells every process, but only the parent shall heed it
        for number in signal.Signals:
            if number.name in ("SIGINT", "SIGHUP"):
                signal.signal(number, signal.SIG_IGN)
    return make_env(config, seed, index)


def _plain_actions(env: gym.Env[Any, Any], config: EnvConfig) -> gym.Env[Any, Any]:
    if isinstance(env.action_space, spaces.Dict | spaces.Tuple | spaces.MultiBinary):
        env = wrappers.FlatActions(env)
    space = env.action_space
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) and np.any(space.start):
        env = wrappers.FromZero(env)
    if isinstance(space, spaces.Box) and config.scale_actions:
        if not space.is_bounded():
            raise EnvError(
                f"env {config.id!r}: the action space is unbounded, so it cannot be scaled to "
                f"[-1, 1]; set bounds, or env.scale_actions=false"
            )
        env = wrappers.ScaleAction(env)
    return env


def _named(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    if isinstance(env.observation_space, spaces.Dict | spaces.Tuple):
        return wrappers.NameObs(env)
    space = spaces.Dict({"state": env.observation_space})
    return wrappers.NameObs(
        gym.wrappers.TransformObservation(env, lambda obs: {"state": obs}, space)
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
    # Many environments say "unbounded" with the largest float.
    bounded = bool((np.abs(space.low) < 1e30).all() and (np.abs(space.high) < 1e30).all())
    low, high = (float(space.low.min()), float(space.high.max())) if bounded else (None, None)
    return ArraySpec(space.shape, dtype, low=low, high=high)


def spec_of(env: gym.Env[Any, Any]) -> Spec:
    """Return the spec of one wrapped environment."""
    length: int | None = getattr(env, "episode_length", None)
    return _spec(env.observation_space, env.action_space, length, getattr(env, "tasks", ()))


def _spec(
    space: spaces.Space[Any],
    action: spaces.Space[Any],
    length: int | None,
    tasks: tuple[TaskSpec, ...],
) -> Spec:
    named = dict(space.spaces) if isinstance(space, spaces.Dict) else {_name(space): space}
    obs = {k: array_spec(s) for k, s in named.items()}
    return Spec(obs, array_spec(action), length, tasks)


def _name(space: spaces.Space[Any]) -> str:
    return "image" if wrappers.is_image(space) else "state"


class Envs:
    """N environments that step together; each starts a new episode by itself, on the next step."""

    def __init__(self, config: EnvConfig, seed: int, scaling: Scaling | None = None) -> None:
        self.config, self.seed = config, seed
        self.num_envs = config.num_envs
        self.parallel = config.vector == "async"
        self.vec = _vector(
            config, [partial(_make, os.getpid(), config, seed, i) for i in range(config.num_envs)]
        )
        space = self.vec.single_observation_space
        length, tasks = (self.vec.get_attr(k)[0] for k in ("episode_length", "tasks"))
        own = _spec(space, self.vec.single_action_space, length, tasks)
        self.spec = scaled_spec(own, scaling or {})
        self.key = None if isinstance(space, spaces.Dict) else _name(space)
        self.frames_per_tick = config.repeat * int(self.vec.get_attr("frames_per_step")[0])
        self.normalizer = Normalizer(
            config.normalize_obs, config.normalize_reward, own, self.num_envs, scaling
        )
        self.action: Array | None = None
        self.is_last = np.zeros(self.num_envs, bool)
        self.raw_reward = np.zeros(self.num_envs, np.float32)
        self.finals: list[dict[str, float]] = []
        self.shown: dict[str, Array] = {}
        """The raw observation specs, before normalization."""

    def reset(self) -> Step:
        """Start the next episode of every environment."""
        obs, _ = self.vec.reset()
        no = np.zeros(self.num_envs, bool)
        self.is_last = no.copy()
        zeros = np.zeros(self.num_envs, np.float32)
        self.shown = self._named(obs)
        return self.normalizer(Step(self.shown, zeros, ~no, no.copy(), no.copy()))

    def step(self, action: Array) -> Step:
        """Advance every environment; one whose episode has ended starts over, ignoring its action.

        The arrays are overwritten by the next call.
        """
        self.send(action)
        return self.receive()

    @property
    def pending(self) -> bool:
        """Return whether actions were sent whose step was not received yet."""
        return self.action is not None

    def send(self, action: Array) -> None:
        """Give every environment its action; `receive` returns the step.

        In their own processes they start now, and overwrite the arrays of the last step.
        """
        action = self.unscaled(action)
        if self.parallel:
            self.vec.step_async(action)
        self.action = action

    def unscaled(self, action: Array) -> Array:
        """Return actions as they were before the data that a policy learned from was normalized."""
        if ACTION not in self.normalizer.scaling:
            return action
        space = self.vec.single_action_space
        return np.clip(self.normalizer.action(action), space.low, space.high)

    def own_action(self, action: Array) -> Array:
        """Return actions in the units of the environments themselves; not with `async`."""
        scaler, action = self._scaler(), self.unscaled(action)
        return action if scaler is None else np.stack([scaler.action(a) for a in action])

    def own_bounds(self) -> tuple[Array, Array] | None:
        """Return the bounds of the environments' own actions, where they have some."""
        scaler, space = self._scaler(), self.vec.single_action_space
        if scaler is not None:
            return scaler.low, scaler.high
        bounded = isinstance(space, spaces.Box) and space.is_bounded()
        return (space.low, space.high) if bounded else None

    def _scaler(self) -> wrappers.ScaleAction | None:
        env = self.vec.envs[0]
        while isinstance(env, gym.Wrapper):
            if isinstance(env, wrappers.ScaleAction):
                return env
            env = env.env
        return None

    def receive(self) -> Step:
        """Return the step that answers what was sent; the arrays are overwritten by `send`."""
        first, action, self.action = self.is_last, self.action, None
        result = self.vec.step_wait() if self.parallel else self.vec.step(action)
        obs, reward, terminated, truncated, info = result
        self.is_last = terminated | truncated
        if info or np.count_nonzero(self.is_last):  # a fifth of the time of any()
            self._collect_finals(info)
            # A suite may cut the bootstrap within an episode (Atari: a lost life).
            terminated = terminated | np.asarray(info.get("is_terminal", False), bool)
        reward = reward.astype(np.float32)
        self.raw_reward = _raw(reward, info)
        self.shown = self._named(obs)
        return self.normalizer(Step(self.shown, reward, first, self.is_last, terminated))

    def _named(self, obs: Any) -> dict[str, Array]:
        named = obs if self.key is None else {self.key: obs}
        return {k: v.astype(self.spec.obs[k].dtype, copy=False) for k, v in named.items()}

    def _collect_finals(self, info: dict[str, Any]) -> None:
        names = [k for k in info if not k.startswith("_") and k not in WITHIN]
        for i in np.flatnonzero(self.is_last):
            self.finals.append({k: float(info[k][i]) for k in names if info[f"_{k}"][i]})

    def cut(self, which: Array) -> None:
        """End the running episodes of these environments, as a time limit would."""
        finals = self.vec.call("cut", which.tolist())
        self.finals += [finals[i] for i in np.flatnonzero(which)]
        self.is_last[which] = True

    def summary(self, finals: Sequence[dict[str, float]]) -> dict[str, float]:
        """Return what the suite computes from what was reported at the end of episodes."""
        return suites.summary(self.config.suite, finals)

    def pop_finals(self) -> list[dict[str, float]]:
        """Return what was reported at the end of each episode that ended since the last call."""
        out, self.finals = self.finals, []
        return out

    def get_state(self) -> dict[str, Any]:
        """Return the state of every environment and of the normaliser, as plain data."""
        return {"envs": list(self.vec.call("get_state")), "normalizer": self.normalizer.get_state()}

    def set_state(self, state: dict[str, Any], step: Step) -> tuple[Step, list[int]]:
        """Bring every environment back to `step`; return the step to go on from, and who could not.

        Those begin a new episode, so their part of the returned step is a first one.
        """
        if self.is_last.any():
            self.vec.reset()  # else Gymnasium would still start a new episode at the next step
        results = self.vec.call("set_state", [_arrays(s) for s in state["envs"]])
        self.normalizer.set_state(state["normalizer"])
        lost = [i for i, (same, _) in enumerate(results) if not same]
        self.is_last = np.array(step.is_last, bool)
        if lost:
            step = self._restart(step, lost, [obs for _, obs in results])
        return step, lost

    def _restart(self, step: Step, lost: list[int], seen: list[Any]) -> Step:
        obs = {k: np.array(v) for k, v in step.obs.items()}
        for name, value in obs.items():
            for i in lost:
                raw = seen[i][name] if self.key is None else seen[i]
                value[i] = self.normalizer.scale(name, np.asarray(raw))
        flags = [np.array(a) for a in (step.reward, step.is_first, step.is_last, step.is_terminal)]
        for array, value in zip(flags, (0, True, False, False), strict=True):
            array[lost] = value
        self.is_last = flags[2].copy()
        return Step(obs, *flags)

    def render(self) -> Array | None:
        """Return an image of the first environment, or None where it cannot draw."""
        frame = self.vec.call("picture", 0)[0]
        return None if frame is None else np.asarray(frame)

    def close(self) -> None:
        """End every environment, once it has done what it was sent."""
        try:
            if self.pending:
                self.receive()
        finally:
            self.vec.close()


def _raw(reward: Array, info: dict[str, Any]) -> Array:
    """Return rewards as the environments count them, where a suite gives training other ones."""
    if "raw_reward" not in info:
        return reward
    return np.where(info["_raw_reward"], info["raw_reward"], reward).astype(np.float32)


def _arrays(state: dict[str, Any]) -> dict[str, Any]:
    actions = state["actions"]
    return {**state, "actions": None if actions is None else np.asarray(actions)}


def _vector(config: EnvConfig, makers: list[Callable[[], Any]]) -> Any:
    if config.vector == "sync":
        return InTurn(makers)
    return Workers(makers, _context(), config.step_timeout_s)


def _context() -> str:
    """Return how workers are started: by forking a process that has imported torch, and no more.

    To fork this one would copy its OpenGL and CUDA contexts, which then fail.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return "spawn"
    multiprocessing.get_context("forkserver").set_forkserver_preload([__name__])
    return "forkserver"
