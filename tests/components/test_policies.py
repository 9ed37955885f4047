"""Every policy: chunks of actions in, chunks of actions out, and its own loss."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from dreamlab.components import HOME
from dreamlab.components.policies.protocol import Policy, evaluating
from dreamlab.core.config import Part
from dreamlab.core.errors import ConfigError
from dreamlab.core.types import ArraySpec, Mode, Spec

BOX = ArraySpec((2,), low=-1.0, high=1.0)
OBS = {"state": ArraySpec((3,)), "task": ArraySpec((), "int64", classes=4)}


def make(kind: str, action: ArraySpec = BOX, **options) -> Policy:
    torch.manual_seed(0)
    return Part.load(kind, options, HOME, Policy).build(Spec(OBS, action))


def obs(rows: int, steps: int = 1):
    return {"state": torch.randn(rows, steps, 3), "task": torch.randint(0, 4, (rows, steps))}


SMALL = {
    "gaussian": {"hidden": (8,)},
    "diffusion": {"net": {"width": 16, "time_dim": 8}, "levels": 4},
    "flow": {"net": {"width": 16, "time_dim": 8}, "sample_steps": 3},
    "autoregressive": {"dim": 16, "heads": 2, "layers": 2, "bins": 9, "obs_dim": 8},
}


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("chunk", [(1, 1, 1), (2, 8, 4)])
def test_samples_are_chunks_within_the_bounds(kind, chunk):
    steps, horizon, execute = chunk
    policy = make(kind, **SMALL[kind], obs_steps=steps, horizon=horizon, execute=execute)
    assert (policy.obs_steps, policy.horizon, policy.execute) == chunk
    for mode in Mode:
        action = policy.sample(obs(5, steps), 3, mode=mode)
        assert action.shape == (5, 3, horizon, 2)
        assert action.abs().max() <= 1
    loss = policy.loss(obs(5, steps), action[:, 0])
    assert loss.shape == (5,)
    assert loss.isfinite().all()


@pytest.mark.parametrize("kind", SMALL)
def test_a_fixed_sample_draws_no_random_number(kind):
    policy, seen = make(kind, **SMALL[kind], horizon=4).eval(), obs(5)
    before = torch.get_rng_state()
    once, again = (policy.sample(seen, 2, mode=Mode.FIXED) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(once, again)


def test_chunks_that_end_before_they_are_executed_are_refused():
    with pytest.raises(ConfigError, match="execute=8 is more than the 7 actions"):
        make("gaussian", obs_steps=2, horizon=8, execute=8)


def test_a_policy_refuses_actions_of_another_kind():
    discrete = ArraySpec((), "int64", classes=3)
    with pytest.raises(ConfigError, match="_target_: categorical"):
        make("gaussian", discrete)
    with pytest.raises(ConfigError, match="use _target_: gaussian"):
        make("categorical")
    with pytest.raises(ConfigError, match=r"in \[0.0, 512.0\]"):
        make("gaussian", ArraySpec((2,), low=0.0, high=512.0))


# -- gaussian -------------------------------------------------------------------------------------


@pytest.mark.parametrize("squash", [True, False])
def test_a_gaussian_rates_actions_as_torch_does(squash):
    policy, seen = make("gaussian", hidden=(8,), squash=squash, horizon=2), obs(6)
    dist = policy.dist(seen)
    torch_dist = Normal(dist.mean, dist.log_std.exp())
    if squash:
        torch_dist = TransformedDistribution(torch_dist, TanhTransform())
    action = torch.rand(6, 2, 2) * 1.8 - 0.9
    expected = torch_dist.log_prob(action.flatten(1)).sum(-1)
    torch.testing.assert_close(policy.log_prob(seen, action), expected)
    torch.testing.assert_close(policy.loss(seen, action), -expected)


def test_actions_on_the_bounds_have_a_finite_loss():
    policy, seen = make("gaussian", hidden=(8,)), obs(4)
    loss = policy.loss(seen, torch.ones(4, 1, 2)).sum()
    grads = torch.autograd.grad(loss, list(policy.parameters()))
    assert loss.isfinite()
    assert all(g.isfinite().all() for g in grads)


def test_temperature_scales_the_deviation_of_samples():
    seen = {k: v.expand(1, *v.shape[1:]) for k, v in obs(1).items()}
    wide = make("gaussian", hidden=(8,), squash=False, temperature=0.5, log_std=(-3.0, -2.0))
    samples = wide.sample(seen, 20_000)[0, :, 0]
    expected = 0.5 * wide.dist(seen).log_std.exp()[0]
    torch.testing.assert_close(samples.std(0), expected, rtol=0.03, atol=0)


def test_gradients_flow_through_samples_of_a_gaussian():
    policy = make("gaussian", hidden=(8,))
    policy.sample(obs(4), 2).sum().backward()
    assert policy.head.weight.grad is not None
    assert policy.head.weight.grad.abs().sum() > 0


# -- autoregressive -------------------------------------------------------------------------------


def tokens_of(**options):
    policy = make("autoregressive", **SMALL["autoregressive"], **options).eval()
    return policy, policy.start(policy.features(obs(6)))


def test_tokens_one_by_one_have_the_logits_of_all_at_once():
    policy, start = tokens_of(horizon=3)
    tokens = torch.randint(0, 9, (6, 6))
    logits, given = [], iter(tokens.unbind(1))

    def choose(x):
        logits.append(x)
        return next(given)

    assert torch.equal(policy.decode(start, choose), tokens)
    torch.testing.assert_close(torch.stack(logits, 1), policy.logits(start, tokens))


def test_a_token_depends_on_those_before_it_alone():
    policy, start = tokens_of(horizon=3)
    tokens = torch.randint(0, 9, (6, 6))
    before = policy.logits(start, tokens)
    for i in range(6):
        changed = tokens.clone()
        changed[:, i] = (changed[:, i] + 1) % 9
        same = (policy.logits(start, changed) == before).flatten(2).all(-1).all(0)
        assert same.tolist() == [j <= i for j in range(6)]


def test_probabilities_of_all_chunks_add_up_to_one():
    policy, start = tokens_of()
    values = policy.values
    every = torch.stack(torch.meshgrid(values, values, indexing="ij"), -1).view(81, 1, 2)
    seen = {k: v[:1].expand(81, *v.shape[1:]) for k, v in obs(6).items()}
    assert policy.log_prob(seen, every).exp().sum().item() == pytest.approx(1, abs=1e-4)
    torch.testing.assert_close(policy.loss(seen, every), -policy.log_prob(seen, every))
    assert start.shape == (6, 16)


@pytest.mark.parametrize("grid", ["points", "centers"])
def test_values_of_the_grid_are_their_own_tokens(grid):
    policy, _ = tokens_of(grid=grid)
    values = policy.values
    assert values[-1].item() == pytest.approx(1.0 if grid == "points" else 8 / 9)
    pairs = torch.stack([values, values.flip(0)], -1)[:, None]
    assert torch.equal(policy.values[policy.tokens(pairs)], pairs[:, 0])
    near = policy.tokens(pairs + 0.4 * (values[1] - values[0]))
    assert torch.equal(near, policy.tokens(pairs))


def test_only_the_likeliest_values_are_sampled():
    policy, _ = tokens_of(top_k=2, temperature=5.0)
    logits = torch.randn(1, 9)
    drawn = {policy.draw(logits).item() for _ in range(200)}
    assert drawn == set(logits[0].topk(2).indices.tolist())


def test_temperature_divides_the_logits():
    policy, _ = tokens_of(temperature=0.5)
    logits = torch.zeros(20_000, 9)
    logits[:, 0] = 1.0
    share = (policy.draw(logits) == 0).float().mean().item()
    assert share == pytest.approx((2 * logits[0]).softmax(-1)[0].item(), abs=0.015)


# -- categorical ----------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [3, (3, 4)])
def test_discrete_chunks_are_class_numbers(classes):
    shape = () if isinstance(classes, int) else (len(classes),)
    policy = make("categorical", ArraySpec(shape, "int64", classes=classes), hidden=(8,), horizon=4)
    seen = obs(5)
    action = policy.sample(seen, 3)
    assert action.shape == (5, 3, 4, len(policy.classes))
    assert policy.shaped(action).shape == (5, 3, 4, *shape)
    assert torch.equal(policy.flat(policy.shaped(action)), action)
    parts = policy.logits(seen).split(policy.classes, -1)
    chosen = [p.log_softmax(-1).gather(-1, action[:, 0, :, i : i + 1]) for i, p in enumerate(parts)]
    torch.testing.assert_close(policy.loss(seen, action[:, 0]), -torch.cat(chosen, -1).sum((1, 2)))


def test_evaluation_takes_the_likeliest_class():
    policy = make("categorical", ArraySpec((), "int64", classes=3), hidden=(8,))
    seen = obs(5)
    best = policy.logits(seen)[:, 0].argmax(-1)
    assert torch.equal(policy.sample(seen, mode=Mode.EVAL)[:, 0, 0, 0], best)


def test_evaluating_switches_training_off_and_back():
    policy = make("gaussian", hidden=(8,))
    with evaluating(policy):
        assert not policy.net.training
    assert policy.net.training
