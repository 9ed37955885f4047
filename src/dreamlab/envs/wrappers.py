"""Wrappers of one environment: all keep its interface and take dictionary observations."""

from __future__ import annotations

import zlib
from collections import deque
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from dreamlab.core.errors import EnvError
from dreamlab.core.rng import derive
from dreamlab.core.types import TaskSpec

Obs = Any
Result = tuple[Obs, float, bool, bool, dict[str, Any]]
Path = tuple[str | int, ...]


def set_drawing(env: gym.Env[Any, Any], drawing: bool) -> bool:
    """Set whether an environment's next images will be used; return the previous setting.

    An environment that can leave out drawing has an attribute `drawing`. While it is False it may
    show an old image, except in the observation that ends an episode.
    """
    base = env.unwrapped
    if not hasattr(base, "drawing"):
        return True
    before, base.drawing = base.drawing, drawing  # type: ignore[attr-defined]
    return before


class ActionRepeat(gym.Wrapper[Any, Any, Any, Any]):
    """Applies each action `repeat` times and sums the rewards; stops where the episode ends."""

    def __init__(self, env: gym.Env[Any, Any], repeat: int) -> None:
        super().__init__(env)
        self.repeat = repeat

    def step(self, action: Any) -> Result:
        total, raw, drawing = 0.0, 0.0, set_drawing(self.env, False)
        for i in range(self.repeat):
            if i == self.repeat - 1:
                set_drawing(self.env, drawing)
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            raw += info.get("raw_reward", float(reward))
            if terminated or truncated:
                break
        set_drawing(self.env, drawing)
        if raw != total or "raw_reward" in info:  # type: ignore[possibly-undefined]
            info = {**info, "raw_reward": raw}  # type: ignore[possibly-undefined]
        return obs, total, terminated, truncated, info  # type: ignore[possibly-undefined]


class ScaleAction(gym.ActionWrapper[Any, Any, Any]):
    """Takes actions in [-1, 1] and gives the environment the range it wants; clips the rest."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        space = env.action_space
        assert isinstance(space, spaces.Box)
        self.low, self.high = space.low.astype(np.float32), space.high.astype(np.float32)
        self.dtype = space.dtype
        self.action_space = spaces.Box(-1.0, 1.0, space.shape, np.float32)

    def action(self, action: Any) -> Any:
        unit = np.clip(action, -1.0, 1.0)
        scaled = self.low + (unit + 1.0) * 0.5 * (self.high - self.low)
        # Rounding may leave the range by one ulp, which some environments refuse.
        return np.clip(scaled, self.low, self.high).astype(self.dtype)


class FromZero(gym.ActionWrapper[Any, Any, Any]):
    """Counts discrete actions from zero where the environment counts from elsewhere."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.parts = env.action_space
        assert isinstance(self.parts, spaces.Discrete | spaces.MultiDiscrete)
        self.start = self.parts.start
        if isinstance(self.parts, spaces.Discrete):
            self.action_space = spaces.Discrete(int(self.parts.n))
        else:
            self.action_space = spaces.MultiDiscrete(self.parts.nvec)

    def action(self, action: Any) -> Any:
        return action + self.start


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
        return spaces.Box(0, 255, (h, w, 1 if self.gray and c == 3 else c), np.uint8)

    def _image(self, image: Any) -> Any:
        if self.size and image.shape[:2] != tuple(self.size):
            image = resize(image, self.size)
        if self.gray and image.shape[-1] == 3:
            image = to_gray(image)
        return image

    def observation(self, observation: Any) -> Any:
        if isinstance(observation, dict):
            space = self.env.observation_space
            assert isinstance(space, spaces.Dict)
            return {k: self._image(v) if is_image(space[k]) else v for k, v in observation.items()}
        return self._image(observation) if is_image(self.env.observation_space) else observation


def resize(image: Any, size: tuple[int, int]) -> Any:
    """Return an image [h, w, c] at another size, bilinear with antialiasing."""
    from PIL import Image

    height, width = size
    if image.shape[-1] in (3, 4):
        picture = Image.fromarray(np.ascontiguousarray(image))
        return np.asarray(picture.resize((width, height), Image.Resampling.BILINEAR))
    planes = [Image.fromarray(np.ascontiguousarray(image[..., c])) for c in range(image.shape[-1])]
    resized = [np.asarray(p.resize((width, height), Image.Resampling.BILINEAR)) for p in planes]
    return np.stack(resized, axis=-1)


