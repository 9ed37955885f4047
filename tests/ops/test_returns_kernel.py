"""Returns by one kernel."""

from __future__ import annotations

import pytest

from tests import interpreted


def test_the_kernel_gives_the_same_returns():
    interpreted.run("tests.ops.recurrent", "cpu")


@pytest.mark.gpu
def test_the_kernel_gives_the_same_returns_on_the_gpu():
    interpreted.run("tests.ops.recurrent", "cuda", interpreted=False)
