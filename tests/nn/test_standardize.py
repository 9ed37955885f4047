"""Numbers are seen in deviations from the mean of everything that was shown."""

from __future__ import annotations

import torch

from dreamlab.nn.standardize import Standardize


def test_batches_add_up_to_the_mean_and_deviation_of_them_all():
    rows = torch.randn(90, 3) * torch.tensor([1.0, 5.0, 0.1]) + torch.tensor([0.0, 7.0, -2.0])
    scale = Standardize(3)
    for part in rows.split([10, 50, 30]):
        scale.watch(part)
    torch.testing.assert_close(scale.mean, rows.mean(0))
    torch.testing.assert_close(scale.std, rows.std(0, correction=0))
    torch.testing.assert_close(scale.inverse(scale(rows)), rows)


def test_rows_of_no_weight_are_not_seen():
    rows = torch.randn(20, 2)
    rows[::2] = 1e6
    scale, other = Standardize(2), Standardize(2)
    scale.watch(rows, torch.tensor([0.0, 1.0] * 10))
    other.watch(rows[1::2])
    torch.testing.assert_close(scale.mean, other.mean)
    torch.testing.assert_close(scale.var, other.var)
    scale.watch(rows, torch.zeros(20))
    torch.testing.assert_close(scale.mean, other.mean)


def test_what_never_changes_is_not_blown_up():
    scale = Standardize(1, least=0.01)
    scale.watch(torch.full((10, 1), 3.0))
    assert scale(torch.tensor([[3.005]])).item() < 1
