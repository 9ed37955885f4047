"""Weight initialization of Keras and TensorFlow 1: Glorot uniform, zero biases."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

M = TypeVar("M", bound=nn.Module)
WEIGHTED = (nn.Linear, nn.Conv2d, nn.ConvTranspose2d)


def glorot(module: M) -> M:
    """Reinitialize linear and convolutional layers, except all-zero ones; return the module."""
    for layer in module.modules():
        if isinstance(layer, WEIGHTED) and layer.weight.any():
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.GRUCell):
            nn.init.xavier_uniform_(layer.weight_ih)
            nn.init.orthogonal_(layer.weight_hh)
            nn.init.zeros_(layer.bias_ih)
            nn.init.zeros_(layer.bias_hh)
    return module
