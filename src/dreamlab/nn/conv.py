"""Image encoders: bytes of height, width, channels in, features out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from dreamlab.core.limits import Depth, Items, Width
from dreamlab.nn.mlp import linear
from dreamlab.nn.transformer import Block

Shape = tuple[int, ...]


class ImageEncoder(nn.Module):
    """Scales bytes to [0, 1], runs `self.body` on channels-first maps, projects to `out_dim`."""

    out_dim: int
    body: nn.Module

    def finish(self, shape: Shape, out_dim: int) -> None:
        """Create the output layer for images of this shape."""
        with torch.no_grad():
            flat = self.body(torch.zeros(1, shape[2], shape[0], shape[1])).flatten(1).shape[1]
        self.head = nn.Sequential(linear(flat, out_dim, 2**0.5), nn.ReLU())
        self.out_dim = out_dim

    def forward(self, image: UInt8[Tensor, "*b h w c"]) -> Float[Tensor, "*b d"]:
        lead = image.shape[:-3]
        x = image.reshape(-1, *image.shape[-3:]).permute(0, 3, 1, 2)
        x = x.to(next(self.parameters()).dtype) / 255
        return self.head(self.body(x).flatten(1)).view(*lead, -1)


def conv(in_dim: int, out_dim: int, kernel: int, stride: int = 1, padding: int = 0) -> nn.Conv2d:
    """Build a convolution with orthogonal initialization."""
    layer = nn.Conv2d(in_dim, out_dim, kernel, stride, padding)
    nn.init.orthogonal_(layer.weight, 2**0.5)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer


@dataclass(frozen=True)
class CNNConfig:
    """Three strided convolutions (Mnih et al. 2015), with kernels for small images too."""

    depth: Width = 32
    out_dim: Width = 512


class CNN(ImageEncoder):
    """The Nature DQN network, with smaller kernels for images below 36 pixels."""

    Config = CNNConfig

    def __init__(self, config: CNNConfig, shape: Shape) -> None:
        super().__init__()
        d = config.depth
        small = min(shape[:2]) < 36
        sizes = ((3, 2), (3, 2), (3, 1)) if small else ((8, 4), (4, 2), (3, 1))
        layers: list[nn.Module] = []
        for i, o, (kernel, stride) in zip(
            (shape[2], d, 2 * d), (d, 2 * d, 2 * d), sizes, strict=True
        ):
            layers += [conv(i, o, kernel, stride, 1 if small else 0), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.finish(shape, config.out_dim)


@dataclass(frozen=True)
class ImpalaConfig:
    """Residual network (Espeholt et al. 2018)."""

    depths: Annotated[tuple[Width, ...], Items()] = (16, 32, 32)
    out_dim: Width = 256


class Residual(nn.Module):
    """Two convolutions added to their input."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReLU(), conv(depth, depth, 3, 1, 1), nn.ReLU(), conv(depth, depth, 3, 1, 1)
        )

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
        return x + self.layers(x)


class Impala(ImageEncoder):
    """Three stages of convolution, pooling and two residual blocks."""

    Config = ImpalaConfig

    def __init__(self, config: ImpalaConfig, shape: Shape) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i, o in zip((shape[2], *config.depths[:-1]), config.depths, strict=True):
            layers += [conv(i, o, 3, 1, 1), nn.MaxPool2d(3, 2, 1), Residual(o), Residual(o)]
        self.body = nn.Sequential(*layers, nn.ReLU())
        self.finish(shape, config.out_dim)


@dataclass(frozen=True)
class PatchesConfig:
    """Vision transformer (Dosovitskiy et al. 2021), small."""

    patch: Width = 8
    dim: Width = 64
    heads: Width = 4
    layers: Depth = 2
    out_dim: Width = 128

    def __post_init__(self) -> None:
        if self.dim % self.heads:
            raise ValueError(f"dim={self.dim} must be a multiple of heads={self.heads}")


class PatchBody(nn.Module):
    """Patches with learned positions through transformer blocks, then mean pooling."""

    def __init__(self, config: PatchesConfig, shape: Shape) -> None:
        super().__init__()
        self.embed = nn.Conv2d(shape[2], config.dim, config.patch, config.patch)
        num = (shape[0] // config.patch) * (shape[1] // config.patch)
        self.position = nn.Parameter(torch.randn(num, config.dim) * 0.02)
        self.blocks = nn.ModuleList(Block(config.dim, config.heads) for _ in range(config.layers))

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n d"]:
        h = self.embed(x).flatten(2).transpose(1, 2) + self.position
        mask = torch.ones(h.shape[1], h.shape[1], dtype=torch.bool, device=h.device)[None]
        for block in self.blocks:
            h = block(h, mask)
        return h.mean(1)


class Patches(ImageEncoder):
    """A small vision transformer."""

    Config = PatchesConfig

    def __init__(self, config: PatchesConfig, shape: Shape) -> None:
        super().__init__()
        self.body = PatchBody(config, shape)
        self.finish(shape, config.out_dim)
