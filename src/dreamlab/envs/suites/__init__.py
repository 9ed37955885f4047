"""One file per suite. A suite is a function from a task name and options to a `gymnasium.Env`.

What a suite reports of an episode (`success`, `log/*`) is in the info of every step: a time limit
may end the episode where the suite does not know of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gymnasium import Env

from dreamlab.core.config import arguments
from dreamlab.core.errors import ConfigError, unknown
from dreamlab.core.locate import locate

# The function `make(task, **options)` of each suite; imported when requested.
SUITES: dict[str, str] = {
    "atari": "dreamlab.envs.suites.atari.make",
    "bsuite": "dreamlab.envs.suites.bsuite.make",
    "car_racing": "dreamlab.envs.suites.car_racing.make",
    "crafter": "dreamlab.envs.suites.crafter.make",
    "dmc": "dreamlab.envs.suites.dmc.make",
    "dmlab": "dreamlab.envs.suites.dmlab.make",
    "dummy": "dreamlab.envs.dummy.make",
    "gym": "dreamlab.envs.suites.gym.make",
    "imagined": "dreamlab.imagined_suite.make",  # it loads a run, so it lives above this package
    "loconav": "dreamlab.envs.suites.loconav.make",
    "memorymaze": "dreamlab.envs.suites.memorymaze.make",
    "metaworld": "dreamlab.envs.suites.metaworld.make",
    "minecraft": "dreamlab.envs.suites.minecraft.make",
    "minigrid": "dreamlab.envs.suites.minigrid.make",
    "mujoco": "dreamlab.envs.suites.mujoco.make",
    "multitask": "dreamlab.envs.suites.multitask.make",
    "pinpad": "dreamlab.envs.suites.pinpad.make",
    "procgen": "dreamlab.envs.suites.procgen.make",
    "pusht": "dreamlab.envs.suites.pusht.make",
}

# The function from what each episode of an evaluation reported to metrics of them all together.
SUMMARIES: dict[str, str] = {"crafter": "dreamlab.envs.suites.crafter.summary"}


def make(suite: str, task: str, options: Mapping[str, Any], where: str = "env") -> Env[Any, Any]:
    """Return one environment of a suite, with the original's preprocessing."""
    function, typed = maker(suite, options, where)
    if not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame draws without a screen
    return function(task, **typed)


def maker(
    suite: str, options: Mapping[str, Any], where: str = "env"
) -> tuple[Callable[..., Env[Any, Any]], dict[str, Any]]:
    """Return a suite's `make` and its options as it declares them; make nothing yet."""
    if suite not in SUITES:
        raise ConfigError(unknown("suite", suite, SUITES, f"{where}.suite"))
    function = locate(SUITES[suite], where)
    kind = f"option of suite {suite}"
    return function, arguments(function, options, f"{where}.options", kind, ("task",))


def summary(suite: str, finals: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return what a suite computes from all episodes of an evaluation, by name."""
    return locate(SUMMARIES[suite], "env.suite")(finals) if suite in SUMMARIES else {}
