"""V of World Models: a variational autoencoder for single steps, of images or vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from dreamlab.components.world_models.codec import one_hot, split_spec, width
from dreamlab.core.errors import ConfigError
from dreamlab.core.limits import Depth, Items, NonNegative, Width
from dreamlab.core.types import ArraySpec, Obs
from dreamlab.nn.layers import ActKind, LayerStyle, NormMLP, dense
from dreamlab.nn.standardize import Standardize


@dataclass(frozen=True)
class VAEConfig:
    """The paper's CarRacing hyperparameters; those for vectors are ours."""

    latent: Width = 32
    channels: Annotated[tuple[Width, ...], Items()] = (32, 64, 128, 256)
    """Channels of the encoder's stride-2 convolutions; the decoder reverses them."""
    kernels: Annotated[tuple[Width, ...], Items()] = (5, 5, 6, 6)
    """Decoder kernel sizes, one per convolution; they must restore the image size."""
    units: Width = 64
    """Hidden units for vectors."""
    layers: Depth = 2
    act: ActKind = "silu"
    kl_scale: NonNegative = 1.0
    free_nats: NonNegative = 0.5
    """Free nats per latent dimension, applied to their sum."""

    def __post_init__(self) -> None:
        if len(self.kernels) != len(self.channels):
            raise ValueError(
                f"kernels={list(self.kernels)} must be as many as channels={list(self.channels)}"
            )


class Code(NamedTuple):
    """Encoder output: a Gaussian for each latent dimension."""

    mean: Float[Tensor, "*b z"]
    logvar: Float[Tensor, "*b z"]

    def at(self, noise: Float[Tensor, "*b z"]) -> Float[Tensor, "*b z"]:
        """Return the latent for standard normal noise."""
        return self.mean + torch.exp(0.5 * self.logvar) * noise

    def kl(self) -> Float[Tensor, "*b"]:
        """Return the KL divergence from the standard normal, summed over dimensions."""
        each = 1 + self.logvar - self.mean.square() - self.logvar.exp()
        return -0.5 * each.sum(-1)


class ConvVAE(nn.Module):
    """VAE for byte images, scaled to [0, 1]; convolutions without padding, as in the original."""

    def __init__(self, config: VAEConfig, images: dict[str, ArraySpec]) -> None:
        super().__init__()
        c, self.images = config, dict(images)
        self.size = next(iter(images.values())).shape[:2]
        self.inner = _inner(self.size, c)
        depth = sum(s.shape[2] for s in images.values())
        convs: list[nn.Module] = []
        for a, b in zip((depth, *c.channels[:-1]), c.channels, strict=True):
            convs += [nn.Conv2d(a, b, 4, 2), nn.ReLU()]
        self.look = nn.Sequential(*convs)
        flat = c.channels[-1] * self.inner[0] * self.inner[1]
        self.mean, self.logvar = nn.Linear(flat, c.latent), nn.Linear(flat, c.latent)
        self.spread = nn.Linear(c.latent, flat)
        ups = (*c.channels[-2::-1], depth)
        draws: list[nn.Module] = []
        for a, b, kernel in zip((flat, *ups[:-1]), ups, c.kernels, strict=True):
            draws += [nn.ConvTranspose2d(a, b, kernel, 2), nn.ReLU()]
        self.draw = nn.Sequential(*draws[:-1], nn.Sigmoid())

    def preprocess(self, obs: Obs) -> Float[Tensor, "*b h w c"]:
        """Return the images of a step, concatenated and scaled to [0, 1]."""
        return torch.cat([obs[k] for k in self.images], -1).float() / 255

    def watch(self, ready: Float[Tensor, "*b h w c"]) -> None:
        """Do nothing: the range of bytes is known."""

    def encode(self, ready: Float[Tensor, "*b h w c"]) -> Code:
        """Encode images."""
        flat = ready.reshape(-1, *ready.shape[-3:]).permute(0, 3, 1, 2)
        feature = self.look(flat).flatten(1).view(*ready.shape[:-3], -1)
        return Code(self.mean(feature), self.logvar(feature))

    def decode(self, z: Float[Tensor, "n z"]) -> Float[Tensor, "n h w c"]:
        """Decode latents to images."""
        return self.draw(self.spread(z)[..., None, None]).permute(0, 2, 3, 1)

    def natural(self, decoded: Float[Tensor, "n h w c"]) -> Obs:
        """Return images by name, in [0, 1]."""
        parts = decoded.split([s.shape[2] for s in self.images.values()], -1)
        return dict(zip(self.images, parts, strict=True))


