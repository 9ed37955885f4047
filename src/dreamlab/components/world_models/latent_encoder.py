"""TD-MPC2's encoders: an MLP for vectors or four convolutions for images, then SimNorm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from dreamlab.components.encoder import flat_obs
from dreamlab.components.world_models.codec import width
from dreamlab.core.errors import ConfigError, unknown
from dreamlab.core.limits import Range, Width
from dreamlab.core.types import ArraySpec, Obs
from dreamlab.nn.normed import NormedMLP, SimNorm

PAD = 3
"""Maximum image shift in pixels, in each direction."""


@dataclass(frozen=True)
class LatentEncoderConfig:
    """Widths of the original's 5M model."""

    latent_dim: Width = 512
    """Size of a latent; for images that of the convolutions' output: 512 for 64x64."""
    simnorm_dim: Width = 8
    """Group size of SimNorm; each group sums to 1."""
    enc_dim: Width = 256
    enc_layers: Annotated[int, Range(1, 1_000)] = 2
    """Layers of the vector encoder, including the output layer; at least one is hidden."""
    channels: Width = 32
    """Channels of the convolutions."""
    obs_order: tuple[str, ...] = ()
    """Order in which vectors are concatenated, by name; alphabetical by default."""

    def __post_init__(self) -> None:
        if self.latent_dim % self.simnorm_dim:
            raise ValueError(
                f"latent_dim={self.latent_dim} must be a multiple of simnorm_dim={self.simnorm_dim}"
            )


class ImageEncoder(nn.Module):
    """Encodes byte images [h, w, c] with four convolutions; their flat output is the latent."""

    def __init__(self, shape: tuple[int, ...], channels: int, simnorm_dim: int) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv2d(shape[2], channels, 7, 2), nn.ReLU(),
            nn.Conv2d(channels, channels, 5, 2), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, 2), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, 1),
        )  # fmt: skip
        self.out_dim = channels * _side(shape[0]) * _side(shape[1])
        self.norm = SimNorm(simnorm_dim)

    def forward(
        self, image: UInt8[Tensor, "*b h w c"], shift: Int[Tensor, "*b 2"] | None = None
    ) -> Float[Tensor, "*b d"]:
        lead = image.shape[:-3]
        x = image.reshape(-1, *image.shape[-3:])
        x = x if shift is None else moved(x, shift.reshape(-1, 2))
        x = x.permute(0, 3, 1, 2).float() / 255 - 0.5
        return self.norm(self.convs(x).flatten(1)).unflatten(0, lead)


def _side(pixels: int) -> int:
    """Return the side length after four convolutions."""
    for kernel, stride in ((7, 2), (5, 2), (3, 2), (3, 1)):
        pixels = (pixels - kernel) // stride + 1
    return max(0, pixels)


def moved(
    image: UInt8[Tensor, "n h w c"], shift: Int[Tensor, "n 2"], pad: int = PAD
) -> UInt8[Tensor, "n h w c"]:
    """Shift images by 0 to 2 `pad` pixels minus `pad`, replicating their edges."""
    n, h, w, _ = image.shape
    device = image.device
    rows = (torch.arange(h, device=device) + shift[:, :1] - pad).clamp(0, h - 1)
    columns = (torch.arange(w, device=device) + shift[:, 1:] - pad).clamp(0, w - 1)
    return image[torch.arange(n, device=device)[:, None, None], rows[:, :, None], columns[:, None]]


class LatentEncoder(nn.Module):
    """Encodes one image, or concatenated vectors."""

    def __init__(
        self, config: LatentEncoderConfig, obs: dict[str, ArraySpec], task_dim: int, where: str
    ) -> None:
        super().__init__()
        c = config
        images = [k for k, s in obs.items() if s.is_image]
        self.obs = {k: obs[k] for k in ordered(obs, c.obs_order, where)}
        if images and len(obs) > 1:
            raise ConfigError(
                f"{where}: TD-MPC2 sees one image or vectors, this environment has {sorted(obs)}"
            )
        self.image = images[0] if images else None
        if self.image is None:
            dims = [sum(width(s) for s in obs.values()) + task_dim]
            dims += [c.enc_dim] * max(c.enc_layers - 1, 1)
            self.net: nn.Module = NormedMLP(dims, c.latent_dim, SimNorm(c.simnorm_dim))
            return
        net = ImageEncoder(obs[self.image].shape, c.channels, c.simnorm_dim)
        if net.out_dim != c.latent_dim:
            size = "x".join(map(str, obs[self.image].shape))
            raise ConfigError(
                f"{where}.latent_dim: images of {size} give latents of {net.out_dim} numbers, "
                f"not {c.latent_dim}: set it, or env.size"
            )
        self.net = net

    def forward(
        self,
        obs: Obs,
        task: Float[Tensor, "*b e"] | None = None,
        shift: Int[Tensor, "*b 2"] | None = None,
    ) -> Float[Tensor, "*b d"]:
        """Return latents; `task` conditions the vector encoder."""
        if self.image is not None:
            return self.net(obs[self.image], shift)
        parts = [flat_obs(obs[k], s) for k, s in self.obs.items()]
        parts += [] if task is None else [task]
        return self.net(torch.cat(parts, -1) if len(parts) > 1 else parts[0])


def ordered(obs: dict[str, ArraySpec], order: tuple[str, ...], where: str) -> list[str]:
    """Return the observation names, those in `order` first."""
    for name in order:
        if name not in obs:
            raise ConfigError(unknown("observation", name, obs, f"{where}.obs_order"))
    return [*order, *(k for k in sorted(obs) if k not in order)]
