"""Packages that request older versions than ours: how to install them, and how to let them run."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np

from dreamlab.core.errors import MissingExtraError, require

# Packages whose declared requirements clash with ours though they run: installed without them.
NO_DEPS = {
    "gym_pusht": "gym-pusht",
    "metaworld": "metaworld",
    "procgen": "procgen2 gym3",
}


def need(module: str, extra: str) -> ModuleType:
    """Import and return `module`, or say how to install it, also where pip needs `--no-deps`."""
    try:
        return require(module, extra)
    except MissingExtraError as error:
        if (top := module.split(".")[0]) not in NO_DEPS:
            raise
        raise MissingExtraError(f"{error} && pip install --no-deps {NO_DEPS[top]}") from None


class OwnRandom(gym.Wrapper[Any, Any, Any, Any]):
    """Gives an environment that draws from numpy's global generator one of its own.

    Each episode is then a function of its seed, and the run's generator is left alone.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.random = np.random.RandomState(0).get_state()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.random = np.random.RandomState(seed).get_state()
        return self._with_own(lambda: self.env.reset(seed=seed, options=options))

    def step(self, action: Any) -> Any:
        return self._with_own(lambda: self.env.step(action))

    def _with_own(self, call: Any) -> Any:
        outer = np.random.get_state()
        np.random.set_state(self.random)
        try:
            return call()
        finally:
            self.random = np.random.get_state()
            np.random.set_state(outer)


class OlderNumpy:
    """Looks like numpy, with some names that were removed from it."""

    def __init__(self, **removed: Any) -> None:
        self.removed = removed

    def __getattr__(self, name: str) -> Any:
        removed = self.__dict__["removed"]
        return removed[name] if name in removed else getattr(np, name)


def give_numpy(module: ModuleType, **removed: Any) -> None:
    """Let the code of one module see `np` with these names in it again."""
    if not all(hasattr(np, name) for name in removed):
        module.np = OlderNumpy(**removed)  # type: ignore[attr-defined]
