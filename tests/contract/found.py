"""Finds every workflow in the package, and an experiment that runs it."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import yaml

import dreamlab.workflows
from dreamlab.config import config_dir, shrink
from dreamlab.core.workflow import Workflow


def workflows() -> list[type[Workflow]]:
    found = []
    for info in pkgutil.iter_modules(dreamlab.workflows.__path__, "dreamlab.workflows."):
        module = importlib.import_module(info.name)
        found += [
            v
            for v in vars(module).values()
            if inspect.isclass(v)
            and issubclass(v, Workflow)
            and v.__module__ == info.name
            and not inspect.isabstract(v)
        ]
    return found


@cache
def experiments() -> dict[str, list[str]]:
    """Return the experiments of each workflow, by the workflow's dotted name."""
    out: dict[str, list[str]] = {}
    for path in sorted((config_dir() / "experiment").glob("*.yaml")):
        node = yaml.safe_load(path.read_text())
        if any(b.get("_target_") == "dataset" for b in node.get("buffers", {}).values()):
            continue  # no dummy can stand for its data: see tests/engine/test_from_data.py
        target = node.get("workflow", {}).get("_target_")
        out.setdefault(target, []).append(path.stem)
    return out


def experiments_of(cls: type[Workflow]) -> list[str]:
    return experiments().get(f"{cls.__module__}.{cls.__qualname__}", [])


def signature(name: str) -> str:
    """Return what is left of an experiment when it is shrunk and put on a dummy environment."""
    node = yaml.safe_load((config_dir() / "experiment" / f"{name}.yaml").read_text())
    small = shrink(node)
    phases = [p["workflow_hooks"] for p in small["training"]["phases"]]
    parts = (small["workflow"], small["buffers"], phases, node.get("precision"))
    return json.dumps(parts, sort_keys=True)


def different(names: list[str]) -> list[str]:
    """Return the experiments that are still different when shrunk, the first of each kind."""
    return list({signature(name): name for name in reversed(names)}.values())[::-1]


MOST = 1
"""Experiments of a workflow that the default tests run; the others are for `make slow`."""


def _cases() -> Iterator[Any]:
    for cls in workflows():
        for number, name in enumerate(different(experiments_of(cls))):
            marks = () if number < MOST else pytest.mark.slow
            yield pytest.param(cls, name, id=name, marks=marks)


CASES = list(_cases())
PAIRS = [(cls, name) for cls in workflows() for name in different(experiments_of(cls))]
