"""What is computed another way on a CPU is the same function, with the same slope."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from dreamlab.accel import cpu_fast
from dreamlab.accel.dispatch import reference_kernels
from dreamlab.nn.normed import SimNorm
from dreamlab.ops.functional import mish

X = torch.cat([torch.linspace(-100, 100, 4001), torch.linspace(-1, 1, 201)])


def test_mish_is_the_library_s_and_so_is_its_slope():
    ours, theirs = (X.clone().requires_grad_() for _ in range(2))
    cpu_fast.mish(ours).mul(X).sum().backward()
    F.mish(theirs).mul(X).sum().backward()
    torch.testing.assert_close(cpu_fast.mish(X), F.mish(X), atol=1e-7, rtol=1e-5)
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-4, rtol=1e-5)


def test_the_compiled_form_of_mish_is_the_same():
    compiled = torch.compile(cpu_fast.mish, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(X), F.mish(X), atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("which", [mish, SimNorm(3)], ids=["mish", "simnorm"])
def test_the_reference_agrees(which):
    x = torch.randn(4, 6)
    with reference_kernels():
        plain = which(x)
    torch.testing.assert_close(which(x), plain)
