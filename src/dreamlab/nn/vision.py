"""Image encoder of diffusion policies: crop, ResNet-18 with group norms, keypoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from dreamlab.core.errors import ConfigError
from dreamlab.core.limits import Finite, Items, Positive, Range, Side, Width

GROUP = 16
"""Channels per group of a norm. Batch norms would not work with averaged weights."""
STAGES = 4


@dataclass(frozen=True)
class ResNet18Config:
    """Sizes of diffusion policy; PushT crops 96 pixels to 84, robomimic 84 to 76."""

    crop: tuple[Side, Side] | None = None
    """Crop height and width: at a random position in training, else at the center."""
    width: Annotated[int, Range(GROUP, 4_096)] = 64
    """Channels of the first stage, doubled at each further stage."""
    keypoints: Width = 32
    out_dim: Width = 64
    mean: Annotated[tuple[Finite, ...], Items()] = (0.5,)
    """Subtracted from colors in [0, 1]: one value, or one per channel."""
    std: Annotated[tuple[Positive, ...], Items()] = (0.5,)
    """Divisor of the centered colors."""

    def __post_init__(self) -> None:
        if self.width % GROUP:
            raise ValueError(f"width={self.width} must be a multiple of {GROUP}")


class BasicBlock(nn.Module):
    """Two convolutions with group norms, added to their input (He et al. 2016)."""

    def __init__(self, in_dim: int, out_dim: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = conv3(in_dim, out_dim, stride), group_norm(out_dim)
        self.conv2, self.norm2 = conv3(out_dim, out_dim, 1), group_norm(out_dim)
        self.skip = nn.Identity()
        if stride != 1 or in_dim != out_dim:
            shrink = nn.Conv2d(in_dim, out_dim, 1, stride, bias=False)
            self.skip = nn.Sequential(shrink, group_norm(out_dim))

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k i j"]:
        y = self.norm1(self.conv1(x)).relu()
        return (self.norm2(self.conv2(y)) + self.skip(x)).relu()


def conv3(in_dim: int, out_dim: int, stride: int) -> nn.Conv2d:
    """Build a 3 x 3 convolution without bias."""
    return nn.Conv2d(in_dim, out_dim, 3, stride, 1, bias=False)


def group_norm(dim: int) -> nn.GroupNorm:
    """Build a norm with groups of 16 channels."""
    return nn.GroupNorm(dim // GROUP, dim)


def resnet18(channels: int, width: int) -> nn.Sequential:
    """Build the network up to its last maps: 1/32 of the resolution, 8 times the channels."""
    stem = nn.Conv2d(channels, width, 7, 2, 3, bias=False)
    stages: list[nn.Module] = []
    for i in range(STAGES):
        wide = width * 2**i
        narrow = wide // 2 if i else wide
        stages.append(
            nn.Sequential(BasicBlock(narrow, wide, 2 if i else 1), BasicBlock(wide, wide, 1))
        )
    return nn.Sequential(stem, group_norm(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1), *stages)


class SpatialSoftmax(nn.Module):
    """Expected coordinates of each map's softmax: x and y in [-1, 1] (Finn et al. 2016)."""

    grid: Float[Tensor, "n 2"]

    def __init__(self, shape: tuple[int, int, int], keypoints: int) -> None:
        """Create the layer for maps of channels, height and width."""
        super().__init__()
        channels, height, width = shape
        self.maps = nn.Conv2d(channels, keypoints, 1)
        y, x = torch.meshgrid(
            torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij"
        )
        self.register_buffer("grid", torch.stack([x, y], -1).flatten(0, 1), persistent=False)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k 2"]:
        return self.maps(x).flatten(2).softmax(-1) @ self.grid


class ResNet18(nn.Module):
    """Byte images, scaled to [0, 1] and cropped, to keypoints and features. One per camera."""

    Config = ResNet18Config
    mean: Float[Tensor, "c 1 1"]
    std: Float[Tensor, "c 1 1"]

    def __init__(self, config: ResNet18Config, shape: tuple[int, ...]) -> None:
        super().__init__()
        height, width, channels = shape
        for name in ("mean", "std"):
            given = torch.tensor(getattr(config, name)).view(-1, 1, 1)
            if len(given) not in (1, channels):
                raise ConfigError(f"{name}: {len(given)} numbers for {channels} channels")
            self.register_buffer(name, given, persistent=False)
        self.crop = check_crop(config.crop, (height, width))
        self.body = resnet18(channels, config.width)
        high, wide = (-(-side // 32) for side in self.crop)
        last = config.width * 2 ** (STAGES - 1)
        self.pool = SpatialSoftmax((last, high, wide), config.keypoints)
        self.head = nn.Sequential(nn.Linear(2 * config.keypoints, config.out_dim), nn.ReLU())
        self.out_dim = config.out_dim

    def forward(self, image: UInt8[Tensor, "*b h w c"]) -> Float[Tensor, "*b d"]:
        lead = image.shape[:-3]
        rows = cropped(image.reshape(-1, *image.shape[-3:]), self.crop, self.training)
        x = rows.permute(0, 3, 1, 2).to(self.pool.maps.weight.dtype) / 255
        maps = self.body((x - self.mean) / self.std)
        return self.head(self.pool(maps).flatten(1)).view(*lead, -1)


def check_crop(crop: tuple[int, int] | None, size: tuple[int, int]) -> tuple[int, int]:
    """Return the crop size, or raise if an image is smaller."""
    if crop is not None and (crop[0] > size[0] or crop[1] > size[1]):
        raise ConfigError(f"crop: {list(crop)} does not fit into images of {list(size)}")
    return size if crop is None else crop


def cropped(
    image: UInt8[Tensor, "b h w c"], size: tuple[int, int], random: bool
) -> UInt8[Tensor, "b i j c"]:
    """Crop each image at its own random position, or at the center."""
    height, width = image.shape[1:3]
    if size == (height, width):
        return image
    spare = (height - size[0], width - size[1])
    if not random:
        top, left = spare[0] // 2, spare[1] // 2
        return image[:, top : top + size[0], left : left + size[1]]
    rows, columns = (
        _places(len(image), s, n, image.device) for s, n in zip(spare, size, strict=True)
    )
    each = torch.arange(len(image), device=image.device)[:, None, None]
    return image[each, rows[:, :, None], columns[:, None, :]]


def _places(num: int, spare: int, size: int, device: torch.device) -> Int[Tensor, "{num} {size}"]:
    first = torch.randint(0, spare + 1, (num, 1), device=device)
    return first + torch.arange(size, device=device)
