"""Networks with memory: acting step by step and training on whole sequences compute the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dreamlab.nn.rnn import RNN, RNNConfig
from dreamlab.nn.transformer import Transformer, TransformerConfig

CPU = torch.device("cpu")
NETWORKS = {
    "gru": lambda: RNN(RNNConfig("gru", hidden=8, before=(6,)), 3),
    "lstm": lambda: RNN(RNNConfig("lstm", hidden=8, before=()), 3),
    "transformer": lambda: Transformer(TransformerConfig(dim=8, heads=2, layers=2, context=4), 3),
}


@pytest.fixture(params=NETWORKS)
def network(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    return NETWORKS[request.param]()


def sequence(length: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    is_first = torch.zeros(3, 12, dtype=torch.bool)
    is_first[0, 0] = is_first[1, 5] = is_first[2, 0] = is_first[2, 1] = is_first[2, 7] = True
    return torch.randn(3, length, 3), is_first[:, :length]


def test_step_by_step_is_the_same_as_the_whole_sequence(network: Any):
    x, is_first = sequence()
    start = network.initial_state(3, CPU)
    whole, end = network(x, start, is_first)
    state, steps = start, []
    for t in range(x.shape[1]):
        y, state = network(x[:, t : t + 1], state, is_first[:, t : t + 1])
        steps.append(y)
    torch.testing.assert_close(torch.cat(steps, 1), whole)
    for a, b in zip(state, end, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("cut", [1, 5, 7, 11])
def test_a_sequence_may_be_cut_anywhere(network: Any, cut: int):
    x, is_first = sequence()
    whole, _ = network(x, network.initial_state(3, CPU), is_first)
    one, state = network(x[:, :cut], network.initial_state(3, CPU), is_first[:, :cut])
    two, _ = network(x[:, cut:], state, is_first[:, cut:])
    torch.testing.assert_close(torch.cat([one, two], 1), whole)


def test_nothing_is_remembered_from_before_an_episode(network: Any):
    x, is_first = sequence()
    other = x.clone()
    other[1, :5] = 100.0  # before the seam of the second row
    one, two = (network(v, network.initial_state(3, CPU), is_first)[0] for v in (x, other))
    assert not one[1, 4].equal(two[1, 4])
    torch.testing.assert_close(one[1, 5:], two[1, 5:])


def test_a_state_that_enters_a_first_step_is_forgotten(network: Any):
    x, _ = sequence(4)
    no = torch.zeros(3, 4, dtype=torch.bool)
    _, used = network(x, network.initial_state(3, CPU), no)
    first = no.clone()
    first[:, 0] = True
    fresh = network(x, network.initial_state(3, CPU), first)[0]
    torch.testing.assert_close(network(x, used, first)[0], fresh)
    assert not network(x, used, no)[0].equal(fresh)


def test_the_past_within_an_episode_matters_and_the_future_does_not(network: Any):
    x, _ = sequence(6)
    no = torch.zeros(3, 6, dtype=torch.bool)
    other = x.clone()
    other[:, 3] += 1.0
    one, two = (network(v, network.initial_state(3, CPU), no)[0] for v in (x, other))
    torch.testing.assert_close(one[:, :3], two[:, :3])
    assert (one[:, 4] - two[:, 4]).abs().max() > 1e-4


def test_a_transformer_sees_no_further_back_than_its_context():
    torch.manual_seed(0)
    network = NETWORKS["transformer"]()  # context 4: step 6 sees 3, 4, 5, 6
    x, _ = sequence(7)
    no = torch.zeros(3, 7, dtype=torch.bool)
    for changed, reaches in ((2, False), (3, True)):
        other = x.clone()
        other[:, changed] += 1.0
        one, two = (network(v, network.initial_state(3, CPU), no)[0] for v in (x, other))
        assert torch.allclose(one[:, 6], two[:, 6]) is not reaches


def test_gradients_reach_back_through_time_and_stop_at_a_seam(network: Any):
    x, is_first = sequence()
    x.requires_grad_()
    y, _ = network(x, network.initial_state(3, CPU), is_first)
    y[1, 6, 0].backward()
    assert x.grad is not None
    assert x.grad[1, 5].abs().sum() > 0
    assert x.grad[1, :5].abs().sum() == 0
