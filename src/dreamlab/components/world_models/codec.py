"""Encoder and decoder for images and vectors together, as in DreamerV3."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from dreamlab.core.errors import ConfigError
from dreamlab.core.limits import Items, Width
from dreamlab.core.types import ArraySpec, Obs
from dreamlab.nn.image import PoolEncoder, UpDecoder
from dreamlab.nn.layers import NetConfig, NormMLP, dense
from dreamlab.nn.named import NamedModules
from dreamlab.ops.scaling import symexp, symlog


@dataclass(frozen=True)
class CodecConfig(NetConfig):
    """Layers of the encoder; `units` and `layers` are those of the vector MLP."""

    depth: Width = 64
    mults: Annotated[tuple[Width, ...], Items()] = (2, 3, 4, 4)
    """Channels of each convolution in units of `depth`; each halves (doubles) the resolution."""

    @property
    def depths(self) -> tuple[int, ...]:
        return tuple(self.depth * m for m in self.mults)


@dataclass(frozen=True)
class DecoderConfig(CodecConfig):
    """Layers of the decoder, from the smallest map outwards."""

    blocks: Width = 8
    """Number of blocks of the smallest map and the deterministic state."""


def split_spec(obs: dict[str, ArraySpec]) -> tuple[dict[str, ArraySpec], dict[str, ArraySpec]]:
    """Split observations into images and everything else."""
    images = {k: s for k, s in obs.items() if s.is_image}
    sizes = {s.shape[:2] for s in images.values()}
    if len(sizes) > 1:
        raise ConfigError(
            f"env: the images {sorted(images)} have different sizes {sorted(sizes)}; "
            "set env.size, so that all get one"
        )
    return images, {k: s for k, s in obs.items() if k not in images}


def width(spec: ArraySpec) -> int:
    """Return the input size of a vector observation, with classes one-hot."""
    if spec.classes is None:
        return spec.size
    return spec.classes if isinstance(spec.classes, int) else sum(spec.classes)


def one_hot(
    value: Shaped[Tensor, " ..."], classes: int | tuple[int, ...]
) -> Float[Tensor, "... k"]:
    """Return class indices [*b] or [*b, n] as one-hot vectors, concatenated per step.

    A class of -1 marks a missing value and gives zeros.
    """
    if isinstance(classes, int):
        hot = F.one_hot(value.long().clamp(min=0), classes).float()
        return hot * (value >= 0)[..., None]
    pairs = zip(value.unbind(-1), classes, strict=True)
    return torch.cat([one_hot(v, n) for v, n in pairs], -1)


def squash(
    value: Shaped[Tensor, " ..."], spec: ArraySpec, batch_dims: int
) -> Float[Tensor, "... k"]:
    """Return a vector observation [*b, ...] as symlog values [*b, n]; -inf gives zeros."""
    if spec.classes is not None:
        return one_hot(value, spec.classes)
    flat = value.float().reshape(*value.shape[:batch_dims], -1)
    there = ~torch.isneginf(flat).any(-1, keepdim=True)
    return symlog(torch.where(there, flat, 0.0))


class Encoder(nn.Module):
    """Encodes vectors (symlog) with an MLP and images with convolutions."""

    Config = CodecConfig

    def __init__(self, config: CodecConfig, obs: dict[str, ArraySpec]) -> None:
        super().__init__()
        images, vectors = split_spec(obs)
        self.images, self.vectors = sorted(images), dict(sorted(vectors.items()))
        self.out_dim = 0
        if vectors:
            dim = sum(width(s) for s in vectors.values())
            self.mlp = NormMLP(dim, config.units, config.layers, config)
            self.out_dim += self.mlp.out_dim
        if images:
            shape = _stacked(images)
            check_size(shape, len(config.mults))
            self.cnn = PoolEncoder(shape, config.depths, config)
            self.out_dim += self.cnn.out_dim

    def forward(self, obs: Obs) -> Float[Tensor, "*b e"]:
        """Return the tokens of observations [*b, ...]."""
        tokens: list[Tensor] = []
        if self.vectors:
            spec = next(iter(self.vectors))
            dims = obs[spec].ndim - len(self.vectors[spec].shape)
            parts = [squash(obs[k], s, dims) for k, s in self.vectors.items()]
            tokens.append(self.mlp(torch.cat(parts, -1)))
        if self.images:
            image = torch.cat([obs[k] for k in self.images], -1)
            lead = image.shape[:-3]
            tokens.append(self.cnn(image.reshape(-1, *image.shape[-3:])).view(*lead, -1))
        return torch.cat(tokens, -1)


class Decoder(nn.Module):
    """Predicts every observation from the latent state."""

    Config = DecoderConfig

    def __init__(
        self, config: DecoderConfig, obs: dict[str, ArraySpec], deter: int, stoch: int
    ) -> None:
        super().__init__()
        self.images, self.vectors = split_spec(obs)
        self.decoded = {**self.images, **self.vectors}
        if self.vectors:
            self.mlp = NormMLP(deter + stoch, config.units, config.layers, config)
            dim = self.mlp.out_dim
            self.out = NamedModules({k: dense(dim, width(s)) for k, s in self.vectors.items()})
        if self.images:
            check_blocks(config, deter)
            self.cnn = UpDecoder(
                _stacked(self.images), deter, stoch, config.depths, config.units, config.blocks,
                config,
            )  # fmt: skip

    def forward(self, deter: Float[Tensor, "n d"], stoch: Float[Tensor, "n s"]) -> Obs:
        """Return predictions [n, ...]: symlog vectors, class logits, images in (0, 1)."""
        out: Obs = {}
        if self.vectors:
            x = self.mlp(torch.cat([stoch, deter], -1))
            out |= {k: layer(x).float() for k, layer in self.out.items()}
        if self.images:
            image = self.cnn(deter, stoch).float()
            parts = image.split([s.shape[-1] for s in self.images.values()], -1)
            out |= dict(zip(self.images, parts, strict=True))
        return out

    def natural(self, predicted: Obs) -> Obs:
        """Return predictions in the units of the observations; images stay in (0, 1)."""
        out = dict(predicted)
        for name, spec in self.vectors.items():
            if spec.classes is None:
                out[name] = symexp(predicted[name]).unflatten(-1, spec.shape or (1,))
                out[name] = out[name] if spec.shape else out[name][..., 0]
            elif isinstance(spec.classes, int):
                out[name] = predicted[name].argmax(-1)
            else:
                parts = predicted[name].split(spec.classes, -1)
                out[name] = torch.stack([p.argmax(-1) for p in parts], -1)
        return out

    def losses(self, predicted: Obs, obs: Obs) -> Obs:
        """Return the loss [n] of each observation, summed over its entries."""
        out: Obs = {}
        for name, guess in predicted.items():
            if name in self.images:
                out[name] = (guess - obs[name].float() / 255).square().sum((-3, -2, -1))
            elif (classes := self.vectors[name].classes) is not None:
                out[name] = _class_loss(guess, obs[name], classes)
            else:
                truth = symlog(obs[name].float().reshape(len(guess), -1))
                out[name] = (guess - truth).square().sum(-1)
        return out


def _class_loss(
    logits: Float[Tensor, "n k"], value: Shaped[Tensor, "n ..."], classes: int | tuple[int, ...]
) -> Float[Tensor, " n"]:
    sizes = [classes] if isinstance(classes, int) else list(classes)
    values = value[..., None] if isinstance(classes, int) else value
    pairs = zip(logits.split(sizes, -1), values.long().unbind(-1), strict=True)
    return torch.stack([F.cross_entropy(x, v, reduction="none") for x, v in pairs]).sum(0)


def _stacked(images: dict[str, ArraySpec]) -> tuple[int, int, int]:
    """Return the shape of all images concatenated along channels."""
    height, width_ = next(iter(images.values())).shape[:2]
    return height, width_, sum(s.shape[2] for s in images.values())


def check_blocks(config: DecoderConfig, deter: int) -> None:
    """Raise unless the smallest map and the deterministic state divide into blocks."""
    sizes = {"the innermost map's channels (depth times the last of mults)": config.depths[-1]}
    for what, size in {**sizes, "the deterministic state's numbers": deter}.items():
        if size % config.blocks:
            raise ConfigError(
                f"workflow.decoder: {size}, {what}, must be a multiple of blocks={config.blocks}"
            )


def check_size(shape: tuple[int, int, int], halvings: int) -> None:
    """Raise unless an image can be halved `halvings` times to a map of 3 to 16 pixels."""
    scale = 2**halvings
    small = [math.ceil(n / scale) for n in shape[:2]]
    if any(n % scale for n in shape[:2]) or not all(3 <= n <= 16 for n in small):
        raise ConfigError(
            f"env: images of {shape[0]}x{shape[1]} do not fit {halvings} halvings to a map of 3 to "
            f"16 pixels; set env.size=[64, 64] or another multiple of {scale} (of a data set, its "
            "size)"
        )
