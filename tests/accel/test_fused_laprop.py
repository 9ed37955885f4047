"""LaProp's kernels: the same steps as the optimizer as it is written."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dreamlab.accel.fused_laprop import ALIGN, Layout
from tests import kernels


def test_the_kernels_take_the_same_steps():
    kernels.run("tests.accel.laprop_steps", "cpu", way="interpreted")


@pytest.mark.gpu
def test_the_kernels_take_the_same_steps_on_the_gpu():
    kernels.run("tests.accel.laprop_steps", "cuda", way="gpu")


def test_a_layout_keeps_values_and_aligns_parameters():
    params = [nn.Parameter(torch.randn(s)) for s in (3, 70, 64)]
    before = [p.detach().clone() for p in params]
    layout = Layout(params[1:2], [params[0], params[2]])
    assert all(torch.equal(p, x) for p, x in zip(params, before, strict=True))
    assert all(first % ALIGN == 0 for first in layout.first.values())
    layout.flat.zero_()
    assert all(not p.any() for p in params), "the parameters live in the array"
    assert layout.low_end == 128
