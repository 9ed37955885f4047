"""Workflows by their short names."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest
from tests.helpers import config_of

from dreamlab import workflows
from dreamlab.config import dump
from dreamlab.core.errors import ConfigError
from dreamlab.core.workflow import Workflow


def test_every_algorithm_has_a_short_name():
    modules = [
        importlib.import_module(f"{workflows.__name__}.{found.name}")
        for found in pkgutil.iter_modules(workflows.__path__)
    ]
    classes = {
        f"{m.__name__}.{name}"
        for m in modules
        for name, cls in vars(m).items()
        if inspect.isclass(cls) and issubclass(cls, Workflow) and cls.__module__ == m.__name__
    }
    assert set(workflows.PARTS.values()) == classes
    for name, path in workflows.PARTS.items():
        assert path.startswith(f"dreamlab.workflows.{name}.")


def test_a_short_name_stands_for_the_class_with_its_defaults():
    named = config_of("+experiment=mpc_pendulum", "workflow=mpc")
    assert dump(named)["workflow"]["_target_"] == "dreamlab.workflows.mpc.MPC"
    assert named.workflow.config.model.config.reward is None, "naming a class resets its options"
    small = config_of("+experiment=mpc_pendulum", "workflow=mpc", "tiny=true")
    samples = [c.workflow.config.planner.config.samples for c in (small, named)]
    assert samples[0] < samples[1]
    with pytest.raises(ConfigError, match=r"no part 'mcp'\. Did you mean 'mpc'"):
        config_of("+experiment=mpc_pendulum", "workflow=mcp")
