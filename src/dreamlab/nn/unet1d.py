"""A U-Net over time that denoises sequences (Chi et al. 2023, after Janner et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dreamlab.core.errors import ConfigError
from dreamlab.core.limits import Items, Range, Width
from dreamlab.nn.denoiser import Denoiser, DenoiserSizes, Sinusoids

OUT_GROUPS = 8
"""Groups of the last norm, independent of the others, as in the published weights."""


@dataclass(frozen=True)
class UNet1dConfig:
    """Sizes of state-based diffusion policy; for images: widths 512, 1024, 2048, time_dim 128."""

    widths: Annotated[tuple[Width, ...], Items()] = (256, 512, 1024)
    time_dim: Annotated[int, Range(4, 65_536)] = 256
    kernel_size: Annotated[int, Range(1, 99)] = 5
    groups: Width = 8

    def __post_init__(self) -> None:
        if self.kernel_size % 2 == 0:
            raise ValueError(
                f"kernel_size={self.kernel_size} must be odd: sequences keep their length"
            )
        if odd := [w for w in self.widths if w % self.groups]:
            raise ValueError(f"widths: {odd[0]} is not a multiple of groups={self.groups}")
        if self.widths[0] % OUT_GROUPS:
            raise ValueError(f"widths: the first, {self.widths[0]}, must be a multiple of 8")


def conv_block(in_dim: int, out_dim: int, kernel_size: int, groups: int) -> nn.Sequential:
    """Build a convolution with group norm and activation."""
    return nn.Sequential(
        nn.Conv1d(in_dim, out_dim, kernel_size, padding=kernel_size // 2),
        nn.GroupNorm(groups, out_dim),
        nn.Mish(),
    )


class FilmBlock(nn.Module):
    """Two convolutions with FiLM conditioning between them."""

    def __init__(self, in_dim: int, out_dim: int, cond_dim: int, config: UNet1dConfig) -> None:
        super().__init__()
        self.first = conv_block(in_dim, out_dim, config.kernel_size, config.groups)
        self.second = conv_block(out_dim, out_dim, config.kernel_size, config.groups)
        self.film = nn.Sequential(nn.Mish(), nn.Linear(cond_dim, 2 * out_dim))
        self.skip = nn.Conv1d(in_dim, out_dim, 1) if in_dim != out_dim else nn.Identity()

    def forward(
        self, x: Float[Tensor, "b c t"], cond: Float[Tensor, "b d"]
    ) -> Float[Tensor, "b k t"]:
        # the scale is not offset by 1, as in the published weights
        scale, shift = self.film(cond)[..., None].chunk(2, 1)
        return self.second(scale * self.first(x) + shift) + self.skip(x)


class Stage(nn.Module):
    """Two blocks, then down- or upsampling."""

    def __init__(
        self, dims: tuple[int, int], cond_dim: int, resize: nn.Module, config: UNet1dConfig
    ) -> None:
        super().__init__()
        self.one = FilmBlock(dims[0], dims[1], cond_dim, config)
        self.two = FilmBlock(dims[1], dims[1], cond_dim, config)
        self.resize = resize

    def forward(
        self, x: Float[Tensor, "b c t"], cond: Float[Tensor, "b d"]
    ) -> tuple[Float[Tensor, "b k t"], Float[Tensor, "b k s"]]:
        """Return the output before and after resampling."""
        y = self.two(self.one(x, cond), cond)
        return y, self.resize(y)


class UNet1d(Denoiser):
    """Halves the sequence at each stage, then doubles it again with skip connections."""

    Config = UNet1dConfig

    def __init__(self, config: UNet1dConfig, sizes: DenoiserSizes) -> None:
        super().__init__()
        widths, time_dim = config.widths, config.time_dim
        check_horizon(sizes.horizon, len(widths))
        self.time = nn.Sequential(
            Sinusoids(time_dim), nn.Linear(time_dim, 4 * time_dim), nn.Mish(),
            nn.Linear(4 * time_dim, time_dim),
        )  # fmt: skip
        cond_dim = time_dim + sizes.tokens * sizes.cond_dim
        last = len(widths) - 1
        self.down = nn.ModuleList(
            Stage(dims, cond_dim, halve(dims[1]) if i < last else nn.Identity(), config)
            for i, dims in enumerate(pairwise((sizes.width, *widths)))
        )
        self.middle = Stage((widths[-1], widths[-1]), cond_dim, nn.Identity(), config)
        self.up = nn.ModuleList(
            Stage((2 * wide, narrow), cond_dim, double(narrow), config)
            for narrow, wide in reversed(list(pairwise(widths)))
        )
        self.out = nn.Sequential(
            conv_block(widths[0], widths[0], config.kernel_size, OUT_GROUPS),
            nn.Conv1d(widths[0], sizes.width, 1),
        )

    def forward(
        self, x: Float[Tensor, "b h a"], time: Float[Tensor, " b"], cond: Float[Tensor, "b t d"]
    ) -> Float[Tensor, "b h a"]:
        both = torch.cat([self.time(time), cond.flatten(1)], -1)
        y, skips = x.transpose(1, 2), list[Tensor]()
        for stage in self.down:
            skip, y = stage(y, both)
            skips.append(skip)
        y, _ = self.middle(y, both)
        for stage in self.up:
            _, y = stage(torch.cat([y, skips.pop()], 1), both)
        return self.out(y).transpose(1, 2)


def halve(dim: int) -> nn.Module:
    """Build a convolution that halves the length."""
    return nn.Conv1d(dim, dim, 3, 2, 1)


def double(dim: int) -> nn.Module:
    """Build a convolution that doubles the length."""
    return nn.ConvTranspose1d(dim, dim, 4, 2, 1)


def check_horizon(horizon: int, stages: int) -> None:
    """Raise unless a sequence can be halved between all stages."""
    unit = 2 ** (stages - 1)
    if horizon % unit:
        raise ConfigError(
            f"workflow.policy.horizon: a U-Net of {stages} widths halves sequences {stages - 1} "
            f"times: {horizon} must be a multiple of {unit}"
        )
