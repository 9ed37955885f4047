"""Convolutions in the form that suits a GPU: the same maps and gradients."""

from __future__ import annotations

import pytest
import torch

from dreamlab.accel.phase_conv import conv_pool, double_conv
from dreamlab.nn.image import DoubleConv, PoolConv

FORMS = [
    (PoolConv, conv_pool, (2, 12, 16, 3), 8),
    (DoubleConv, double_conv, (2, 5, 7, 3), 8),
    (DoubleConv, double_conv, (2, 6, 8, 5), 3),
    (DoubleConv, double_conv, (2, 5, 8, 5), 3),
]


@pytest.mark.parametrize(("layer", "form", "shape", "out"), FORMS)
def test_both_forms_agree(layer, form, shape, out):
    torch.manual_seed(0)
    conv = layer(shape[-1], out)
    conv.bias.data.normal_()
    x = torch.randn(shape, requires_grad=True)
    plain, fast = conv(x), form(x, conv.weight, conv.bias)
    torch.testing.assert_close(fast, plain, atol=1e-5, rtol=1e-4)
    pull = torch.randn_like(plain)
    inputs = [x, conv.weight, conv.bias]
    grads = zip(*(torch.autograd.grad(y, inputs, pull) for y in (plain, fast)), strict=True)
    for a, b in grads:
        torch.testing.assert_close(b, a, atol=1e-4, rtol=1e-4)