class VectorVAE(nn.Module):
    """VAE for concatenated, standardized vectors and classes, with two MLPs."""

    def __init__(self, config: VAEConfig, vectors: dict[str, ArraySpec]) -> None:
        super().__init__()
        c, self.vectors = config, dict(vectors)
        self.dim = sum(width(s) for s in vectors.values())
        style = LayerStyle("none", c.act)
        self.scale = Standardize(self.dim)
        self.read = NormMLP(self.dim, c.units, c.layers, style)
        self.mean = dense(self.read.out_dim, c.latent)
        self.logvar = dense(self.read.out_dim, c.latent)
        self.write = NormMLP(c.latent, c.units, c.layers, style)
        self.out = dense(self.write.out_dim, self.dim)

    def preprocess(self, obs: Obs) -> Float[Tensor, "*b d"]:
        """Return the concatenated vectors of a step, with classes one-hot."""
        flat: list[Tensor] = []
        for name, spec in self.vectors.items():
            value = obs[name]
            lead = value.shape[: value.ndim - len(spec.shape)]
            numbers = value.float().reshape(*lead, -1)
            flat.append(numbers if spec.classes is None else one_hot(value, spec.classes))
        return self.scale(torch.cat(flat, -1))

    def watch(self, ready: Float[Tensor, "*b d"]) -> None:
        """Update the normalization statistics from a preprocessed batch."""
        self.scale.watch(self.scale.inverse(ready).flatten(0, -2))

    def encode(self, ready: Float[Tensor, "*b d"]) -> Code:
        """Encode vectors."""
        feature = self.read(ready)
        return Code(self.mean(feature), self.logvar(feature))

    def decode(self, z: Float[Tensor, "n z"]) -> Float[Tensor, "n d"]:
        """Decode latents to vectors."""
        return self.out(self.write(z))

    def natural(self, decoded: Float[Tensor, "n d"]) -> Obs:
        """Return observations by name, in their original units."""
        parts = self.scale.inverse(decoded).split([width(s) for s in self.vectors.values()], -1)
        pairs = zip(self.vectors.items(), parts, strict=True)
        return {name: _natural(part, spec) for (name, spec), part in pairs}


VAE = ConvVAE | VectorVAE


def make_vae(config: VAEConfig, obs: dict[str, ArraySpec]) -> VAE:
    """Build the autoencoder for these observations."""
    images, vectors = split_spec(obs)
    if images and vectors:
        raise ConfigError(
            f"workflow.vae: it reads images or vectors, but this environment has both: "
            f"{', '.join(sorted(obs))}. Use DreamerV3 instead."
        )
    return ConvVAE(config, images) if images else VectorVAE(config, vectors)


def vae_losses(
    vae: VAE, config: VAEConfig, ready: Float[Tensor, "n ..."], noise: Float[Tensor, "n z"]
) -> dict[str, Float[Tensor, ""]]:
    """Return the squared error summed per step, and the KL divergence above the free nats."""
    code = vae.encode(ready)
    error = (vae.decode(code.at(noise)) - ready).square().flatten(1).sum(-1)
    kl = code.kl().clamp(min=config.free_nats * config.latent)
    return {"reconstruction": error.mean(), "kl": kl.mean()}


def _natural(part: Float[Tensor, "n k"], spec: ArraySpec) -> Shaped[Tensor, "n ..."]:
    if spec.classes is None:
        return part.reshape(*part.shape[:-1], *spec.shape)
    if isinstance(spec.classes, int):
        return part.argmax(-1)
    return torch.stack([p.argmax(-1) for p in part.split(spec.classes, -1)], -1)


def _inner(size: tuple[int, ...], c: VAEConfig) -> tuple[int, int]:
    """Return the size of the smallest map, or raise if the layers do not restore the image size."""
    height, width = size
    for _ in c.channels:
        height, width = (height - 4) // 2 + 1, (width - 4) // 2 + 1
    if height < 1 or width < 1:
        raise ConfigError(
            f"workflow.vae.channels: {len(c.channels)} convolutions leave nothing of an image of "
            f"{size[0]}x{size[1]}. Use fewer, or set env.size=[64, 64]."
        )
    side = 1
    for kernel in c.kernels:
        side = (side - 1) * 2 + kernel
    if (side, side) != tuple(size):
        raise ConfigError(
            f"workflow.vae.kernels: {list(c.kernels)} draw images of {side}x{side}, but the "
            f"environment's are {size[0]}x{size[1]}. Set env.size=[{side}, {side}], or other "
            "kernels ([6, 6] draw 16x16, [5, 6, 6] 32x32, [5, 5, 6, 6] 64x64)."
        )
    return height, width


__all__ = ["VAE", "Code", "ConvVAE", "VAEConfig", "VectorVAE", "make_vae", "vae_losses"]
