"""Kernels are built in parallel before an update launches them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dreamlab.accel import ahead
from dreamlab.core.workflow import Workflow, marked
from dreamlab.workflows.dreamer_v3 import DreamerV3
from dreamlab.workflows.tdmpc2 import TDMPC2
from tests import kernels
from tests.contract.found import PAIRS


class Kernel:
    """A kernel that notes what is done with it."""

    cache_key = "source"

    def __init__(self, error: Exception | None = None) -> None:
        self.built: list[Any] = []
        self.launched, self.error = 0, error

    def warmup(self, *args: Any, grid: Any, **options: Any) -> Any:
        if self.error:
            raise self.error
        self.built.append((args[1:], grid, options))
        return SimpleNamespace(run=None)

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **options: setattr(self, "launched", self.launched + 1)


@pytest.fixture(autouse=True)
def building(monkeypatch):
    monkeypatch.setattr(ahead, "BUILDS", True)
    monkeypatch.setattr(ahead, "_started", {})


def module(**found: Kernel) -> Any:
    return SimpleNamespace(**found)


def test_kernels_are_built_once_for_each_type_and_alignment():
    kernel, x = Kernel(), torch.zeros(64)

    def launch(k: Any) -> None:
        for part in (x, x[4:], x[8:], x[1:], x.double()):
            k.one[(2,)](part, 7, BN=16)

    for _ in range(2):
        assert ahead.build(module(one=kernel), launch)
    assert kernel.built == [((7,), (2,), {"BN": 16})] * 3
    assert not kernel.launched


def test_a_rehearsal_builds_and_does_not_launch():
    kernel = Kernel()
    with ahead.rehearsal():
        assert not ahead.build(module(one=kernel), lambda k: k.one[(1,)](torch.zeros(1)))
    ahead.finish()
    assert len(kernel.built) == 1


def test_nothing_is_built_where_kernels_are_interpreted(monkeypatch):
    monkeypatch.setattr(ahead, "BUILDS", False)
    kernel = Kernel()
    launch = lambda k: k.one[(1,)](torch.zeros(1))  # noqa: E731
    assert ahead.build(module(one=kernel), launch)
    with ahead.rehearsal():
        assert not ahead.build(module(one=kernel), launch)
    assert not kernel.built
    assert not kernel.launched


def test_what_cannot_be_built_is_told_where_it_is_launched():
    kernel = Kernel(RuntimeError("too much shared memory"))
    launch = lambda k: k.one[(1,)](torch.zeros(1))  # noqa: E731
    with ahead.rehearsal():
        ahead.build(module(one=kernel), launch)
    with pytest.raises(RuntimeError, match="too much shared memory"):
        ahead.build(module(one=kernel), launch)


def test_only_agents_whose_kernels_it_knows_rehearse():
    captured = {cls for cls, _ in PAIRS if marked(cls, "capturable")}
    rehearsing = {cls for cls in captured if cls.rehearse is not Workflow.rehearse}
    assert rehearsing == {cls for cls in captured if issubclass(cls, DreamerV3)}
    assert TDMPC2 in captured - rehearsing


@pytest.mark.parametrize("actions", ["numbers", "classes"])
def test_an_update_launches_only_what_its_rehearsal_built(actions, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernels.run("tests.accel.rehearsed", actions, way="built")
