"""Which environments an untrusted configuration may use: registered tasks, plain options."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

from dreamlab.core.locate import locate
from dreamlab.envs.suites import SUITES

# A dream is made from a folder with its own configuration; several tasks name more suites.
ALLOWED = frozenset(SUITES) - {"imagined", "multitask"}
# A word without `module:`, and without a way out of a folder: `Ant-v5`, `ALE/Pong-v5`, `catch/0`.
WORD = r"[A-Za-z0-9][\w.-]*"
TASK = re.compile(rf"{WORD}(/{WORD})?")
# Options that a suite hands on to the environment unread: numbers and switches of the tasks
# themselves. None is a file, a module, a function or a window on the screen.
NUMBERS = frozenset({
    "classes", "contact_cost_range", "contact_cost_weight", "contact_force_range", "continuous",
    "ctrl_cost_weight", "domain_randomize", "enable_wind",
    "exclude_current_positions_from_observation", "forward_reward_weight", "frame_skip", "g",
    "goal_velocity", "gravity", "grid", "hardcore", "healthy_angle_range", "healthy_reward",
    "healthy_state_range", "healthy_z_range", "impact_cost_range", "impact_cost_weight",
    "include_cfrc_ext_in_observation", "include_cinert_in_observation",
    "include_cvel_in_observation", "include_qfrc_actuator_in_observation", "is_slippery",
    "lap_complete_percent", "length", "max_episode_steps", "natural", "reset_noise_scale",
    "reward_control_weight", "reward_dist_weight", "reward_near_weight", "sab", "size",
    "success_rate", "sutton_barto_reward", "terminal", "terminate_when_unhealthy",
    "turbulence_power", "uph_cost_weight", "wind_power",
})  # fmt: skip
WORDS = frozenset({"obs_type"})


def foreign(suite: Any, task: Any, options: Any) -> str | None:
    """Return what an untrusted configuration may not request of an environment, or None."""
    if not isinstance(suite, str) or suite not in ALLOWED:
        return f"{task!r} of suite {suite!r}"
    if not isinstance(task, str) or (task and not TASK.fullmatch(task)):  # none may be named
        return f"{task!r}"
    if not isinstance(options, Mapping):
        return f"{task!r} with {options!r}"
    odd = {k: v for k, v in options.items() if not _is_plain(suite, k, v)}
    return f"{task!r} with {', '.join(f'{k}={v!r}' for k, v in odd.items())}" if odd else None


def _is_plain(suite: str, key: Any, value: Any) -> bool:
    """Return whether an option is one that a suite declares, or one of those known here."""
    if key == "render_mode":
        return value in ("rgb_array", None)
    parameters = list(inspect.signature(locate(SUITES[suite], "env")).parameters.values())[1:]
    takes = {p.name for p in parameters if p.kind is not p.VAR_KEYWORD}
    if isinstance(value, str):
        return key in takes | WORDS and re.fullmatch(WORD, value) is not None
    return key in takes | NUMBERS and _is_number(value)


def _is_number(value: Any) -> bool:
    """Return whether a value is a number, a switch, nothing, or a few of those."""
    if isinstance(value, list | tuple):
        return len(value) <= 4 and not any(isinstance(v, list | tuple | dict | str) for v in value)
    return value is None or isinstance(value, int | float)
