"""A pass draws every stored step once."""

from __future__ import annotations

import numpy as np
import pytest

from dreamlab.data.passes import Passes, PassesConfig
from dreamlab.data.samplers import Window


def drawn(sampler: Passes, window: Window, draws: int, num: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.concatenate([sampler.draw(window, num, rng)[0] for _ in range(draws)])


@pytest.mark.parametrize("begun", [0, 1, 3])
@pytest.mark.parametrize("ticks", [12, 13, 15])
def test_a_pass_holds_every_step_wherever_it_begins(ticks, begun):
    n, length = 2, 4
    window = Window(0, (ticks - length + 1) * n, None, n, length)
    sampler = Passes(PassesConfig(), 100)
    for _ in range(begun):
        drawn(sampler, window, 1, 2)
    windows = -(-ticks // length) * n
    ids = drawn(sampler, window, windows // 2, 2)
    assert len(set(ids.tolist())) == windows
    steps = {int(i) + k * n for i in ids for k in range(length)}
    assert steps == set(range(ticks * n))


def test_the_order_is_shuffled_and_goes_on_where_it_was():
    window = Window(0, 97 * 2, None, 2, 4)
    one, other = Passes(PassesConfig(), 100), Passes(PassesConfig(), 100)
    first = drawn(one, window, 3, 5)
    assert sorted(first) != first.tolist()
    other.set_state(one.get_state())
    assert drawn(one, window, 2, 5).tolist() == drawn(other, window, 2, 5).tolist()


def test_steps_that_are_gone_are_not_drawn_and_invalid_ones_passed_over():
    window = Window(20, 40, lambda ids: ids % 4 == 0, 1, 4)
    ids = drawn(Passes(PassesConfig(), 100), window, 5, 1)
    assert sorted(ids) == [20, 24, 28, 32, 36]
