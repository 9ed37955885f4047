"""Wrappers of one environment. All keep the Gymnasium interface; all work on dictionary observations."""

from __future__ import annotations

import zlib
from collections import deque
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from dreamlab.core.rng import derive

Obs = Any
Result = tuple[Obs, float, bool, bool, dict[str, Any]]


class ActionRepeat(gym.Wrapper[Any, Any, Any, Any]):
    """Applies each action `repeat` times and sums the rewards; stops where the episode ends."""

    def __init__(self, env: gym.Env[Any, Any], repeat: int) -> None:
        super().__init__(env)
        self.repeat = repeat

    def step(self, action: Any) -> Result:
        total = 0.0
        for _ in range(self.repeat):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, info  # type: ignore[possibly-undefined]


class ScaleAction(gym.ActionWrapper[Any, Any, Any]):
    """Takes actions in [-1, 1] and gives the environment the range it wants; clips what is outside."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        space = env.action_space
        assert isinstance(space, spaces.Box)
        self.low, self.high = space.low.astype(np.float32), space.high.astype(np.float32)
        self.dtype = space.dtype
        self.action_space = spaces.Box(-1.0, 1.0, space.shape, np.float32)

    def action(self, action: Any) -> Any:
        unit = np.clip(action, -1.0, 1.0)
        return (self.low + (unit + 1.0) * 0.5 * (self.high - self.low)).astype(self.dtype)


class MapImages(gym.ObservationWrapper[Any, Any, Any]):
    """Resizes images (as PIL does) and turns them gray; leaves every other observation alone."""

    def __init__(
        self, env: gym.Env[Any, Any], size: tuple[int, int] | None, gray: bool = False
    ) -> None:
        super().__init__(env)
        self.size, self.gray = size, gray
        self.observation_space = _map_space(env.observation_space, self._space)

    def _space(self, space: spaces.Space[Any]) -> spaces.Space[Any]:
        if not is_image(space):
            return space
        h, w, c = space.shape  # type: ignore[misc]
        h, w = self.size or (h, w)
        return spaces.Box(0, 255, (h, w, 1 if self.gray else c), np.uint8)

    def _image(self, image: Any) -> Any:
        if self.size and image.shape[:2] != self.size:
            image = resize(image, self.size)
        if self.gray and image.shape[-1] == 3:
            image = to_gray(image)
        return image

    def observation(self, observation: Any) -> Any:
        if isinstance(observation, dict):
            space = self.env.observation_space
            assert isinstance(space, spaces.Dict)
            return {k: self._image(v) if is_image(space[k]) else v for k, v in observation.items()}
        return self._image(observation)


def resize(image: Any, size: tuple[int, int]) -> Any:
    """Return an image [h, w, c] at another size, bilinear with antialiasing."""
    from PIL import Image

    if image.shape[-1] == 1:
        picture = Image.fromarray(image[..., 0])
    else:
        picture = Image.fromarray(image)
    out = np.asarray(picture.resize(size[::-1], Image.Resampling.BILINEAR))
    return out[..., None] if out.ndim == 2 else out


def to_gray(image: Any) -> Any:
    """Return the luminance of an RGB image, with one channel."""
    weights = np.array([0.299, 0.587, 0.114], np.float32)
    return (image @ weights).astype(np.uint8)[..., None]


def is_image(space: spaces.Space[Any]) -> bool:
    """Tell whether a space holds images: bytes of height, width, channels."""
    shape = space.shape
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and shape is not None and len(shape) == 3


def _map_space(space: spaces.Space[Any], fn: Any) -> spaces.Space[Any]:
    if isinstance(space, spaces.Dict):
        return spaces.Dict({k: fn(v) for k, v in space.spaces.items()})
    return fn(space)


class FrameStack(gym.ObservationWrapper[Any, Any, Any]):
    """Shows the last `num` observations: images along the channels, vectors end to end."""

    def __init__(self, env: gym.Env[Any, Any], num: int) -> None:
        super().__init__(env)
        self.num = num
        self.frames: deque[Any] = deque(maxlen=num)
        self.observation_space = _map_space(env.observation_space, self._space)

    def _space(self, space: spaces.Space[Any]) -> spaces.Space[Any]:
        if not isinstance(space, spaces.Box) or not space.shape:
            return space
        axis = len(space.shape) - 1
        return spaces.Box(
            np.repeat(space.low, self.num, axis), np.repeat(space.high, self.num, axis), dtype=space.dtype.type  # type: ignore[union-attr]
        )

    def reset(self, **kwargs: Any) -> tuple[Obs, dict[str, Any]]:
        self.frames.clear()
        return super().reset(**kwargs)

    def observation(self, observation: Any) -> Any:
        while len(self.frames) < self.num - 1:
            self.frames.append(observation)
        self.frames.append(observation)
        space = self.env.observation_space
        if isinstance(space, spaces.Dict):
            return {k: self._stack([f[k] for f in self.frames], space[k]) for k in observation}
        return self._stack(list(self.frames), space)

    def _stack(self, frames: list[Any], space: spaces.Space[Any]) -> Any:
        if not isinstance(space, spaces.Box) or not space.shape:
            return frames[-1]
        return np.concatenate(frames, axis=-1)


class NameObs(gym.ObservationWrapper[Any, Any, Any]):
    """Gives every observation a flat name and drops what is not a number (text, graphs)."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        found = dict(_flatten("", env.observation_space))
        self.paths = {path.replace("/", "_"): path.split("/") for path in found}
        self.observation_space = spaces.Dict({n.replace("/", "_"): s for n, s in found.items()})

    def observation(self, observation: Any) -> Any:
        out = {}
        for name, path in self.paths.items():
            value = observation
            for key in path:
                value = value[int(key)] if isinstance(value, tuple) else value[key]
            out[name] = value
        return out


