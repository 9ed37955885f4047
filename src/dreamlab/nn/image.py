"""Image encoder and decoder of the Dreamer family."""

from __future__ import annotations

from itertools import pairwise

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from dreamlab.accel.dispatch import use_gpu_kernels
from dreamlab.accel.phase_conv import conv_pool, double_conv
from dreamlab.nn.layers import ACTS, BlockLinear, LayerStyle, NormAct, dense, norm, trunc_normal_

NARROW = 16
"""Input channels below which blocks of pixels are convolved."""


class Conv(nn.Module):
    """A 5x5 convolution with same padding."""

    def __init__(self, in_dim: int, out_dim: int, kernel: int = 5) -> None:
        super().__init__()
        weight = torch.empty(out_dim, in_dim, kernel, kernel)
        trunc_normal_(weight, in_dim * kernel * kernel)
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(torch.zeros(out_dim))

    def forward(self, x: Float[Tensor, "n h w c"]) -> Float[Tensor, "n h w k"]:
        y = F.conv2d(x.permute(0, 3, 1, 2), self.weight, self.bias, padding="same")
        return y.permute(0, 2, 3, 1)


class PoolConv(Conv):
    """A convolution, then 2 x 2 max pooling."""

    def forward(self, x: Float[Tensor, "n h w c"]) -> Float[Tensor, "n h//2 w//2 k"]:
        # few channels leave tensor cores idle; four times as many do not
        if use_gpu_kernels(x) and self.weight.shape[1] < NARROW:
            return conv_pool(x, self.weight, self.bias)
        return pool(super().forward(x))


class DoubleConv(Conv):
    """Nearest-neighbor upsampling by 2, then a convolution."""

    def forward(self, x: Float[Tensor, "n h w c"]) -> Float[Tensor, "n 2*h 2*w k"]:
        if use_gpu_kernels(x):
            return double_conv(x, self.weight, self.bias)
        return super().forward(double(x))


def pool(x: Float[Tensor, "n h w c"]) -> Float[Tensor, "n h//2 w//2 c"]:
    """Apply 2 x 2 max pooling."""
    n, h, w, c = x.shape
    return x.reshape(n, h // 2, 2, w // 2, 2, c).amax((2, 4))


def double(x: Float[Tensor, "n h w c"]) -> Float[Tensor, "n 2*h 2*w c"]:
    """Upsample by 2 with nearest neighbors."""
    n, h, w, c = x.shape
    return x[:, :, None, :, None].expand(n, h, 2, w, 2, c).reshape(n, 2 * h, 2 * w, c)


class PoolEncoder(nn.Module):
    """Convolutions with max pooling; features are flattened in the order h, w, c."""

    def __init__(
        self, shape: tuple[int, int, int], depths: tuple[int, ...], style: LayerStyle
    ) -> None:
        super().__init__()
        height, width, channels = shape
        dims = [channels, *depths]
        self.convs = nn.ModuleList(PoolConv(a, b) for a, b in pairwise(dims))
        self.norms = nn.ModuleList(norm(style.norm, d) for d in depths)
        self.act = ACTS[style.act]
        scale = 2 ** len(depths)
        self.out_dim = height // scale * (width // scale) * depths[-1]

    def forward(self, x: Shaped[Tensor, "n h w c"]) -> Float[Tensor, "n d"]:
        """Return the features of images in [0, 255]."""
        x = x.float() / 255 - 0.5
        for conv, normalise in zip(self.convs, self.norms, strict=True):
            x = self.act(normalise(conv(x)))
        return x.flatten(1)


class UpDecoder(nn.Module):
    """Latents to a small map (deterministic part by blocks), then upsampled to an image."""

    def __init__(
        self, shape: tuple[int, int, int], deter: int, stoch: int, depths: tuple[int, ...],
        units: int, blocks: int, style: LayerStyle,
    ) -> None:  # fmt: skip
        super().__init__()
        height, width, channels = shape
        scale = 2 ** len(depths)
        self.small = (height // scale, width // scale, depths[-1])
        size = self.small[0] * self.small[1] * depths[-1]
        self.blocks = blocks
        self.from_deter = BlockLinear(blocks, deter // blocks, size // blocks)
        wide = NormAct(stoch, 2 * units, style)
        self.from_stoch = nn.Sequential(wide, dense(2 * units, size))
        self.norm = norm(style.norm, depths[-1])
        dims = [depths[-1], *reversed(depths[:-1])]
        self.convs = nn.ModuleList(DoubleConv(a, b) for a, b in pairwise(dims))
        self.norms = nn.ModuleList(norm(style.norm, d) for d in dims[1:])
        self.out = DoubleConv(dims[-1], channels)
        self.act = ACTS[style.act]

    def forward(
        self, deter: Float[Tensor, "n d"], stoch: Float[Tensor, "n k"]
    ) -> Float[Tensor, "n h w c"]:
        """Return images in (0, 1)."""
        n, (h, w, c) = len(deter), self.small
        x = self.from_deter(deter.view(n, self.blocks, -1))
        x = x.view(n, self.blocks, h, w, -1).permute(0, 2, 3, 1, 4).reshape(n, h, w, c)
        x = x + self.from_stoch(stoch).view(n, h, w, c)
        x = self.act(self.norm(x))
        for conv, normalise in zip(self.convs, self.norms, strict=True):
            x = self.act(normalise(conv(x)))
        return torch.sigmoid(self.out(x))
