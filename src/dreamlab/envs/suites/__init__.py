"""One file per suite. A suite is a function from a task name and options to a `gymnasium.Env`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from dreamlab.core.config import locate
from dreamlab.core.errors import ConfigError, unknown

# The function `make(task, **options)` of each suite; imported when asked for.
SUITES: dict[str, str] = {
    "gym": "dreamlab.envs.suites.gym.make",
    "dummy": "dreamlab.envs.dummy.make",
}


def make(suite: str, task: str, options: Mapping[str, Any], where: str = "env") -> gym.Env[Any, Any]:
    """Return one environment of a suite, with the original's preprocessing."""
    if suite not in SUITES:
        raise ConfigError(unknown("suite", suite, SUITES, f"{where}.suite"))
    function = locate(SUITES[suite], where)
    names = list(inspect.signature(function).parameters)[1:]
    takes_any = any(
        p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values()
    )
    for key in options:
        if key not in names and not takes_any:
            raise ConfigError(unknown(f"option of suite {suite}", key, names, f"{where}.options"))
    return function(task, **options)
