"""Returns and advantages against numbers computed by hand."""

from __future__ import annotations

import pytest
import torch

from dreamlab.ops.returns import discounted_return, gae, lambda_return, n_step

ONES = torch.ones(1, 4)
NO = torch.zeros(1, 4, dtype=torch.bool)


def flags(*places: int, length: int = 4) -> torch.Tensor:
    out = torch.zeros(1, length, dtype=torch.bool)
    out[0, list(places)] = True
    return out


# -- lambda returns ----------------------------------------------------------------------------


def test_lambda_one_is_the_discounted_sum():
    assert lambda_return(ONES, 0.5 * ONES, 8 * ONES, lam=1.0)[0, 0] == 1 + 0.5 + 0.25 + 8 * 0.125


def test_lambda_zero_looks_one_step_ahead():
    assert lambda_return(ONES, 0.5 * ONES, 8 * ONES, lam=0.0).tolist() == [[5, 5, 5]]


def test_lambda_between_mixes_value_and_return():
    reward = torch.tensor([[9.0, 1.0, 2.0]])  # the first reward belongs to the step before
    value = torch.tensor([[9.0, 4.0, 8.0]])
    got = lambda_return(reward, torch.full((1, 3), 0.5), value, lam=0.5)
    # R1 = 2 + .5 * 8 = 6; R0 = 1 + .5 * (.5 * 4 + .5 * 6) = 3.5
    assert got.tolist() == [[3.5, 6.0]]


@pytest.mark.parametrize("lam", [0.0, 0.95, 1.0])
def test_nothing_leaks_through_a_termination(lam: float):
    discount = torch.tensor([[0.9, 0.9, 0.0, 0.9]])  # the episode ends on arriving at step 2
    near, far = ONES.clone(), ONES.clone()
    far[:, 2:] = 1e6
    same = [lambda_return(ONES, discount, value, lam)[:, :2] for value in (near, far)]
    torch.testing.assert_close(*same)


def test_gradients_flow_through_rewards_discounts_and_values():
    inputs = [torch.rand(2, 4, requires_grad=True) for _ in range(3)]
    lambda_return(*inputs, lam=0.9).sum().backward()
    assert all(x.grad is not None and x.grad[:, 1:].abs().min() > 0 for x in inputs)


def test_a_wrong_shape_is_named():
    with pytest.raises(Exception, match="discount"):
        lambda_return(ONES, torch.ones(2, 4), ONES, lam=0.9)


# -- generalised advantages --------------------------------------------------------------------


def test_advantages_of_a_running_episode():
    reward, value = torch.tensor([[9.0, 1.0, 2.0, 3.0]]), torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    got = gae(reward, value, NO, NO, gamma=0.5, lam=0.5)
    # d = [1 + 1 - 1, 2 + 1.5 - 2, 3 + 2 - 3] = [1, 1.5, 2]; A1 = 1.5 + .25 * 2, A0 = 1 + .25 * 2
    assert got.tolist() == [[1.5, 2.0, 2.0]]


def test_termination_has_no_value_and_truncation_has():
    reward, value = torch.zeros(1, 4), torch.tensor([[1.0, 2.0, 100.0, 7.0]])
    over = gae(reward, value, flags(2), flags(2), gamma=0.5, lam=1.0)
    cut = gae(reward, value, flags(2), NO, gamma=0.5, lam=1.0)
    # over: d1 = 0 - 2; A0 = (.5 * 2 - 1) + .5 * -2 = -1     cut: d1 = 50 - 2 = 48; A0 = 0 + 24
    assert over[0, :2].tolist() == [-1.0, -2.0]
    assert cut[0, :2].tolist() == [24.0, 48.0]


def test_the_void_last_step_has_no_advantage_and_passes_nothing_back():
    reward = torch.tensor([[0.0, 1.0, 1e6, 1.0]])  # the seam's reward must not reach anyone
    value = torch.tensor([[1.0, 1.0, 1e6, 1.0]])
    got = gae(reward, value, flags(1), NO, gamma=1.0, lam=1.0)
    assert got[0, 0] == 1  # 1 + 1 - 1, the value of the step it was cut at
    assert got[0, 1] == 0
    assert got[0, 2] == 1 + 1 - 1e6


def test_nothing_comes_from_the_next_episode():
    reward, value = torch.ones(1, 6), torch.ones(1, 6)
    last = flags(2, length=6)
    before = gae(reward, value, last, last, gamma=0.9, lam=0.9)[0, :2]
    value[:, 3:] = 1e6
    reward[:, 4:] = 1e6
    assert gae(reward, value, last, last, gamma=0.9, lam=0.9)[0, :2].equal(before)


def test_advantage_plus_value_is_the_lambda_return():
    torch.manual_seed(0)
    reward, value = torch.randn(3, 6), torch.randn(3, 6)
    no = torch.zeros(3, 6, dtype=torch.bool)
    advantage = gae(reward, value, no, no, gamma=0.9, lam=0.8)
    returns = lambda_return(reward, torch.full((3, 6), 0.9), value, 0.8)
    torch.testing.assert_close(advantage + value[:, :-1], returns)


# -- n steps -----------------------------------------------------------------------------------


def test_n_steps_of_a_running_episode():
    total, factor, at = n_step(torch.tensor([[9.0, 1.0, 2.0, 4.0]]), NO, NO, gamma=0.5)
    assert (total.item(), factor.item(), at.item()) == (1 + 1 + 1, 0.125, 3)


@pytest.mark.parametrize(("terminal", "factor"), [(True, 0.0), (False, 0.25)])
def test_n_steps_stop_where_the_episode_ends(terminal: bool, factor: float):
    reward = torch.tensor([[9.0, 1.0, 2.0, 1e6]])
    got = n_step(reward, flags(2), flags(2) & terminal, gamma=0.5)
    assert [x.item() for x in got] == [1 + 1, factor, 2]


def test_n_steps_stop_at_the_first_of_two_ends():
    reward = torch.tensor([[0.0, 1.0, 1e6, 1e6]])
    got = n_step(reward, flags(1, 3), flags(3), gamma=0.5)
    assert [x.item() for x in got] == [1.0, 0.5, 1]


def test_an_end_at_the_start_of_the_window_does_not_count():
    got = n_step(torch.ones(1, 4), flags(0), flags(0), gamma=1.0)
    assert [x.item() for x in got] == [3.0, 1.0, 3]


def test_the_discounted_return_of_each_step_includes_its_own_reward():
    assert discounted_return(torch.tensor([[1.0, 2.0, 4.0]]), 0.5).tolist() == [[3.0, 4.0, 4.0]]
