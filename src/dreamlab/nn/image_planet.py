"""Encoder and decoder for 64 x 64 images, as in PlaNet, DreamerV1 and DreamerV2.

Maps are [n, height, width, c] outside and [n, c, height, width] inside.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from dreamlab.nn.layers import ACTS, ActKind

SIZE = (64, 64)


def centred(image: UInt8[Tensor, "*n h w c"], bits: int = 8) -> Float[Tensor, "*n h w c"]:
    """Return an image centered at 0, in (-0.5, 0.5).

    With fewer than 8 bits, colors are rounded down and dequantized with uniform noise (Kingma &
    Dhariwal 2018), so that a density cannot exploit the discrete values.
    """
    if bits == 8:
        return image.float() / 255 - 0.5
    levels = 2**bits
    rounded = torch.floor(image.float() / (256 // levels)) / levels
    return rounded + torch.rand_like(rounded) / levels - 0.5


class StrideEncoder(nn.Module):
    """Four convolutions of 4 x 4 pixels and stride 2 without padding: 64, 31, 14, 6, 2 pixels."""

    def __init__(self, channels: int, depth: int, act: ActKind) -> None:
        super().__init__()
        dims = [channels, *(depth * m for m in (1, 2, 4, 8))]
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 4, 2) for a, b in pairwise(dims))
        self.act = ACTS[act]
        self.out_dim = 2 * 2 * dims[-1]

    def forward(self, x: Float[Tensor, "n h w c"]) -> Float[Tensor, "n d"]:
        """Return the features of centered images, in the order h, w, c."""
        x = x.permute(0, 3, 1, 2)
        for conv in self.convs:
            x = self.act(conv(x))
        return x.permute(0, 2, 3, 1).flatten(1)


class StrideDecoder(nn.Module):
    """A vector as a map of one pixel, then transposed convolutions: 1, 5, 13, 30, 64 pixels."""

    def __init__(self, in_dim: int, channels: int, depth: int, act: ActKind) -> None:
        super().__init__()
        dims = [32 * depth, *(depth * m for m in (4, 2, 1)), channels]
        self.linear = nn.Linear(in_dim, dims[0])
        shapes = zip(pairwise(dims), (5, 5, 6, 6), strict=True)
        self.convs = nn.ModuleList(nn.ConvTranspose2d(a, b, k, 2) for (a, b), k in shapes)
        self.act = ACTS[act]

    def forward(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n h w c"]:
        """Return centered images."""
        x = self.linear(x)[..., None, None]
        for i, conv in enumerate(self.convs):
            x = conv(self.act(x) if i else x)
        return x.permute(0, 2, 3, 1)
