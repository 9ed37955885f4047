"""One lab for agents that learn a model of their world, and for their baselines.

    import dreamlab

    run = dreamlab.train("ppo_cartpole", lr=1e-3, seed=1)
    agent = run.agent()
    action, state = agent.predict(obs)

The page docs/python.md has every function. Nothing heavy is imported before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dreamlab.api.agent import Agent as Agent
    from dreamlab.api.agent import load as load
    from dreamlab.api.comparing import Compared as Compared
    from dreamlab.api.comparing import compare as compare
    from dreamlab.api.dream import Dream as Dream
    from dreamlab.api.runs import Run as Run
    from dreamlab.api.runs import resume as resume
    from dreamlab.api.runs import train as train
    from dreamlab.api.tuner import Trial as Trial
    from dreamlab.api.tuner import Tuner as Tuner
    from dreamlab.config_files import experiments as experiments
    from dreamlab.core.errors import LabError as LabError

__version__ = "0.1.0"

_HOMES = {
    "Agent": "dreamlab.api.agent",
    "Compared": "dreamlab.api.comparing",
    "Dream": "dreamlab.api.dream",
    "LabError": "dreamlab.core.errors",
    "Run": "dreamlab.api.runs",
    "Trial": "dreamlab.api.tuner",
    "Tuner": "dreamlab.api.tuner",
    "compare": "dreamlab.api.comparing",
    "experiments": "dreamlab.config_files",
    "load": "dreamlab.api.agent",
    "resume": "dreamlab.api.runs",
    "train": "dreamlab.api.runs",
}

__all__ = [
    "Agent", "Compared", "Dream", "LabError", "Run", "Trial", "Tuner", "compare", "experiments",
    "load", "resume", "train",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dreamlab' has no attribute {name!r}")
    import_module("dreamlab.accel.before_torch").prepare()
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