def _flatten(prefix: str, space: spaces.Space[Any]) -> list[tuple[str, spaces.Space[Any]]]:
    if isinstance(space, spaces.Dict):
        pairs = list(space.spaces.items())
    elif isinstance(space, spaces.Tuple):
        pairs = [(str(i), s) for i, s in enumerate(space.spaces)]
    elif isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return [(prefix, space)]
    else:
        return []
    return [item for k, s in pairs for item in _flatten(f"{prefix}/{k}" if prefix else k, s)]


class FlatActions(gym.ActionWrapper[Any, Any, Any]):
    """Turns a MultiBinary, Dict or Tuple action space into one Box or one MultiDiscrete."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.parts = _action_parts(env.action_space)
        discrete = [isinstance(s, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary) for s in self.parts]
        if all(discrete):
            self.action_space = spaces.MultiDiscrete([n for s in self.parts for n in _choices(s)])
        elif not any(discrete):
            low = np.concatenate([s.low.ravel() for s in self.parts])  # type: ignore[attr-defined]
            high = np.concatenate([s.high.ravel() for s in self.parts])  # type: ignore[attr-defined]
            self.action_space = spaces.Box(low, high, dtype=np.float32)
        else:
            raise ValueError("an action space that mixes discrete and continuous parts is not supported")

    def action(self, action: Any) -> Any:
        values, at = [], 0
        for space in self.parts:
            size = len(_choices(space)) or int(np.prod(space.shape))  # type: ignore[arg-type]
            piece = np.asarray(action[at : at + size])
            values.append(int(piece[0]) if isinstance(space, spaces.Discrete) else piece.reshape(space.shape))  # type: ignore[arg-type]
            at += size
        space = self.env.action_space
        if isinstance(space, spaces.Dict):
            return dict(zip(space.spaces, values, strict=True))
        return tuple(values) if isinstance(space, spaces.Tuple) else values[0]


def _action_parts(space: spaces.Space[Any]) -> list[spaces.Space[Any]]:
    if isinstance(space, spaces.Dict):
        return list(space.spaces.values())
    return list(space.spaces) if isinstance(space, spaces.Tuple) else [space]


def _choices(space: spaces.Space[Any]) -> list[int]:
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return [int(n) for n in space.nvec.ravel()]
    return [2] * int(np.prod(space.shape)) if isinstance(space, spaces.MultiBinary) else []  # type: ignore[arg-type]


class Episodes(gym.Wrapper[Any, Any, Any, Any]):
    """Gives every episode its own seed and remembers its actions, so that it can be played again.

    Episode k of env i of a run with seed s always starts from `derive(s, i, k)`. The state of a
    deterministic environment in mid-episode is therefore (k, actions so far): `set_state` resets to
    that seed, repeats the actions, and compares the last observation with the one it saw before.
    """

    def __init__(self, env: gym.Env[Any, Any], seed: int, index: int) -> None:
        super().__init__(env)
        self.seed, self.index = seed, index
        self.episode = -1
        self.actions: list[Any] = []
        self.ended = False
        self.reset_next = False
        self.last_obs: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.episode += 1
        self.actions = []
        self.ended = False
        episode_seed = derive(self.seed, self.index, self.episode)
        self.last_obs, _ = self.env.reset(seed=episode_seed, options=options)
        return self.last_obs, {}

    def step(self, action: Any) -> Result:
        if self.reset_next:
            self.reset_next = False
            return self.reset()[0], 0.0, False, False, {}
        self.actions.append(action.copy() if isinstance(action, np.ndarray) else action)
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.last_obs = obs
        self.ended = bool(terminated or truncated)
        return obs, reward, terminated, truncated, self._final(info) if self.ended else {}  # type: ignore[return-value]

    def _final(self, info: dict[str, Any]) -> dict[str, Any]:
        """Keep what is reported at the end of an episode: success, and the suite's own `log/*`."""
        kept = {k: float(v) for k, v in info.items() if k.startswith("log/")}
        for name in ("success", "is_success"):
            if name in info:
                kept["success"] = float(np.asarray(info[name]).reshape(-1)[0])
        return kept

    def get_state(self) -> dict[str, Any]:
        """Return what it takes to bring this environment back to this very moment."""
        return {
            "episode": self.episode,
            "actions": np.asarray(self.actions) if self.actions else None,
            "ended": self.ended,
            "obs": checksum(self.last_obs),
        }

    def set_state(self, states: list[dict[str, Any]]) -> tuple[bool, Any]:
        """Come back to the moment of `states[index]`; tell whether it is the same, and what is seen.

        Where it is not (an environment that is not a function of seed and actions), a new episode
        has begun instead.
        """
        state = states[self.index]
        self.episode = int(state["episode"]) - 1
        self.reset()
        for action in state["actions"] if state["actions"] is not None else ():
            self.step(action)
            if self.ended:
                break
        same = checksum(self.last_obs) == state["obs"] and self.ended == state["ended"]
        if not same:
            self.reset()
        self.reset_next = self.ended
        return same, self.last_obs


def checksum(obs: Any) -> int:
    """Return a number that differs where observations differ."""
    if isinstance(obs, dict):
        return zlib.crc32(repr([(k, checksum(v)) for k, v in sorted(obs.items())]).encode())
    return zlib.crc32(np.ascontiguousarray(obs).tobytes())
