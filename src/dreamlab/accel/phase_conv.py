"""5x5 convolutions before pooling or after upsampling, as 3x3 ones at half the resolution.

Each 2 x 2 block of pixels becomes channels: tensor cores are idle with few of them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

EIGHT = 8
"""Channel multiple of tensor cores; others would be copied first."""


def conv_pool(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute `nn.image.PoolConv` by a 3x3 convolution at half the resolution.

    Its input channels are 2 x 2 blocks of pixels, its outputs the four values that are pooled.
    """
    n, h, w, c = x.shape
    out = weight.shape[0]
    for axis in ([0, 0], []):  # the five taps among six, as an even and as an odd pixel sees them
        weight = torch.stack([F.pad(weight, [*axis, 0, 1]), F.pad(weight, [*axis, 1, 0])])
    weight = weight.view(2, 2, out, c, 3, 2, 3, 2)  # the first two: phase x and y of the result
    weight = weight.permute(1, 0, 2, 5, 7, 3, 4, 6).reshape(4 * out, 4 * c, 3, 3)
    x = x.reshape(n, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5)
    x = x.reshape(n, h // 2, w // 2, 4 * c)
    spare = -(4 * c) % EIGHT
    x, weight = F.pad(x, [0, spare]), F.pad(weight, [0, 0, 0, 0, 0, spare])
    y = F.conv2d(x.permute(0, 3, 1, 2), weight, padding=1).permute(0, 2, 3, 1)
    return y.reshape(n, h // 2, w // 2, 4, out).amax(3) + bias.to(y.dtype)


def double_conv(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute `nn.image.DoubleConv` by a 3x3 convolution to four times the channels.

    Taps that see the same upsampled pixel are merged into one.
    """
    n, h, w, _ = x.shape
    out, c = weight.shape[:2]
    for dim in (-2, -1):
        a = weight.unbind(dim)
        even, odd = (a[0] + a[1], a[2] + a[3], a[4]), (a[0], a[1] + a[2], a[3] + a[4])
        weight = torch.stack([torch.stack(even, dim), torch.stack(odd, dim)])
    # now [phase x, phase y, out, c, 3, 3]
    weight = weight.transpose(0, 1).reshape(4 * out, c, 3, 3)
    weight = F.pad(weight, [0, 0, 0, 0, 0, 0, 0, -(4 * out) % EIGHT])
    y = F.conv2d(x.permute(0, 3, 1, 2), weight, padding=1).permute(0, 2, 3, 1)
    y = y[..., : 4 * out].reshape(n, h, w, 2, 2, out).permute(0, 1, 3, 2, 4, 5)
    return y.reshape(n, 2 * h, 2 * w, out) + bias.to(y.dtype)
