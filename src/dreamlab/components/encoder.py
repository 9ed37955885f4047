"""Encodes a dictionary of observations, images and vectors, to one feature vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from dreamlab.core.config import Part, part
from dreamlab.core.types import ArraySpec, Obs
from dreamlab.nn.mlp import Identity
from dreamlab.nn.named import NamedModules


@dataclass(frozen=True)
class EncoderConfig:
    """Networks for images and for the concatenated vectors."""

    image: Part = part("cnn")
    vector: Part = part("identity")


class Encoder(nn.Module):
    """Encodes each image with its own network, and concatenated vectors and one-hot classes."""

    def __init__(self, config: EncoderConfig, obs: dict[str, ArraySpec]) -> None:
        super().__init__()
        self.obs = dict(sorted(obs.items()))
        self.images = NamedModules(
            {k: config.image.build(s.shape) for k, s in self.obs.items() if s.is_image}
        )
        vector_dim = sum(_width(s) for s in self.obs.values() if not s.is_image)
        self.vector = config.vector.build(vector_dim) if vector_dim else None
        self.only = _only_vector(self.obs) if isinstance(self.vector, Identity) else None
        dims: list[Any] = [m.out_dim for m in self.images.values()]
        self.out_dim = int(sum(dims)) + (self.vector.out_dim if self.vector is not None else 0)

    def forward(self, obs: Obs) -> Float[Tensor, "*b d"]:
        """Return the features of observations [*b, ...]."""
        if self.only is not None:  # the most common case: a single vector, passed through
            return obs[self.only]
        parts = [net(obs[k]) for k, net in self.images.items()]
        if self.vector is not None:
            flat = [flat_obs(obs[k], s) for k, s in self.obs.items() if not s.is_image]
            parts.append(self.vector(torch.cat(flat, -1))[0])
        return torch.cat(parts, -1)


def _only_vector(obs: dict[str, ArraySpec]) -> str | None:
    """Return the name of the only observation if it is a plain vector."""
    name, spec = next(iter(obs.items()))
    plain = spec.classes is None and len(spec.shape) == 1 and spec.dtype == "float32"
    return name if len(obs) == 1 and plain else None


def _width(spec: ArraySpec) -> int:
    classes = spec.classes
    if classes is None:
        return spec.size
    return classes if isinstance(classes, int) else sum(classes)


def flat_obs(value: Shaped[Tensor, "*b"], spec: ArraySpec) -> Float[Tensor, "... k"]:
    """Return a vector observation as one flat row, with classes one-hot."""
    if isinstance(spec.classes, int):
        return F.one_hot(value.long(), spec.classes).float()
    if spec.classes is not None:
        pairs = zip(value.long().unbind(-1), spec.classes, strict=True)
        return torch.cat([F.one_hot(v, n).float() for v, n in pairs], -1)
    if len(spec.shape) == 1 and value.dtype == torch.float32:
        return value
    lead = value.shape[: value.ndim - len(spec.shape)]
    return value.reshape(*lead, -1).float()
