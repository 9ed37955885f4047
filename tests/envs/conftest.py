"""Tests marked `env("x")` need the extra x: skipped without it, failed if all are required."""

from __future__ import annotations

import os

import pytest

from dreamlab.envs.doctor import TRIALS

INSTALLED = {trial.name: trial.installed for trial in TRIALS}


@pytest.fixture(autouse=True)
def _need_extra(request: pytest.FixtureRequest) -> None:
    for mark in request.node.iter_markers("env"):
        name = mark.args[0]
        if INSTALLED[name]:
            continue
        text = f"the extra {name!r} is not installed"
        if os.environ.get("DREAMLAB_REQUIRE_EXTRAS") == "1":
            pytest.fail(text)
        pytest.skip(text)
