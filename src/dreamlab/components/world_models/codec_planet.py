"""Encoder and decoder for images and vectors together, as before DreamerV3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from dreamlab.components.world_models.codec import one_hot, split_spec, width
from dreamlab.core.errors import ConfigError
from dreamlab.core.limits import Depth, Range, Width
from dreamlab.core.types import ArraySpec, Obs
from dreamlab.nn.image_planet import SIZE, StrideDecoder, StrideEncoder, centred
from dreamlab.nn.layers import ActKind, LayerStyle, NormMLP, dense
from dreamlab.ops.scaling import symexp, symlog


@dataclass(frozen=True)
class PlaNetCodecConfig:
    """Layers of encoder and decoder."""

    depth: Width = 32
    """Channels of the first encoder convolution; the others use multiples of it."""
    layers: Depth = 2
    """Hidden layers for vectors."""
    units: Width = 400
    act: ActKind = "elu"
    conv_act: ActKind = "relu"
    bits: Annotated[int, Range(1, 8)] = 8
    """Bit depth of each color channel."""
    symlog: bool = False
    """Apply symlog to vectors, which the originals leave unscaled."""


class PlaNetCodec(nn.Module):
    """Preprocesses and encodes observations, and predicts them from latent states."""

    def __init__(self, config: PlaNetCodecConfig, obs: dict[str, ArraySpec], in_dim: int) -> None:
        super().__init__()
        c = self.config = config
        self.images, self.vectors = split_spec(obs)
        check_images(self.images)
        style, self.token_dim = LayerStyle("none", c.act), 0
        if self.vectors:
            dim = sum(width(s) for s in self.vectors.values())
            self.read = NormMLP(dim, c.units, c.layers, style)
            self.write = NormMLP(in_dim, c.units, c.layers, style)
            self.write_out = dense(self.write.out_dim, dim)
            self.token_dim += self.read.out_dim
        if self.images:
            channels = sum(s.shape[2] for s in self.images.values())
            self.look = StrideEncoder(channels, c.depth, c.conv_act)
            self.draw = StrideDecoder(in_dim, channels, c.depth, c.conv_act)
            self.token_dim += self.look.out_dim

    def preprocess(self, obs: Obs) -> Obs:
        """Return observations [*b, ...] as model inputs and targets.

        Images are centered, vectors are flattened to [*b, n], classes are one-hot.
        """
        out: Obs = {k: centred(obs[k], self.config.bits) for k in self.images}
        for name, spec in self.vectors.items():
            value = obs[name]
            if spec.classes is not None:
                out[name] = one_hot(value, spec.classes)
            else:
                lead = value.shape[: value.ndim - len(spec.shape)]
                flat = value.float().reshape(*lead, -1)
                out[name] = symlog(flat) if self.config.symlog else flat
        return out

    def encode(self, ready: Obs) -> Float[Tensor, "*b e"]:
        """Return the tokens of preprocessed observations."""
        tokens: list[Tensor] = []
        if self.vectors:
            tokens.append(self.read(torch.cat([ready[k] for k in self.vectors], -1)))
        if self.images:
            image = torch.cat([ready[k] for k in self.images], -1)
            flat = self.look(image.reshape(-1, *image.shape[-3:]))
            tokens.append(flat.view(*image.shape[:-3], -1))
        return torch.cat(tokens, -1) if len(tokens) > 1 else tokens[0]

    def decode(self, feature: Float[Tensor, "n d"]) -> Obs:
        """Return predictions [n, ...] from latent states; logits for classes."""
        out: Obs = {}
        if self.vectors:
            flat = self.write_out(self.write(feature)).float()
            parts = flat.split([width(s) for s in self.vectors.values()], -1)
            out |= dict(zip(self.vectors, parts, strict=True))
        if self.images:
            image = self.draw(feature).float()
            parts = image.split([s.shape[2] for s in self.images.values()], -1)
            out |= dict(zip(self.images, parts, strict=True))
        return out

    def natural(self, predicted: Obs) -> Obs:
        """Return predictions in the units of the observations; images in [0, 1]."""
        out: Obs = {k: (predicted[k] + 0.5).clamp(0, 1) for k in self.images}
        for name, spec in self.vectors.items():
            guess = predicted[name]
            if spec.classes is None:
                guess = symexp(guess) if self.config.symlog else guess
                out[name] = guess.reshape(*guess.shape[:-1], *spec.shape)
            elif isinstance(spec.classes, int):
                out[name] = guess.argmax(-1)
            else:
                parts = guess.split(spec.classes, -1)
                out[name] = torch.stack([p.argmax(-1) for p in parts], -1)
        return out

    def losses(self, predicted: Obs, ready: Obs) -> Obs:
        """Return the negative log-likelihood [n] of each observation, without its constant.

        Vectors and pixels are Gaussians with unit variance around the prediction.
        """
        out: Obs = {}
        for name, guess in predicted.items():
            spec = self.vectors.get(name)
            if spec is not None and spec.classes is not None:
                out[name] = _class_loss(guess, ready[name], spec.classes)
            else:
                out[name] = 0.5 * (guess - ready[name]).square().flatten(1).sum(-1)
        return out


def _class_loss(
    logits: Float[Tensor, "n k"], hot: Float[Tensor, "n k"], classes: int | tuple[int, ...]
) -> Float[Tensor, " n"]:
    sizes = [classes] if isinstance(classes, int) else list(classes)
    logp = torch.cat([F.log_softmax(x, -1) for x in logits.split(sizes, -1)], -1)
    return -(hot * logp).sum(-1)


def check_images(images: dict[str, ArraySpec]) -> None:
    """Raise unless every image has the size that the convolutions require."""
    for name, spec in images.items():
        if spec.shape[:2] != SIZE:
            raise ConfigError(
                f"env: this world model sees images of 64x64, but {name!r} has "
                f"{spec.shape[0]}x{spec.shape[1]}. Set env.size=[64, 64]."
            )
