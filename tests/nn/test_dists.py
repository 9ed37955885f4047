"""Our small distributions against torch's."""

from __future__ import annotations

import torch
from torch import distributions as td

from dreamlab.nn.dists import Categorical, Gaussian, MultiCategorical, TanhGaussian

LOGITS = torch.tensor([[0.0, 1.0, -1.0], [2.0, 2.0, -5.0]])
MEAN, LOG_STD = torch.tensor([[0.5, -1.0], [2.0, 0.0]]), torch.tensor([-0.5, 0.3])


def test_categorical_is_torchs():
    ours, theirs = Categorical(LOGITS), td.Categorical(logits=LOGITS)
    for value in torch.tensor([[0, 0], [1, 2], [2, 1]]):
        torch.testing.assert_close(ours.log_prob(value), theirs.log_prob(value))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    assert ours.mode()[0] == 1


def test_categorical_samples_as_often_as_the_probabilities_say():
    torch.manual_seed(0)
    samples = Categorical(LOGITS.expand(40_000, 2, 3)).sample()
    for row in range(2):
        seen = samples[:, row].bincount(minlength=3) / 40_000
        torch.testing.assert_close(seen, LOGITS[row].softmax(0), atol=0.01, rtol=0)


def test_categorical_never_samples_what_is_impossible():
    torch.manual_seed(0)
    logits = torch.tensor([0.0, -torch.inf, 0.0]).expand(10_000, 3)
    assert not (Categorical(logits).sample() == 1).any()


def test_several_choices_are_independent():
    ours = MultiCategorical(torch.cat([LOGITS, LOGITS[:, :2]], -1), (3, 2))
    parts = td.Categorical(logits=LOGITS), td.Categorical(logits=LOGITS[:, :2])
    value = torch.tensor([[1, 0], [2, 1]])
    want = parts[0].log_prob(value[:, 0]) + parts[1].log_prob(value[:, 1])
    torch.testing.assert_close(ours.log_prob(value), want)
    torch.testing.assert_close(ours.entropy(), parts[0].entropy() + parts[1].entropy())
    assert ours.sample().shape == ours.mode().shape == (2, 2)


def test_gaussian_is_torchs():
    ours = Gaussian(MEAN, LOG_STD)
    theirs = td.Independent(td.Normal(MEAN, LOG_STD.exp().expand(2, 2)), 1)
    value = torch.tensor([[0.0, 0.3], [-1.0, 4.0]])
    torch.testing.assert_close(ours.log_prob(value), theirs.log_prob(value))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    assert ours.mode().equal(MEAN)


def test_gaussian_samples_have_its_mean_and_deviation():
    torch.manual_seed(0)
    samples = Gaussian(MEAN.expand(40_000, 2, 2), LOG_STD).sample()
    torch.testing.assert_close(samples.mean(0), MEAN, atol=0.03, rtol=0)
    torch.testing.assert_close(samples.std(0), LOG_STD.exp().expand(2, 2), atol=0.03, rtol=0)


def squashed() -> td.Distribution:
    normal = td.Normal(MEAN, LOG_STD.exp().expand(2, 2))
    return td.Independent(td.TransformedDistribution(normal, [td.TanhTransform()]), 1)


def test_squashed_gaussian_is_torchs():
    ours = TanhGaussian(MEAN, LOG_STD.expand(2, 2))
    value = torch.tensor([[0.1, -0.9], [0.99, 0.0]])
    torch.testing.assert_close(ours.log_prob(value), squashed().log_prob(value))
    assert ours.mode().equal(MEAN.tanh())


def test_a_squashed_sample_comes_with_its_own_log_probability():
    torch.manual_seed(0)
    ours = TanhGaussian(MEAN, LOG_STD.expand(2, 2))
    value, log_prob = ours.sample_with_log_prob()
    torch.testing.assert_close(log_prob, squashed().log_prob(value), atol=1e-4, rtol=1e-4)


def test_the_far_tail_stays_finite():
    ours = TanhGaussian(torch.full((1, 1), 40.0), torch.zeros(1, 1))
    value, log_prob = ours.sample_with_log_prob()
    assert value.isfinite().all()
    assert log_prob.isfinite().all()
    assert ours.log_prob(torch.ones(1, 1)).isfinite().all()


def test_gradients_flow_through_a_squashed_sample():
    mean = MEAN.clone().requires_grad_()
    value, log_prob = TanhGaussian(mean, LOG_STD.expand(2, 2)).sample_with_log_prob()
    (value.sum() + log_prob.sum()).backward()
    assert mean.grad is not None
    assert mean.grad.abs().min() > 0
