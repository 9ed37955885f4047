"""DreamerV2: KL balancing, straight-through choices, both kinds of actor, the slow critic."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from dreamlab.components.world_models.rssm import Latent
from dreamlab.components.world_models.rssm_planet import Choices, LayerNormCell
from dreamlab.core.config import load
from dreamlab.core.errors import ConfigError
from dreamlab.core.phase import Phase
from dreamlab.core.types import ArraySpec, Batch, Spec
from dreamlab.nn.truncated import TruncatedNormal
from dreamlab.workflows.dreamer_v2 import Dream, DreamerV2, DreamerV2Config

CONTINUOUS = ArraySpec((2,), low=-1.0, high=1.0)
DISCRETE = ArraySpec((), "int64", classes=3)
SEVERAL = ArraySpec((2,), "int64", classes=(3, 2))
STATE = {"state": ArraySpec((3,))}
IMAGE = {"image": ArraySpec((64, 64, 3), "uint8")}
PHASE = Phase("learn", ("collect", "update_agent"), duration_steps=1)


SMALL = load(
    DreamerV2Config,
    {
        "rssm": {"deter": 12, "hidden": 10, "stoch": 3, "classes": 4},
        "codec": {"depth": 2, "units": 8, "layers": 2},
        **{k: {"units": 8, "layers": 2} for k in ("reward", "cont", "actor", "critic")},
        "imagine": 4,
    },
    "",
)


def agent(action: ArraySpec = DISCRETE, obs: dict | None = None, **options) -> DreamerV2:
    torch.manual_seed(0)
    return DreamerV2(load(DreamerV2Config, options, "", SMALL), Spec(obs or STATE, action))


def batch_of(spec: Spec, b: int = 2, t: int = 5) -> Batch:
    torch.manual_seed(1)
    obs = {
        k: torch.randint(0, 256, (b, t, *s.shape), dtype=torch.uint8)
        if s.is_image
        else torch.randn(b, t, *s.shape)
        for k, s in spec.obs.items()
    }
    flags = torch.zeros(b, t, dtype=torch.bool)
    first = flags.clone()
    first[:, 0] = True
    action = torch.rand(b, t, 2) * 2 - 1
    if spec.action.is_discrete:
        action = torch.randint(0, 2, (b, t, *spec.action.shape))
    return Batch(obs, action, torch.randn(b, t), first, flags, flags.clone())


def states(n: int = 3) -> Latent:
    stoch = F.one_hot(torch.randint(0, 4, (n, 3)), 4).float().flatten(1)
    return Latent(torch.randn(n, 12), stoch)


def going_on(n: int = 3) -> torch.Tensor:
    return torch.zeros(n, dtype=torch.bool)


def weights(module: torch.nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in module.parameters()]


def same(module: torch.nn.Module, before: list[torch.Tensor]) -> bool:
    return all(torch.equal(p, q) for p, q in zip(module.parameters(), before, strict=True))


# -- the world model ------------------------------------------------------------------------------


def test_divergence_of_choices_by_hand():
    p = Choices(torch.tensor([[0.9, 0.1]]).log())
    q = Choices(torch.tensor([[0.5, 0.5]]).log())
    assert p.kl(q).item() == pytest.approx(0.9 * math.log(1.8) + 0.1 * math.log(0.2))


def test_balancing_moves_the_prior_four_times_as_much():
    dreamer = agent()
    post, prior = (torch.randn(2, 5, 12, requires_grad=True) for _ in range(2))
    dist = dreamer.model.rssm.dist
    plain = dist(post).kl(dist(prior)).mean()
    balanced = dreamer.balanced_kl(post, prior)
    assert balanced.item() == pytest.approx(plain.item(), rel=1e-5)
    of_post, of_prior = torch.autograd.grad(plain, [post, prior])
    to_post, to_prior = torch.autograd.grad(balanced, [post, prior])
    torch.testing.assert_close(to_post, 0.2 * of_post)
    torch.testing.assert_close(to_prior, 0.8 * of_prior)


def test_free_nats_are_counted_over_the_whole_batch():
    dreamer = agent(free_nats=100.0)
    post, prior = (torch.randn(2, 5, 12, requires_grad=True) for _ in range(2))
    loss = dreamer.balanced_kl(post, prior)
    assert loss.item() == pytest.approx(100.0)
    assert not any(g.any() for g in torch.autograd.grad(loss, [post, prior]))


def test_samples_pass_gradients_as_if_they_were_probabilities():
    logits = torch.randn(5, 3, 4, requires_grad=True)
    weight = torch.randn(5, 12)
    sample = Choices(logits).sample(torch.zeros(5, 3, 4))
    assert set(sample.detach().unique().tolist()) <= {0.0, 1.0}
    got = torch.autograd.grad((sample * weight).sum(), logits)[0]
    expected = torch.autograd.grad((logits.softmax(-1).flatten(-2) * weight).sum(), logits)[0]
    torch.testing.assert_close(got, expected)


def test_the_cell_normalises_its_gates():
    torch.manual_seed(0)
    cell = LayerNormCell(3, 4)
    x, h = torch.randn(2, 3), torch.randn(2, 4)
    parts = F.layer_norm(torch.cat([x, h], -1) @ cell.gates.weight.T, (12,), eps=1e-3)
    reset, cand, update = parts.chunk(3, -1)
    share = torch.sigmoid(update - 1)
    expected = share * torch.tanh(torch.sigmoid(reset) * cand) + (1 - share) * h
    torch.testing.assert_close(cell(x, h), expected)


def test_nothing_passes_the_start_of_an_episode():
    dreamer = agent()
    batch = batch_of(dreamer.spec)
    batch.is_first[:, 3] = True
    noise = dreamer.model.rssm.noise(5, 2, device="cpu")
    before = dreamer.model.follow(batch, noise).latent
    batch.obs["state"][:, :3] += 1
    batch.action[:, :3] = 2
    after = dreamer.model.follow(batch, noise).latent
    assert not torch.equal(before.deter[:, 2], after.deter[:, 2])
    assert torch.equal(before.feature[:, 3:], after.feature[:, 3:])


@pytest.mark.parametrize("action", [DISCRETE, SEVERAL, CONTINUOUS])
def test_a_report_follows_windows_as_learning_does(action):
    dreamer = agent(action)
    batch, noise = batch_of(dreamer.spec), dreamer.model.rssm.noise(5, 2, device="cpu")
    seq = dreamer.sequences(batch)
    seen = dreamer.model.observe(seq.obs, seq.action, seq.is_first, seq.start, noise)
    assert torch.equal(seen.latent.feature, dreamer.model.follow(batch, noise).latent.feature)


def test_an_action_at_the_start_of_an_episode_is_no_class_at_all():
    dreamer = agent()
    rssm, latent = dreamer.model.rssm, states(2)
    noise, tokens = rssm.noise(2, device="cpu"), torch.randn(2, dreamer.model.codec.token_dim)
    first = torch.ones(2, dtype=torch.bool)
    hot = dreamer.model.embed(torch.tensor([0, 2]))
    got = rssm.observe_step(latent, hot, tokens, first, noise)[0]
    zeros = rssm.initial(2, "cpu")
    expected = rssm.observe_step(zeros, torch.zeros(2, 3), tokens, ~first, noise)[0]
    assert torch.equal(got.feature, expected.feature)


def test_rewards_may_be_squashed():
    dreamer, plain = agent(squash_reward=True), agent()
    batch = batch_of(dreamer.spec)
    large = Batch(
        batch.obs, batch.action, batch.reward * 100, batch.is_first, batch.is_last,
        batch.is_terminal,
    )  # fmt: skip
    losses = [d.learn_model(large)[0]["loss/reward"].item() for d in (dreamer, plain)]
    assert losses[0] < 2
    assert losses[1] > 100


# -- dreams ---------------------------------------------------------------------------------------


def test_of_the_first_state_the_end_is_known_and_weights_come_one_later():
    dreamer = agent(gamma=0.9)
    ended = torch.tensor([True, False, False])
    dream = dreamer.dream(states(), ended)
    assert dream.discount[:, 0].tolist() == pytest.approx([0.0, 0.9, 0.9])
    assert (dream.weight[:, 0] == 1).all()
    assert (dream.weight[0, 1:] == 0).all()
    torch.testing.assert_close(dream.weight[1, 1:], torch.cumprod(dream.discount[1, :-1], 0))


def test_targets_begin_with_the_reward_of_their_own_state():
    dreamer = agent(returns={"lam": 0.0})
    dream = dreamer.dream(states(), going_on())
    expected = dream.reward[:, :-1] + dream.discount[:, :-1] * dream.value[:, 1:]
    torch.testing.assert_close(dream.target, expected)


@pytest.mark.parametrize("action", [DISCRETE, SEVERAL, CONTINUOUS])
def test_imagination_returns_what_environments_take(action):
    dreamer = agent(action)
    latent, actions = dreamer.imagine(4, states())
    assert latent.deter.shape == (3, 5, 12)
    assert actions.shape == (3, 5, *action.shape)
    assert actions.is_floating_point() != action.is_discrete


# -- actor and critic -----------------------------------------------------------------------------


def hand_dream(action: torch.Tensor) -> Dream:
    """Return a dream of 3 steps whose numbers are chosen."""
    feature = torch.randn(1, 4, 24)
    value = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    target = torch.tensor([[5.0, 7.0, 9.0]])
    weight = torch.tensor([[1.0, 0.5, 0.25, 0.1]])
    return Dream(feature, action, value, value, weight, value, target)


def test_scores_of_actions_are_weighted_by_what_follows_them():
    dreamer = agent(entropy=0.01)
    dream = hand_dream(torch.tensor([[0, 2, 1, 1]]))
    dist = dreamer.actor(dream.feature[:, :2])
    logp = dist.logits.log_softmax(-1)
    score = torch.stack([logp[0, 0, 0], logp[0, 1, 2]])
    gain = score * torch.tensor([7.0 - 1.0, 9.0 - 2.0]) + 0.01 * dist.entropy()[0]
    expected = -(torch.tensor([1.0, 0.5]) * gain).mean()
    torch.testing.assert_close(dreamer.actor_loss(dream)[0], expected)


def test_through_the_dream_the_later_targets_themselves_are_the_gain():
    dreamer = agent(CONTINUOUS, entropy=0.0)
    loss, _ = dreamer.actor_loss(hand_dream(torch.zeros(1, 4, 2)))
    assert loss.item() == -(1.0 * 7 + 0.5 * 9) / 2


def test_both_are_mixed():
    dreamer = agent(entropy=0.0, actor_grad="both", actor_mix=0.25)
    hot = F.one_hot(torch.tensor([[0, 2, 1, 1]]), 3).float()
    dream = hand_dream(hot)
    logp = dreamer.actor(dream.feature[:, :2]).logits.log_softmax(-1)
    score = torch.stack([logp[0, 0, 0] * 6, logp[0, 1, 2] * 7])
    gain = 0.25 * torch.tensor([7.0, 9.0]) + 0.75 * score
    expected = -(torch.tensor([1.0, 0.5]) * gain).mean()
    torch.testing.assert_close(dreamer.actor_loss(dream)[0], expected)


def test_the_critics_loss_by_hand(monkeypatch):
    dreamer = agent()
    monkeypatch.setattr(dreamer.critic, "forward", lambda feature: torch.tensor([[4.0, 5.0, 9.0]]))
    loss = dreamer.critic_loss(hand_dream(torch.zeros(1, 4)))
    assert loss.item() == pytest.approx((0.5 * 1 + 0.5 * 0.5 * 4) / 3)


@pytest.mark.parametrize("grad", ["dynamics", "both"])
@pytest.mark.parametrize("action", [DISCRETE, SEVERAL, CONTINUOUS])
def test_gradients_flow_through_the_dream_where_asked_to(action, grad):
    dreamer = agent(action, actor_grad=grad)
    dream = dreamer.dream(states(), going_on())
    found = torch.autograd.grad(dream.target.sum(), list(dreamer.actor.parameters()))
    assert all(g.abs().sum() > 0 for g in found)
    assert torch.isfinite(dreamer.actor_loss(dream)[0])


def test_scores_need_no_gradient_of_the_dream():
    dream = agent().dream(states(), going_on())
    assert not dream.feature.requires_grad
    assert not dream.target.requires_grad


@pytest.mark.parametrize("grad", ["reinforce", "dynamics", "both"])
@pytest.mark.parametrize("action", [DISCRETE, CONTINUOUS])
def test_learning_behaviour_leaves_the_world_model_alone(action, grad):
    dreamer = agent(action, actor_grad=grad)
    parts = (dreamer.model, dreamer.actor, dreamer.critic)
    model, actor, critic = (weights(m) for m in parts)
    metrics = dreamer.learn_actor_critic(states(), going_on())
    assert all(torch.isfinite(v) for v in metrics.values())
    assert same(dreamer.model, model)
    assert not same(dreamer.actor, actor)
    assert not same(dreamer.critic, critic)


def test_the_slow_critic_is_copied_every_few_updates():
    dreamer = agent(slow_every=3)
    batch, copied = batch_of(dreamer.spec), []
    for _ in range(7):
        dreamer.update_agent(batch, phase=PHASE)
        copied.append(same(dreamer.slow, weights(dreamer.critic)))
    assert copied == [True, False, False, True, False, False, True]


@pytest.mark.parametrize("action", [DISCRETE, SEVERAL, CONTINUOUS])
def test_images_and_vectors_are_learnt_together(action):
    dreamer = agent(action, STATE | IMAGE)
    before = {k: v.clone() for k, v in dreamer.named_parameters() if v.requires_grad}
    metrics = dreamer.update_agent(batch_of(dreamer.spec), phase=PHASE)
    assert {"loss/obs/image", "loss/obs/state", "loss/cont"} <= {*metrics}
    assert all(torch.isfinite(v) for v in metrics.values())
    after = dict(dreamer.named_parameters())
    assert not [k for k, v in before.items() if torch.equal(after[k], v)]


def test_actions_out_of_range_are_refused_with_advice():
    with pytest.raises(ConfigError, match="scale_actions"):
        agent(ArraySpec((2,), low=-2.0, high=2.0))


# -- networks of their own ------------------------------------------------------------------------


def test_actor_and_critic_have_layers_of_their_own():
    dreamer = agent(
        actor={"units": 5, "layers": 1, "act": "tanh"}, critic={"units": 7, "layers": 3}
    )
    assert [len(net) for net in (dreamer.actor.net, dreamer.critic.net)] == [1, 3]
    assert [net.out_dim for net in (dreamer.actor.net, dreamer.critic.net)] == [5, 7]
    metrics = dreamer.update_agent(batch_of(dreamer.spec), phase=PHASE)
    assert all(torch.isfinite(v) for v in metrics.values())


def test_values_may_be_predicted_by_another_head():
    dreamer = agent(critic={"_target_": "two_hot", "units": 8, "layers": 1, "num_bins": 15})
    before = weights(dreamer.critic)
    for _ in range(2):  # at first its last layer is zero, so those before it stand still
        metrics = dreamer.update_agent(batch_of(dreamer.spec), phase=PHASE)
        assert all(torch.isfinite(v) for v in metrics.values())
    moved = [
        not torch.equal(p, q) for p, q in zip(dreamer.critic.parameters(), before, strict=True)
    ]
    assert all(moved)


def test_returns_come_from_the_estimator_that_was_chosen():
    start, going = states(), torch.zeros(3, dtype=torch.bool)
    dreams = []
    for returns in ({"lam": 0.0}, {"_target_": "n_step", "n": 1}, {"_target_": "monte_carlo"}):
        dreamer = agent(returns=returns)
        torch.manual_seed(5)
        dreams.append(dreamer.dream(start, going).target)
    torch.testing.assert_close(dreams[0], dreams[1])
    assert not torch.allclose(dreams[0], dreams[2])


# -- the truncated normal -------------------------------------------------------------------------

GRID = torch.linspace(-1, 1, 20_001)[:, None]


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.1), (0.9, 0.3), (-0.99, 0.1)])
def test_density_and_entropy_agree_with_a_sum_over_a_grid(mean, std):
    dist = TruncatedNormal(torch.tensor([mean]), torch.tensor([std]))
    logp = dist.log_prob(GRID)
    assert torch.trapezoid(logp.exp(), GRID[:, 0]).item() == pytest.approx(1.0, abs=1e-3)
    entropy = -torch.trapezoid(logp.exp() * logp, GRID[:, 0])
    assert dist.entropy().item() == pytest.approx(entropy.item(), abs=1e-3)


def test_samples_have_the_right_mean_and_stay_inside():
    torch.manual_seed(0)
    dist = TruncatedNormal(torch.full((50_000, 1), 0.7), torch.full((50_000, 1), 0.5))
    sample = dist.sample()
    assert sample.abs().max() < 1
    weight = TruncatedNormal(torch.tensor([0.7]), torch.tensor([0.5])).log_prob(GRID).exp()
    mean = torch.trapezoid(weight * GRID[:, 0], GRID[:, 0])
    assert sample.mean().item() == pytest.approx(mean.item(), abs=0.01)


def test_gradients_flow_through_samples():
    mean = torch.zeros(1000, 1, requires_grad=True)
    std = torch.full((1000, 1), 0.5, requires_grad=True)
    sample = TruncatedNormal(mean, std).sample()
    of_mean, of_std = torch.autograd.grad(sample.sum(), [mean, std])
    assert of_mean.isfinite().all()
    assert of_std.isfinite().all()
    assert 0.5 < of_mean.mean().item() < 1  # the cut holds back what lies near it
