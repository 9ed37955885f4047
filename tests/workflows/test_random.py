"""Random actions: all of them, evenly, in every kind of space."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dreamlab.core.errors import ConfigError
from dreamlab.core.types import ArraySpec, Mode, Spec, Step
from dreamlab.workflows.random import Random, RandomConfig


def actions(action: ArraySpec, mode: Mode = Mode.TRAIN, num: int = 6_000) -> torch.Tensor:
    torch.manual_seed(0)
    flags = np.zeros(num, bool)
    step = Step({"state": np.zeros((num, 2))}, np.zeros(num), flags, flags, flags)
    workflow = Random(RandomConfig(), Spec({"state": ArraySpec((2,))}, action))
    return workflow.act(step, (), mode).action


@pytest.mark.parametrize("mode", [Mode.TRAIN, Mode.EVAL])
def test_every_class_is_as_likely_as_another(mode):
    drawn = actions(ArraySpec((), "int64", classes=3), mode)
    assert drawn.dtype == torch.int64
    assert torch.bincount(drawn).tolist() == pytest.approx([2000] * 3, rel=0.1)


def test_several_choices_are_independent():
    drawn = actions(ArraySpec((2,), "int64", classes=(2, 3)))
    both = torch.bincount(drawn[:, 0] * 3 + drawn[:, 1])
    assert both.tolist() == pytest.approx([1000] * 6, rel=0.15)


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (0.0, 0.5), (-3.0, 0.0)])
def test_numbers_fill_their_bounds_evenly(low, high):
    drawn = (actions(ArraySpec((2, 1), low=low, high=high)) - low) / (high - low)
    assert drawn.shape == (6_000, 2, 1)
    assert 0 <= drawn.min() < 0.01
    assert 0.99 < drawn.max() <= 1
    counts = torch.histc(drawn, 4, 0, 1)
    assert counts.tolist() == pytest.approx([3000] * 4, rel=0.1)


def test_actions_without_bounds_are_refused():
    with pytest.raises(ConfigError, match="need bounds"):
        actions(ArraySpec((2,)))
