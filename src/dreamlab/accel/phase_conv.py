"""5x5 convolutions before pooling or after upsampling, as 3x3 ones at half the resolution.

Each 2 x 2 block of pixels becomes channels: tensor cores are idle with few of them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

FEW = 4
"""Outputs of an upsampling layer below which its pixels are computed by blocks."""
EIGHT = 8
"""Channel multiple of tensor cores; others would be copied first."""


def split(x: Tensor) -> Tensor:
    """Turn each 2 x 2 block of pixels [n, h, w, c] into channels [n, h / 2, w / 2, 4 c]."""
    n, h, w, c = x.shape
    x = x.reshape(n, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5)
    return x.reshape(n, h // 2, w // 2, 4 * c)


def joined(x: Tensor) -> Tensor:
    """Invert `split`."""
    n, h, w, c = x.shape
    x = x.reshape(n, h, w, 2, 2, c // 4).permute(0, 1, 3, 2, 4, 5)
    return x.reshape(n, 2 * h, 2 * w, c // 4)


def by_blocks(weight: Tensor) -> Tensor:
    """Return the 3x3 weight that does to blocks of pixels what one of size 3 or 5 does to pixels.

    Its taps are among the six pixels of three blocks, one further on for odd pixels of the result.
    """
    out, c, size, _ = weight.shape
    first = (5 - size) // 2
    for axis in ([0, 0], []):
        pads = [(first + i, 6 - size - first - i) for i in (0, 1)]
        weight = torch.stack([F.pad(weight, [*axis, *pad]) for pad in pads])
    weight = weight.view(2, 2, out, c, 3, 2, 3, 2)  # the first two: phase x and y of the result
    return weight.permute(1, 0, 2, 5, 7, 3, 4, 6).reshape(4 * out, 4 * c, 3, 3)


def conv(x: Tensor, weight: Tensor) -> Tensor:
    """Convolve [n, h, w, c] with a 3x3 weight."""
    return F.conv2d(x.permute(0, 3, 1, 2), weight, padding=1).permute(0, 2, 3, 1)


def conv_pool(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute `nn.image.PoolConv` by a 3x3 convolution at half the resolution.

    Its input channels are 2 x 2 blocks of pixels, its outputs the four values that are pooled.
    """
    out, spare = weight.shape[0], -(4 * weight.shape[1]) % EIGHT
    weight = F.pad(by_blocks(weight), [0, 0, 0, 0, 0, spare])
    y = conv(F.pad(split(x), [0, spare]), weight)
    return y.reshape(*y.shape[:3], 4, out).amax(3) + bias.to(y.dtype)


def double_conv(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute `nn.image.DoubleConv` by a 3x3 convolution to four times the channels.

    Taps that see the same upsampled pixel are merged into one. Few channels are computed by blocks
    of pixels, to be more.
    """
    out, c = weight.shape[:2]
    for dim in (-2, -1):
        a = weight.unbind(dim)
        even, odd = (a[0] + a[1], a[2] + a[3], a[4]), (a[0], a[1] + a[2], a[3] + a[4])
        weight = torch.stack([torch.stack(even, dim), torch.stack(odd, dim)])
    # now [phase x, phase y, out, c, 3, 3]
    weight = weight.transpose(0, 1).reshape(4 * out, c, 3, 3)
    if out < FEW and x.shape[1] % 2 == x.shape[2] % 2 == 0:
        y = joined(conv(split(x), by_blocks(weight)))
    else:
        y = conv(x, F.pad(weight, [0, 0, 0, 0, 0, 0, 0, -(4 * out) % EIGHT]))[..., : 4 * out]
    return joined(y) + bias.to(y.dtype)
