"""Encoders, ensembles and MLPs: shapes, and sameness with what they stand for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from dreamlab.core.config import Part
from dreamlab.nn.ensemble import EnsembleLinear, EnsembleMLP
from dreamlab.nn.fourier import Fourier, FourierConfig
from dreamlab.nn.mlp import MLP, Identity, IdentityConfig, MLPConfig


@pytest.mark.parametrize("encoder", ["cnn", "impala", "patches"])
@pytest.mark.parametrize("shape", [(64, 64, 3), (84, 84, 4), (16, 16, 3)])
def test_images_become_features_with_any_leading_axes(encoder: str, shape: tuple[int, int, int]):
    net = Part.load(encoder, {"out_dim": 32}).build(shape)
    image = torch.randint(0, 256, (2, 3, *shape), dtype=torch.uint8)
    features = net(image)
    assert net.out_dim == 32
    assert features.shape == (2, 3, 32)
    torch.testing.assert_close(net(image[1, 2]), features[1, 2], atol=1e-5, rtol=1e-4)
    assert features.std(0).sum() > 0


@pytest.mark.parametrize("encoder", ["cnn", "impala", "patches"])
def test_every_weight_of_an_encoder_learns(encoder: str):
    torch.manual_seed(0)
    net = Part.load(encoder).build((64, 64, 3))
    net(torch.randint(0, 256, (4, 64, 64, 3), dtype=torch.uint8)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in net.parameters())


@pytest.mark.parametrize("norm", [False, True])
def test_an_ensemble_is_several_mlps(norm: bool):
    torch.manual_seed(0)
    ensemble = EnsembleMLP(3, [5, 8, 8], 2, "relu", norm)
    x = torch.randn(7, 5)
    got = ensemble(x)
    assert got.shape == (3, 7, 2)
    for i in range(3):
        torch.testing.assert_close(got[i], member(ensemble, i)(x))


def member(ensemble: EnsembleMLP, index: int) -> nn.Sequential:
    """Return one member as layers of torch."""
    layers: list[Any] = []
    for layer in ensemble.layers:
        if isinstance(layer, EnsembleLinear):
            plain = nn.Linear(layer.weight.shape[1], layer.weight.shape[2])
            plain.weight.data = layer.weight[index].T.detach().clone()
            plain.bias.data = layer.bias[index, 0].detach().clone()
            layers.append(plain)
        else:
            layers.append(layer)
    return nn.Sequential(*layers)


def test_members_of_an_ensemble_begin_different_and_learn_alone():
    torch.manual_seed(0)
    ensemble = EnsembleMLP(2, [5, 8], 1, "relu", norm=False)
    got = ensemble(torch.randn(7, 5))
    assert not torch.allclose(got[0], got[1])
    got[0].sum().backward()
    first = ensemble.layers[0]
    assert isinstance(first, EnsembleLinear)
    assert first.weight.grad is not None
    assert first.weight.grad[0].abs().sum() > 0
    assert first.weight.grad[1].abs().sum() == 0


def test_an_mlp_keeps_the_state_it_is_given():
    net = MLP(MLPConfig(hidden=(8, 6)), 4)
    y, state = net(torch.randn(2, 3, 4), ("anything",))
    assert y.shape == (2, 3, net.out_dim) == (2, 3, 6)
    assert state == ("anything",)


def test_an_mlp_without_layers_is_the_identity():
    x = torch.randn(2, 4)
    for net in (MLP(MLPConfig(hidden=()), 4), Identity(IdentityConfig(), 4)):
        assert net.out_dim == 4
        assert net(x)[0] is x


def test_fourier_features_are_octaves_of_every_entry():
    net = Fourier(FourierConfig(octaves=2), 2)
    x = torch.tensor([[0.5, -0.25]])
    y, state = net(x, ("anything",))
    assert net.out_dim == y.shape[-1] == 10
    assert state == ("anything",)
    angles = torch.pi * torch.tensor([0.5, 1.0, -0.25, -0.5])
    assert torch.allclose(y[0], torch.cat([x[0], angles.sin(), angles.cos()]), atol=1e-6)
