"""The fused MLP computes what the layers it stands for compute."""

import pytest
import torch

from dreamlab.nn.mlp import MLP, MLPConfig


@pytest.mark.parametrize("act", ["tanh", "relu"])
@pytest.mark.parametrize("shape", [(7, 5), (3, 4, 5)])
def test_values_and_gradients_equal_those_of_the_layers(act, shape):
    net = MLP(MLPConfig(hidden=(8, 6), act=act), 5)
    x = torch.randn(shape, requires_grad=True)
    fused, _ = net(x)
    plain = net.layers(x)
    torch.testing.assert_close(fused, plain)
    weight = torch.randn_like(plain)
    inputs = [x, *net.parameters()]
    for a, b in zip(
        torch.autograd.grad((fused * weight).sum(), inputs),
        torch.autograd.grad((plain * weight).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_without_gradients_the_result_is_the_same():
    net = MLP(MLPConfig(hidden=(8, 6)), 5)
    x = torch.randn(4, 5)
    with torch.no_grad():
        torch.testing.assert_close(net(x)[0], net.layers(x))


def test_a_copy_of_the_network_follows_its_own_weights():
    import copy

    net = MLP(MLPConfig(hidden=(8,)), 5)
    twin = copy.deepcopy(net)
    with torch.no_grad():
        for p in twin.parameters():
            p.zero_()
    assert twin(torch.randn(2, 5))[0].abs().sum() == 0
    assert net(torch.randn(2, 5))[0].abs().sum() > 0


def test_normalised_and_other_activations_use_the_layers():
    net = MLP(MLPConfig(hidden=(8,), act="silu", norm=True), 5)
    x = torch.randn(2, 5)
    torch.testing.assert_close(net(x)[0], net.layers(x))
