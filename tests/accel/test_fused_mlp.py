"""The fused MLP computes what the layers it stands for compute."""

from itertools import pairwise

import pytest
import torch

from dreamlab.accel.fused_mlp import BLOCK_ROWS, compiled_mlp, product
from dreamlab.nn.ensemble import EnsembleMLP
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


@pytest.mark.parametrize("act", ["tanh", "relu"])
@pytest.mark.parametrize("dims", [(5, 8, 1), (5, 8, 3), (40, 8, 2)])
def test_what_the_compiler_is_given_has_the_same_values_and_gradients(act, dims):
    net = EnsembleMLP(2, list(dims[:-1]), dims[-1], act, norm=False)
    single = [p for a, b in pairwise(dims) for p in torch.nn.Linear(a, b).parameters()]
    for params in (net.flat, single):
        x = torch.randn(*([2] if params is net.flat else []), 7, dims[0], requires_grad=True)
        given = compiled_mlp(x, act, True, params)
        plain = net.layers(x) if params is net.flat else _layers(x, act, params)
        torch.testing.assert_close(given, plain)
        inputs = [x, *params]
        weight = torch.randn_like(plain)
        a, b = (torch.autograd.grad((y * weight).sum(), inputs) for y in (given, plain))
        torch.testing.assert_close(a, b)


def _layers(x, act, params):
    hidden = getattr(torch, act)(torch.nn.functional.linear(x, *params[:2]))
    return torch.nn.functional.linear(hidden, *params[2:])


def test_many_rows_are_taken_in_blocks_where_no_gradient_is_wanted():
    net = MLP(MLPConfig(hidden=(8, 6)), 5)
    x = torch.randn(2 * BLOCK_ROWS + 3, 5)
    with torch.no_grad():
        torch.testing.assert_close(net(x)[0], net.layers(x))
        assert net(x[:0])[0].shape == (0, 6)


def test_outer_products_of_several_networks_are_products():
    a, b = torch.randn(2, 7, 1), torch.randn(2, 1, 5)
    torch.testing.assert_close(product(a, b), torch.bmm(a, b))
