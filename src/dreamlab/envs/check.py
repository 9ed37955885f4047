"""Tries an environment out and says what is wrong with it and how to mend it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from dreamlab.core.errors import LabError
from dreamlab.core.findings import Finding
from dreamlab.core.types import Step
from dreamlab.envs import suites
from dreamlab.envs.guard import SILENCE, Overdue, is_ctrl_c, making, told, watched
from dreamlab.envs.vector import EnvConfig, Envs, make_env
from dreamlab.envs.wrappers import checksum

SIGNATURE = "def reset(self, *, seed=None, options=None): super().reset(seed=seed); ..."
NO_LIMIT = "evaluation episodes would run until eval.max_steps; set env.time_limit"
NUMBERS = spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary


@dataclass(frozen=True)
class Limits:
    """How long the checks may take."""

    steps: int = 50
    """Steps of each short rollout."""
    episode_steps: int = 5_000
    """Maximum steps to wait for the end of an episode."""
    episode_s: float = 20.0
    """Maximum seconds to wait for the end of an episode."""


def check(config: EnvConfig, limits: Limits | None = None) -> list[Finding]:
    """Return what was found, in the order it was tried; a fault that hides others ends it."""
    limits = limits or Limits()
    try:
        with making(config.id, index=0):
            env = suites.make(config.suite, config.id, config.options)
    except LabError as error:
        return [Finding("error", str(error))]
    found: list[Finding] = []
    for basic in (_check_spaces(env), _check_reset(env), _check_steps(env, limits)):
        found += _run(basic, config)
        if any(f.level == "error" for f in found):
            return found
    through = (
        _check_actions(env, config),
        _check_seed(env, config, limits),
        _check_render(env, limits),
        _check_end(config, limits),
        _check_timeline(config, limits),
        _check_resume(config, limits),
    )
    for part in through:
        found += _run(part, config)
        if any(SILENCE in f.text for f in found):
            break
    env.close()
    return found


def _run(part: Iterator[Finding], config: EnvConfig) -> Iterator[Finding]:
    """Yield what a part finds; whatever ends it, `SystemExit` and a hang included, is found too."""
    try:
        with watched(config.step_timeout_s):
            yield from part
    except Overdue:
        limit = f"{config.step_timeout_s:g} s (env.step_timeout_s)"
        yield Finding("error", f"the environment hangs: {SILENCE} {limit}")
    except LabError as error:
        yield Finding("error", str(error))
    except BaseException as error:
        if is_ctrl_c(error):
            raise
        yield Finding("error", f"the environment raised {told(error)}")


def _check_spaces(env: gym.Env[Any, Any]) -> Iterator[Finding]:
    for name in ("observation_space", "action_space"):
        space = getattr(env, name, None)
        if not isinstance(space, spaces.Space):
            yield Finding(
                "error", f"`{name}` is {space!r}; set it to a gymnasium space in __init__"
            )
            return
        unknown = [type(s).__name__ for s in _leaves(space) if not isinstance(s, NUMBERS)]
        if unknown and name == "action_space":
            yield Finding("error", f"action_space has parts of type {unknown}; use Box or Discrete")
        elif unknown and len(unknown) == len(list(_leaves(space))):
            yield Finding("error", f"observation_space consists of {unknown}, which is not numeric")
        elif unknown:
            yield Finding("warning", f"observations of type {unknown} are ignored")
    for leaf in _leaves(env.observation_space):
        yield from _check_image(leaf)
    yield Finding("ok", f"spaces: {env.observation_space} -> {env.action_space}")


def _leaves(space: spaces.Space[Any]) -> Iterator[spaces.Space[Any]]:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        for part in parts:
            yield from _leaves(part)
    else:
        yield space


def _check_image(space: spaces.Space[Any]) -> Iterator[Finding]:
    if not isinstance(space, spaces.Box) or len(space.shape) != 3:
        return
    if space.dtype != np.uint8:
        yield Finding(
            "warning",
            f"an observation of shape {space.shape} is {space.dtype}; images must be uint8 in "
            f"0..255",
        )
    elif space.shape[0] in (1, 3, 4) and space.shape[2] not in (1, 3, 4):
        yield Finding(
            "error",
            f"an image of shape {space.shape} is channels-first; use height, width, channels",
        )


def _check_reset(env: gym.Env[Any, Any]) -> Iterator[Finding]:
    try:
        result: Any = env.reset(seed=0)
    except TypeError as error:
        if "seed" not in str(error):
            raise
        yield Finding(
            "error", f"reset does not accept a seed ({error}); declare it as `{SIGNATURE}`"
        )
        return
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], dict):
        got = type(result).__name__
        yield Finding("error", f"reset must return (observation, info dict); it returned a {got}")
        return
    problems = list(_problems("reset", result[0], env.observation_space))
    yield from problems
    if not problems:
        yield Finding("ok", "reset accepts a seed and returns an observation and info")


def _problems(where: str, obs: Any, space: spaces.Space[Any]) -> Iterator[Finding]:
    """Return why an observation is outside its space."""
    if isinstance(space, spaces.Dict):
        if not isinstance(obs, dict) or set(obs) != set(space.spaces):
            keys = sorted(obs) if isinstance(obs, dict) else type(obs).__name__
            want = sorted(space.spaces)
            yield Finding("error", f"{where}: an observation must be a dict of {want}; got {keys}")
            return
        for key, part in space.spaces.items():
            yield from _problems(f"{where}[{key!r}]", obs[key], part)
    elif isinstance(space, spaces.Box):
        yield from _box_problems(where, obs, space)
    elif isinstance(space, NUMBERS | spaces.Tuple) and not space.contains(obs):
        yield Finding("error", f"{where}: the observation {obs!r} is not in {space}")


def _box_problems(where: str, obs: Any, space: spaces.Box) -> Iterator[Finding]:
    if not isinstance(obs, np.ndarray | np.generic):
        kind = type(obs).__name__
        yield Finding("error", f"{where}: an observation of type {kind}; return a numpy array")
        return
    for name in ("shape", "dtype"):
        mine, wanted = getattr(obs, name), getattr(space, name)
        fits = mine == wanted if name == "shape" else np.can_cast(mine, wanted, "same_kind")
        if not fits:
            text = f"{where}: an observation of {name} {mine}, but the space says {wanted}"
            yield Finding("error", text)
            return
    value: Any = obs
    if not np.isfinite(value).all():
        yield Finding(
            "error", f"{where}: the observation is not finite; check for division by zero"
        )
    elif (value < space.low).any() or (value > space.high).any():
        yield Finding(
            "warning", f"{where}: an observation is outside its space; widen the space or clip"
        )


def _check_steps(env: gym.Env[Any, Any], limits: Limits) -> Iterator[Finding]:
    env.action_space.seed(0)
    old, _ = env.reset(seed=0)
    before = checksum(old)
    seen: set[Finding] = set()
    for _ in range(limits.steps):
        result: Any = env.step(env.action_space.sample())
        for fault in _step_problems(result, env.observation_space):
            if fault not in seen:
                yield fault
            seen.add(fault)
        if not isinstance(result, tuple) or len(result) != 5:
            return
        if isinstance(result[0], np.ndarray) and checksum(old) != before:
            yield Finding(
                "error", "the array of an earlier observation was overwritten; return a copy"
            )
            return
        old, before = result[0], checksum(result[0])
        if result[2] or result[3]:
            old, _ = env.reset()
            before = checksum(old)
    if not seen:
        yield Finding("ok", f"{limits.steps} steps: observations, rewards and flags are valid")


def _step_problems(result: Any, space: spaces.Space[Any]) -> Iterator[Finding]:
    if not isinstance(result, tuple) or len(result) != 5:
        size = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
        form = "(obs, reward, terminated, truncated, info)"
        yield Finding("error", f"step must return {form}; it returned {size}")
        return
    yield from _problems("step", result[0], space)
    yield from (Finding("error", f"step: {text}") for text in _value_problems(*result[1:]))


def _value_problems(reward: Any, terminated: Any, truncated: Any, info: Any) -> Iterator[str]:
    if np.ndim(reward) != 0 or isinstance(reward, str | type(None)):
        yield f"the reward must be one number; got {reward!r}"
    elif not np.isfinite(float(reward)):
        yield f"the reward is {reward}; it must be finite"
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, bool | np.bool_):
            yield f"`{name}` must be a bool; got {flag!r}"
    if not isinstance(info, dict):
        yield f"the info must be a dict; got {type(info).__name__}"


def _check_actions(env: gym.Env[Any, Any], config: EnvConfig) -> Iterator[Finding]:
    space = env.action_space
    if not isinstance(space, spaces.Box):
        return
    if not space.is_bounded():
        level = "error" if config.scale_actions else "warning"
        yield Finding(level, f"the action space {space} is unbounded; set finite bounds")
        return
    for name, action in (("lowest", space.low), ("highest", space.high)):
        env.reset(seed=0)
        obs, reward, *_ = env.step(action)
        yield from _problems(f"step with the {name} action", obs, env.observation_space)
        if not np.isfinite(float(reward)):
            yield Finding("error", f"the {name} action gives a reward of {reward}")
    if not np.allclose(space.low, -1) or not np.allclose(space.high, 1):
        how = "is scaled to [-1, 1]" if config.scale_actions else "is not rescaled"
        yield Finding("ok", f"the action range [{space.low.min()}, {space.high.max()}] {how}")


def _trace(env: gym.Env[Any, Any], seed: int, steps: int, render: bool = False) -> list[Any]:
    """Return what happens in an episode with fixed actions, as checksums."""
    space = env.action_space  # some environments make a new one each time they are asked
    space.seed(seed)
    obs, _ = env.reset(seed=seed)
    out: list[Any] = [checksum(obs)]
    for _ in range(steps):
        if render:
            env.render()
        obs, reward, terminated, truncated, _ = env.step(space.sample())
        out.append((checksum(obs), float(reward), bool(terminated), bool(truncated)))
        if terminated or truncated:
            break
    return out


def _check_seed(env: gym.Env[Any, Any], config: EnvConfig, limits: Limits) -> Iterator[Finding]:
    first = _trace(env, 1, limits.steps)
    _trace(env, 2, limits.steps)
    again = _trace(env, 1, limits.steps)
    other = suites.make(config.suite, config.id, config.options)
    fresh = _trace(other, 1, limits.steps)
    other.close()
    if first == again == fresh:
        yield Finding("ok", "deterministic: the same seed and actions give the same episode")
        return
    if first[0] != again[0] or first[0] != fresh[0]:
        how = "reset ignores its seed: use only self.np_random"
    else:
        at = next(
            i for i, s in enumerate(zip(first, again, fresh, strict=False)) if len(set(s)) > 1
        )
        how = f"episodes with the same seed differ from step {at}: use only self.np_random"
    yield Finding("warning", f"{how}. Training works, but a resumed run starts new episodes")


def _check_render(env: gym.Env[Any, Any], limits: Limits) -> Iterator[Finding]:
    env.reset(seed=1)
    try:
        frame: Any = env.render()
    except NotImplementedError:
        frame = None
    if frame is None:
        yield Finding(
            "warning", "render returns None, so there will be no videos: return an RGB array"
        )
        return
    frame = np.asarray(frame)
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[-1] != 3:
        got = f"{frame.dtype} of shape {frame.shape}"
        yield Finding("error", f"render must return uint8 [height, width, 3]; it returned {got}")
        return
    if frame.max() == frame.min():
        yield Finding("warning", "render returned an image of a single color: check OpenGL")
    steps = min(limits.steps, 20)
    blind = _trace(env, 1, steps)
    if blind == _trace(env, 1, steps) and blind != _trace(env, 1, steps, render=True):
        yield Finding("error", "render changes the state of the environment: it must not")
        return
    yield Finding("ok", f"render returns an image of {frame.shape[1]}x{frame.shape[0]}")


def _check_end(config: EnvConfig, limits: Limits) -> Iterator[Finding]:
    env = make_env(config, seed=0, index=0)
    env.action_space.seed(0)
    env.reset()
    start, steps = time.monotonic(), 0
    while steps < limits.episode_steps and time.monotonic() - start < limits.episode_s:
        _, _, terminated, _, _ = env.step(env.action_space.sample())
        steps += 1
        if env.ended:
            why = "terminated" if terminated else "truncated"
            yield Finding("ok", f"an episode of random actions was {why} after {steps} steps")
            if terminated and not _has_limit(env, config):
                yield Finding("warning", f"no time limit: {NO_LIMIT}")
            break
    else:
        yield Finding("warning", f"no episode ended within {steps} random steps: {NO_LIMIT}")
    env.close()


def _has_limit(env: gym.Env[Any, Any], config: EnvConfig) -> bool:
    """Return whether something is known to end every episode; suites of ours do so themselves."""
    while isinstance(env, gym.Wrapper):
        if isinstance(env, gym.wrappers.TimeLimit):
            return True
        env = env.env
    return config.suite not in ("gym", "mujoco")


def _check_timeline(config: EnvConfig, limits: Limits) -> Iterator[Finding]:
    """Step two environments past the end of an episode and look at the flags."""
    envs = Envs(replace(config, num_envs=2, vector="sync"), seed=0)
    space = envs.vec.action_space
    space.seed(0)
    step, ends, start = envs.reset(), 0, time.monotonic()
    while ends < 4 and time.monotonic() - start < limits.episode_s:
        last = step.is_last.copy()
        step = envs.step(np.asarray(space.sample()))
        ends += int(last.sum())
        wrong = (step.is_first != last) | (step.is_first & ((step.reward != 0) | step.is_last))
        if wrong.any():
            yield Finding(
                "error", "the step after the end of an episode must have is_first; see Step"
            )
            break
    else:
        if ends:
            yield Finding("ok", f"{ends} episodes ended and were reset in a vector of two")
    envs.close()


def _check_resume(config: EnvConfig, limits: Limits) -> Iterator[Finding]:
    """Compare going on with stopping, starting fresh environments and coming back."""
    config = replace(config, num_envs=2, vector="sync")
    one, two = Envs(config, seed=3), Envs(config, seed=3)
    space = one.vec.action_space
    space.seed(1)
    step = one.reset()
    for _ in range(limits.steps // 2):
        step = one.step(np.asarray(space.sample()))
    saved = _copy(step)
    back, lost = two.set_state(one.get_state(), saved)
    same = not lost and _same(back, step)
    for _ in range(limits.steps // 2 if same else 0):
        action = np.asarray(space.sample())
        same = same and _same(one.step(action), two.step(action))
    one.close()
    two.close()
    if same:
        yield Finding("ok", "an interrupted episode resumes exactly, by replaying its actions")
    else:
        yield Finding(
            "warning",
            "an episode cannot be resumed exactly (it is not deterministic given its seed and "
            "actions); a resumed run starts a new one",
        )


def _copy(step: Step) -> Step:
    arrays = (step.reward, step.is_first, step.is_last, step.is_terminal)
    return Step({k: v.copy() for k, v in step.obs.items()}, *(a.copy() for a in arrays))


def _same(a: Step, b: Step) -> bool:
    pairs = [(a.obs[k], b.obs[k]) for k in a.obs]
    pairs += [(a.reward, b.reward), (a.is_first, b.is_first), (a.is_last, b.is_last)]
    return all(np.array_equal(x, y) for x, y in pairs)
