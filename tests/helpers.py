"""Small runs for tests: built like the command line builds them."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dreamlab import build, training
from dreamlab.config import LabConfig, compose, load_config
from dreamlab.engine.logger import MACHINE
from dreamlab.engine.observer import StopWhen
from dreamlab.engine.orchestrator import Orchestrator
from dreamlab.engine.terminal import Terminal


def some_of(cases: Sequence[Any], quick: int = 1) -> list[Any]:
    """Return parameters of which the default tests take the first, and `make slow` the rest."""
    later = [c if isinstance(c, tuple) else (c,) for c in cases[quick:]]
    return [*cases[:quick], *(pytest.param(*c, marks=pytest.mark.slow) for c in later)]


def config_of(*overrides: str) -> LabConfig:
    return load_config(compose(list(overrides)))


def open_loop(folder: Path, *overrides: str) -> Orchestrator:
    """Return the loop of a run directory, new or resumed, as `dreamlab train` would make it."""
    return open_config(folder, config_of(*overrides))


def open_config(folder: Path, config: LabConfig) -> Orchestrator:
    """Return the loop of a run directory with this configuration."""
    config = replace(
        config,
        run=replace(config.run, dir=str(folder)),
        log=replace(config.log, terminal="off"),
    )
    with training.open_run(config) as opened:
        loop = build.build(opened.config, opened.run, Terminal("off", config.name))
        training.begin(opened, loop)
        opened.keep()
    return loop


def run_for(loop: Orchestrator, actions: int | None) -> str:
    """Run a loop; stop it, as Ctrl-C would, after this many actions."""
    if actions is not None:
        done = count(1)
        loop.observers.add(StopWhen(lambda _: next(done) >= actions))
    return loop.run()


def run_until(loop: Orchestrator, done: Callable[[], bool]) -> str:
    """Run a loop; stop it, as Ctrl-C would, when something has come about."""
    loop.observers.add(StopWhen(lambda _: done()))
    return loop.run()


def trained_once(root: Path, options: Mapping[str, Sequence[str]]) -> Callable[[str], Path]:
    """Return a function from a name to the folder of its run, trained when first asked for."""

    def get(name: str) -> Path:
        if not (root / name).exists():
            open_loop(root / name, *options[name]).run()
        return root / name

    return get


def metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the records of a run without what is up to the clock and the machine."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [
        {k: v for k, v in json.loads(line).items() if not k.startswith(MACHINE)} for line in lines
    ]


def need(module: str) -> Any:
    """Import what an extra brings; without it skip, or fail where all extras must be there."""
    if os.environ.get("DREAMLAB_REQUIRE_EXTRAS") == "1":
        return importlib.import_module(module)
    return pytest.importorskip(module)