def to_gray(image: Any) -> Any:
    """Return the luminance of an RGB image, with one channel; integers, equal on all machines."""
    red, green, blue = (image[..., i].astype(np.uint32) for i in range(3))
    return ((299 * red + 587 * green + 114 * blue) // 1000).astype(np.uint8)[..., None]


def is_image(space: spaces.Space[Any]) -> bool:
    """Return whether a space holds images: bytes of height, width, channels."""
    shape = space.shape
    bytes_ = isinstance(space, spaces.Box) and space.dtype == np.uint8
    return bytes_ and shape is not None and len(shape) == 3


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
        low = np.concatenate([space.low] * self.num, axis=-1)
        high = np.concatenate([space.high] * self.num, axis=-1)
        return spaces.Box(low, high, dtype=space.dtype.type)

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
        found = _flatten((), env.observation_space)
        self.paths = {_join(path): path for path, _ in found}
        if len(self.paths) != len(found):
            raise EnvError(f"duplicate observation name among {sorted(self.paths)}")
        if not found:
            raise EnvError(f"no observation of {env.observation_space} is numeric")
        self.starts = {
            _join(path): int(s.start) for path, s in found if isinstance(s, spaces.Discrete)
        }
        self.observation_space = spaces.Dict({_join(path): _from_zero(s) for path, s in found})

    def observation(self, observation: Any) -> Any:
        out = {}
        for name, path in self.paths.items():
            value = observation
            for key in path:
                value = value[key]
            out[name] = value - self.starts[name] if self.starts.get(name) else value
        return out


def _from_zero(space: spaces.Space[Any]) -> spaces.Space[Any]:
    return spaces.Discrete(int(space.n)) if isinstance(space, spaces.Discrete) else space


def _join(path: Path) -> str:
    return "_".join(str(key).replace("/", "_") for key in path) or "state"


def _flatten(path: Path, space: spaces.Space[Any]) -> list[tuple[Path, spaces.Space[Any]]]:
    if isinstance(space, spaces.Dict):
        return [item for k, s in space.spaces.items() for item in _flatten((*path, k), s)]
    if isinstance(space, spaces.Tuple):
        return [item for i, s in enumerate(space.spaces) for item in _flatten((*path, i), s)]
    numbers = spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
    if isinstance(space, numbers) and 0 not in (space.shape or ()):
        return [(path, space)]
    return []


class FlatActions(gym.ActionWrapper[Any, Any, Any]):
    """Turns a MultiBinary, Dict or Tuple action space into one Box or one MultiDiscrete."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.parts = _action_parts(env.action_space)
        kinds = [isinstance(s, spaces.Box) for s in self.parts]
        if not any(kinds):
            self.action_space = spaces.MultiDiscrete([n for s in self.parts for n in _choices(s)])
        elif all(kinds):
            low = np.concatenate([s.low.ravel() for s in self.parts])  # type: ignore[attr-defined]
            high = np.concatenate([s.high.ravel() for s in self.parts])  # type: ignore[attr-defined]
            self.action_space = spaces.Box(
                low.astype(np.float32), high.astype(np.float32), dtype=np.float32
            )
        else:
            raise EnvError(
                "an action space that mixes discrete and continuous parts is not supported: "
                f"{env.action_space}; use only one kind in the environment"
            )

    def action(self, action: Any) -> Any:
        values, at = [], 0
        for space in self.parts:
            size = len(_choices(space)) or int(np.prod(space.shape))  # type: ignore[arg-type]
            values.append(_as_part(np.asarray(action[at : at + size]), space))
            at += size
        return _rebuild(self.env.action_space, iter(values))


def _as_part(piece: Any, space: spaces.Space[Any]) -> Any:
    if isinstance(space, spaces.Discrete):
        return int(piece[0]) + int(space.start)
    value = piece.reshape(space.shape).astype(space.dtype)
    return value + space.start if isinstance(space, spaces.MultiDiscrete) else value


def _rebuild(space: spaces.Space[Any], values: Any) -> Any:
    if isinstance(space, spaces.Dict):
        return {k: _rebuild(s, values) for k, s in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_rebuild(s, values) for s in space.spaces)
    return next(values)


def _action_parts(space: spaces.Space[Any]) -> list[spaces.Space[Any]]:
    if isinstance(space, spaces.Dict):
        return [p for s in space.spaces.values() for p in _action_parts(s)]
    if isinstance(space, spaces.Tuple):
        return [p for s in space.spaces for p in _action_parts(s)]
    if isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return [space]
    raise EnvError(f"an action space of type {type(space).__name__} is not supported")


def _choices(space: spaces.Space[Any]) -> list[int]:
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return [int(n) for n in space.nvec.ravel()]
    return [2] * int(np.prod(space.shape)) if isinstance(space, spaces.MultiBinary) else []


class Episodes(gym.Wrapper[Any, Any, Any, Any]):
    """Gives every episode its own seed and remembers its actions, so that it can be played again.

    Episode k of env i of a run with seed s always starts from `derive(s, i, k)`. The state of a
    deterministic environment in mid-episode is therefore (k, actions so far): `set_state` resets to
    that seed, repeats the actions, and compares the last observation with the one it saw before.
    `context` is how many past steps one observation shows (the frame stack).
    """

    episode_length: int | None = None
    """Maximum decisions per episode, if known."""
    tasks: tuple[TaskSpec, ...] = ()

    def __init__(self, env: gym.Env[Any, Any], seed: int, index: int, context: int = 1) -> None:
        super().__init__(env)
        self.seed, self.index, self.context = seed, index, context
        self.episode = -1
        self.actions: list[Any] = []
        self.ended = False
        self.reset_next = False
        self.last_obs: Any = None
        self.last_info: dict[str, Any] = {}

    @property
    def frames_per_step(self) -> int:
        """Return how many frames of the simulator one step of the suite's environment takes."""
        return int(getattr(self.unwrapped, "frames_per_step", 1))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.episode += 1
        self.actions = []
        self.ended = self.reset_next = False
        # Simulators written in C take a signed 32-bit seed.
        episode_seed = derive(self.seed, self.index, self.episode) % 2**31
        self.last_obs, _ = self.env.reset(seed=episode_seed, options=options)
        return self.last_obs, {}

    def step(self, action: Any) -> Result:
        if self.reset_next:
            return self.reset()[0], 0.0, False, False, {}
        self.actions.append(action.copy() if isinstance(action, np.ndarray) else action)
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.last_obs, self.last_info = obs, info
        self.ended = bool(terminated or truncated)
        kept = self._final(info) if self.ended else {}
        if info.get("is_terminal"):
            kept["is_terminal"] = True
        if "raw_reward" in info:
            kept["raw_reward"] = float(info["raw_reward"])
        return obs, float(reward), bool(terminated), bool(truncated), kept

    def _final(self, info: dict[str, Any]) -> dict[str, Any]:
        """Keep what is reported at the end of an episode: success, and the suite's own `log/*`."""
        kept = {k: float(v) for k, v in info.items() if k.startswith("log/")}
        for name in ("success", "is_success"):
            if name in info:
                kept["success"] = float(np.asarray(info[name]).reshape(-1)[0])
        return kept

    def cut(self, which: list[bool]) -> dict[str, Any]:
        """End the running episode if `which[index]`; return what is reported at its end."""
        self.reset_next = self.reset_next or which[self.index]
        return self._final(self.last_info) if which[self.index] else {}

    def picture(self, index: int) -> Any:
        """Return what `render` draws if this is environment `index` and it can, else None."""
        try:
            return self.env.render() if index == self.index else None
        except NotImplementedError:
            return None

    def get_state(self) -> dict[str, Any]:
        """Return what it takes to bring this environment back to this very moment."""
        return {
            "episode": self.episode,
            "actions": np.asarray(self.actions) if self.actions else None,
            "ended": self.ended,
            "obs": checksum(self.last_obs),
        }

    def set_state(self, states: list[dict[str, Any]]) -> tuple[bool, Any]:
        """Restore `states[index]`; return whether it is reproduced, and the observation.

        Where it is not (an environment that is not a function of seed and actions), a new episode
        has begun instead.
        """
        state = states[self.index]
        self._replay(int(state["episode"]), state["actions"])
        same = checksum(self.last_obs) == state["obs"] and self.ended == state["ended"]
        if not same:
            self.reset()
        self.reset_next = self.ended
        return same, self.last_obs

    def _replay(self, episode: int, actions: Any) -> None:
        actions = () if actions is None else actions
        self.episode = episode - 1
        drawing = set_drawing(self, len(actions) < self.context)
        self.reset()
        for i, action in enumerate(actions):
            if i >= len(actions) - self.context:
                set_drawing(self, drawing)
            self.step(action)
            if self.ended:
                break
        set_drawing(self, drawing)


def checksum(obs: Any) -> int:
    """Return a number that differs where observations differ."""
    if obs is None:
        return 0
    if isinstance(obs, dict):
        return zlib.crc32(repr([(k, checksum(v)) for k, v in sorted(obs.items())]).encode())
    return zlib.crc32(np.ascontiguousarray(obs).tobytes())
