"""Returns by one kernel."""

from __future__ import annotations

import pytest

from tests import kernels


def test_the_kernel_gives_the_same_returns():
    kernels.run("tests.accel.recurrent", "cpu", way="interpreted")


@pytest.mark.gpu
def test_the_kernel_gives_the_same_returns_on_the_gpu():
    kernels.run("tests.accel.recurrent", "cuda", way="gpu")
