"""Anything that speaks Gymnasium: a registered id, or a user's own `module:Class`."""

from __future__ import annotations

import contextlib
import importlib
import sys
import tempfile
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import gymnasium as gym

from dreamlab.core.errors import EnvError, MissingExtraError, unknown
from dreamlab.envs.car_racing_camera import Camera
from dreamlab.envs.compat import OwnRandom, need
from dreamlab.envs.rendering import setup_gl, share_context

# Beginnings of ids: the module that registers them, the extra that brings it.
PACKAGES: dict[str, tuple[str, str]] = {
    "ALE/": ("ale_py", "atari"),
    "gym_pusht/": ("gym_pusht", "pusht"),
    "Vizdoom": ("vizdoom.gymnasium_wrapper", "vizdoom"),
    "popgym-": ("popgym", "popgym"),
    "MiniGrid-": ("minigrid", "minigrid"),
    "BabyAI-": ("minigrid", "minigrid"),
    **dict.fromkeys(
        ("Fetch", "Hand", "PointMaze_", "AntMaze_", "Adroit", "FrankaKitchen"),
        ("gymnasium_robotics", "robotics"),
    ),
    **dict.fromkeys(
        ("pointmaze-", "antmaze-", "humanoidmaze-", "antsoccer-", "cube-", "scene-", "puzzle-"),
        ("ogbench", "ogbench"),
    ),
    **dict.fromkeys(
        ("visual-", "powderworld-", "online-ant-", "online-antsoccer-"), ("ogbench", "ogbench")
    ),
}
NEEDS_GL = ("gymnasium_robotics", "ogbench")
EXTRAS = {"box2d": "box2d", "mujoco": "mujoco", "ale": "atari"}
NOT_FOUND = (gym.error.NameNotFound, gym.error.NamespaceNotFound, gym.error.VersionNotFound)


def make(task: str, render_mode: str | None = "rgb_array", **options: Any) -> gym.Env[Any, Any]:
    """Return the environment `task`: a Gymnasium id, or `module:Class` of one that has no id."""
    if ":" in task and not _is_registered(task.split(":", 1)[1]):
        return _from_class(task, render_mode, options)
    module = _register(task)
    try:
        env = _make_id(task, render_mode, options)
    except gym.error.DependencyNotInstalled as error:
        extra = next((e for word, e in EXTRAS.items() if word in str(error).lower()), "all")
        raise MissingExtraError(
            f"{task} needs a package that is not installed. "
            f"Install it with: pip install 'dreamlab[{extra}]'"
        ) from error
    except NOT_FOUND as error:
        known = get_close_matches(task, list(gym.registry), n=10, cutoff=0.3)
        raise EnvError(f"{error}\n{unknown('environment', task, known, 'env.id')}") from None
    except TypeError as error:
        raise EnvError(f"env.options: not accepted by {task}: {error}") from error
    return _mended(share_context(env), module)


def _mended(env: gym.Env[Any, Any], module: str | None) -> gym.Env[Any, Any]:
    """Return an environment without the known faults of its package."""
    if module == "ogbench":
        return OwnRandom(env)
    if module == "vizdoom.gymnasium_wrapper":
        return _Doom(env)
    if type(env.unwrapped).__name__ == "BipedalWalker":
        return _FreshWorld(env)
    return _Racing(env) if type(env.unwrapped).__name__ == "CarRacing" else env


class _FreshWorld(gym.Wrapper[Any, Any, Any, Any]):
    """Gives every episode its own Box2D world: a used one remembers its last time step."""

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        base: Any = self.unwrapped
        base._destroy()
        base.world = type(base.world)(gravity=base.world.gravity)
        return self.env.reset(**kwargs)


class _Racing(_FreshWorld):
    """CarRacing with a faster camera, which draws nothing between the frames of a decision."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        base: Any = self.unwrapped
        self.camera = base._render = Camera(base)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        if (terminated or truncated) and not self.camera.env.drawing:
            obs = self.camera.draw()
        return obs, reward, terminated, truncated, info


class _Doom(gym.Wrapper[Any, Any, Any, Any]):
    """Keeps Doom's settings out of the working folder, and time limits apart from terminations."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        base: Any = env.unwrapped
        base.frames_per_step = base.frame_skip
        self.folder = tempfile.TemporaryDirectory(prefix="vizdoom-")
        base.game.set_doom_config_path(f"{self.folder.name}/vizdoom.ini")

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated and not truncated, truncated, info

    def close(self) -> None:
        super().close()
        self.folder.cleanup()
        with contextlib.suppress(OSError):
            Path("_vizdoom").rmdir()  # the game makes it where it is started, and leaves it empty


def _make_id(task: str, render_mode: str | None, options: dict[str, Any]) -> gym.Env[Any, Any]:
    try:
        return gym.make(task, render_mode=render_mode, disable_env_checker=True, **options)
    except TypeError as error:
        if "render_mode" not in str(error):
            raise
    return gym.make(task, disable_env_checker=True, **options)  # one that never draws


def _is_registered(name: str) -> bool:
    return name in gym.registry or "-v" in name


def _register(task: str) -> str | None:
    """Import the package that registers an id, where it is one we know; return its name."""
    for prefix, (module, extra) in PACKAGES.items():
        if task.startswith(prefix):
            if module in NEEDS_GL:
                setup_gl(required=False)
            gym.register_envs(need(module, extra))
            return module
    return None


def _from_class(task: str, render_mode: str | None, options: dict[str, Any]) -> gym.Env[Any, Any]:
    module_name, name = task.split(":", 1)
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise EnvError(f"env.id: cannot import {module_name!r} of {task!r}: {error}") from error
    if not hasattr(module, name):
        names = [n for n, v in vars(module).items() if isinstance(v, type)]
        raise EnvError(unknown(f"class in {module_name}", name, names, "env.id"))
    made = getattr(module, name)
    if not (isinstance(made, type) and hasattr(made, "reset") and hasattr(made, "step")):
        raise EnvError(
            f"env.id: {task} is not an environment: expected a class with reset and step"
        )
    try:
        return made(render_mode=render_mode, **options)
    except TypeError as error:
        if "render_mode" not in str(error) and "takes no arguments" not in str(error):
            raise EnvError(f"env.id: {task} did not accept its options: {error}") from error
    try:
        return made(**options)
    except TypeError as error:
        raise EnvError(f"env.id: {task} did not accept its options: {error}") from error
