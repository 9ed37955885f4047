"""Anything that speaks Gymnasium: a registered id, or a user's own `module:Class`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym

from dreamlab.core.errors import EnvError, MissingExtraError, unknown

EXTRAS = {"box2d": "box2d", "mujoco": "mujoco", "ale": "atari", "pygame": "classic"}


def make(task: str, render_mode: str | None = "rgb_array", **options: Any) -> gym.Env[Any, Any]:
    """Return the environment `task`: a Gymnasium id, or `module:Class` for one that is not registered."""
    if ":" in task and not _is_registered(task.split(":", 1)[1]):
        return _from_class(task, render_mode, options)
    if task.startswith("ALE/"):
        _register_atari()
    try:
        return gym.make(task, render_mode=render_mode, disable_env_checker=True, **options)
    except gym.error.DependencyNotInstalled as error:
        extra = next((e for word, e in EXTRAS.items() if word in str(error).lower()), "all")
        raise MissingExtraError(
            f"{task} needs a package that is not installed. Install it with: pip install 'dreamlab[{extra}]'"
        ) from error
    except (gym.error.NameNotFound, gym.error.NamespaceNotFound, gym.error.VersionNotFound) as error:
        known = [n for n in gym.registry if "/" not in n]
        raise EnvError(f"{error}\n{unknown('environment', task, known, 'env.id')}") from None


def _is_registered(name: str) -> bool:
    return name in gym.registry or "-v" in name


def _register_atari() -> None:
    from dreamlab.core.errors import require

    gym.register_envs(require("ale_py", "atari"))


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
    try:
        return made(render_mode=render_mode, **options)
    except TypeError as error:
        if "render_mode" not in str(error):
            raise EnvError(f"env.id: {task} did not accept its options: {error}") from error
        return made(**options)
