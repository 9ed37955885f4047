"""DreamerV1: which reward a return counts, where gradients flow, and how it acts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dreamlab.components.world_models.rssm import Latent
from dreamlab.core.config import load
from dreamlab.core.errors import ConfigError
from dreamlab.core.optim import optimizer_part
from dreamlab.core.phase import Phase
from dreamlab.core.types import ArraySpec, Batch, Mode, Spec, Step
from dreamlab.ops.estimators import LambdaReturn, LambdaReturnConfig
from dreamlab.ops.returns_planet import own_rewards
from dreamlab.workflows.dreamer_v1 import Dream, DreamerV1, DreamerV1Config

ACTION = ArraySpec((2,), low=-1.0, high=1.0)
VECTOR = Spec({"state": ArraySpec((3,))}, ACTION)
MIXED = Spec({"image": ArraySpec((64, 64, 3), "uint8"), "state": ArraySpec((3,))}, ACTION)
PHASE = Phase("learn", ("collect", "update_agent"), duration_steps=1)


SMALL = load(
    DreamerV1Config,
    {
        "rssm": {"deter": 12, "hidden": 10, "stoch": 5},
        "codec": {"depth": 2, "units": 8},
        **{k: {"units": 8} for k in ("reward", "cont", "critic")},
        "actor": {"units": 8, "layers": 2},
        "imagine": 4,
        "free_nats": 0.0,
    },
    "",
)


def agent(spec: Spec = VECTOR, **options) -> DreamerV1:
    torch.manual_seed(0)
    return DreamerV1(load(DreamerV1Config, options, "", SMALL), spec)


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
    return Batch(obs, action, torch.randn(b, t), first, flags, flags.clone())


def states(n: int = 3) -> Latent:
    return Latent(torch.randn(n, 12), torch.randn(n, 5))


def weights(module: torch.nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in module.parameters()]


def same(module: torch.nn.Module, before: list[torch.Tensor]) -> bool:
    return all(torch.equal(p, q) for p, q in zip(module.parameters(), before, strict=True))


# -- returns --------------------------------------------------------------------------------------

REWARD = torch.tensor([[1.0, 2.0, 4.0, 99.0]])
VALUE = torch.tensor([[99.0, 10.0, 20.0, 30.0]])
HALF = torch.full((1, 4), 0.5)


def returns(reward, discount, value, lam: float) -> torch.Tensor:
    return LambdaReturn(LambdaReturnConfig(lam)).returns(own_rewards(reward, discount, value))


def test_a_return_begins_with_the_reward_of_its_own_state():
    ret = returns(REWARD, HALF, VALUE, 0.0)
    assert ret.tolist() == [[1 + 5, 2 + 10, 4 + 15]]  # r[i] + d[i] v[i + 1]


def test_a_full_trace_sums_rewards_up_to_the_last_value():
    ret = returns(REWARD, HALF, VALUE, 1.0)
    last = 4 + 0.5 * 30
    assert ret.tolist() == [[1 + 0.5 * (2 + 0.5 * last), 2 + 0.5 * last, last]]


def test_between_the_two_both_are_mixed():
    ret = returns(REWARD, HALF, VALUE, 0.5)
    second = 2 + 0.5 * (0.5 * 20 + 0.5 * 19)
    assert ret[0, 1].item() == second
    assert ret[0, 0].item() == 1 + 0.5 * (0.5 * 10 + 0.5 * second)


def test_a_state_after_which_nothing_follows_keeps_its_own_reward():
    discount = torch.tensor([[0.9, 0.0, 0.9, 0.9]])
    ret = returns(REWARD, discount, VALUE, 0.95)
    assert ret[0, 1].item() == 2


def test_dreams_leave_out_the_state_they_start_from():
    dreamer = agent()
    start = states()
    dream = dreamer.dream(start, torch.zeros(3, dtype=torch.bool))
    latent, action = dreamer.imagine(4, start)
    assert latent.deter.shape == (3, 5, 12)
    assert action.shape == (3, 5, 2)
    assert torch.equal(latent.deter[:, 0], start.deter)
    assert dream.feature.shape == (3, 4, 17)
    assert dream.ret.shape == dream.weight.shape == (3, 3)
    assert not (dream.feature[:, 0, :12] == start.deter).any()
    torch.testing.assert_close(dream.weight[0], torch.tensor([1.0, 0.99, 0.99**2]))


# -- losses ---------------------------------------------------------------------------------------


def test_free_nats_are_counted_over_the_whole_batch():
    dreamer = agent(free_nats=3.0, rssm={"stoch": 1})
    raw = math.log(math.expm1(0.9))  # softplus(raw) + 0.1 = 1
    prior = torch.tensor([[[0.0, raw], [0.0, raw]]])
    high = torch.tensor([[[4.0, raw], [2.0, raw]]])  # 8 and 2 nats: 5 on average
    low = torch.tensor([[[2.0, raw], [1.0, raw]]])
    assert dreamer.free_kl(high, prior).item() == pytest.approx(5.0)
    assert dreamer.free_kl(low, prior).item() == 3.0


def test_losses_of_actor_and_critic_by_hand(monkeypatch):
    dreamer = agent()
    monkeypatch.setattr(dreamer.critic, "forward", lambda feature: torch.tensor([[1.0, 5.0]]))
    ret, weight = torch.tensor([[3.0, 6.0]]), torch.tensor([[1.0, 0.5]])
    dream = Dream(torch.zeros(1, 3, 17), torch.zeros(1, 3), torch.zeros(1, 3), weight, ret)
    assert dreamer.actor_loss(dream).item() == -(3 + 0.5 * 6) / 2
    assert dreamer.critic_loss(dream).item() == (0.5 * 2**2 + 0.5 * 0.5 * 1**2) / 2


def test_the_gradient_of_returns_reaches_the_actor_through_the_dream():
    dreamer = agent()
    dream = dreamer.dream(states(), torch.zeros(3, dtype=torch.bool))
    grads = torch.autograd.grad(dreamer.actor_loss(dream), list(dreamer.actor.parameters()))
    assert all(g.abs().sum() > 0 for g in grads)


def test_the_actors_step_moves_the_actor_alone():
    dreamer = agent()
    model, critic, actor = (weights(m) for m in (dreamer.model, dreamer.critic, dreamer.actor))
    dream = dreamer.dream(states(), torch.zeros(3, dtype=torch.bool))
    dreamer.optimizers["actor"].step(dreamer.actor_loss(dream))
    assert same(dreamer.model, model)
    assert same(dreamer.critic, critic)
    assert not same(dreamer.actor, actor)


def test_the_world_model_learns_the_same_whatever_the_actor_wants():
    slow, fast = (optimizer_part("adam", lr=lr) for lr in (1e-3, 1.0))
    first = agent(actor_optimizer=slow)
    second = agent(actor_optimizer=fast, critic_optimizer=fast)
    for dreamer in (first, second):
        torch.manual_seed(3)
        dreamer.update_agent(batch_of(VECTOR), phase=PHASE)
    assert same(first.model, weights(second.model))


def test_nothing_is_learnt_from_a_dream_that_starts_after_the_end():
    dreamer = agent(cont_scale=10.0)
    ended = torch.tensor([False, True, False])
    weight = dreamer.dream(states(), ended).weight
    assert (weight[1] == 0).all()
    assert (weight[0, 0], weight[2, 0]) == (1, 1)


def test_continuation_is_learnt_with_the_discount_in_it():
    dreamer = agent(cont_scale=10.0)
    batch = batch_of(VECTOR)
    batch.is_terminal[0, -1] = True
    seen = dreamer.model.follow(batch)
    logit = dreamer.model.cont(seen.latent.feature)
    chance = torch.sigmoid(logit)
    loss = dreamer.losses(seen, batch)["cont"]
    expected = -0.99 * chance.log() - 0.01 * (1 - chance).log()
    torch.testing.assert_close(loss[1], expected[1])
    torch.testing.assert_close(loss[0, -1], -(1 - chance[0, -1]).log())


@pytest.mark.parametrize("cont_scale", [0.0, 10.0])
def test_images_and_vectors_are_learnt_together(cont_scale):
    dreamer, batch = agent(MIXED, cont_scale=cont_scale), batch_of(MIXED)
    before = {k: v.clone() for k, v in dreamer.named_parameters()}
    metrics = dreamer.update_agent(batch, phase=PHASE)
    assert all(torch.isfinite(v) for v in metrics.values())
    assert ("loss/cont" in metrics) == (cont_scale > 0)
    assert not [k for k, v in dreamer.named_parameters() if torch.equal(v, before[k])]


def test_dreams_may_start_from_the_last_states_only(monkeypatch):
    dreamer, found = agent(imagine_last=2), []
    inner = dreamer.dream
    monkeypatch.setattr(dreamer, "dream", lambda s, e: found.append(len(s.deter)) or inner(s, e))
    dreamer.update_agent(batch_of(VECTOR), phase=PHASE)
    assert found == [2 * 2]


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
        dreams.append(dreamer.dream(start, going).ret)
    torch.testing.assert_close(dreams[0], dreams[1])
    assert not torch.allclose(dreams[0], dreams[2])


# -- acting ---------------------------------------------------------------------------------------


def test_the_policy_starts_wide():
    dist = agent().actor(torch.zeros(1, 17))
    assert dist.log_std.exp()[0, 0].item() == pytest.approx(5.0, abs=0.01)


def test_evaluation_takes_the_likeliest_sample():
    dreamer = agent(actor={"mode_samples": 2000, "init_std": 0.05})
    dist = dreamer.actor(torch.randn(6, 17))
    best = dreamer.actor.likeliest(dist)
    assert best.shape == (6, 2)
    torch.testing.assert_close(best, dist.mode(), atol=0.05, rtol=0)


def test_training_explores_and_stays_in_range(monkeypatch):
    dreamer, n = agent(actor={"init_std": 1e-3}), 400
    rssm = dreamer.model.rssm  # all environments in the same state
    monkeypatch.setattr(rssm, "noise", lambda *shape, **_: torch.zeros(*shape, 5))
    flags = np.zeros(n, bool)
    obs = {"state": np.zeros((n, 3), np.float32)}
    step, state = Step(obs, np.zeros(n, np.float32), flags, flags, flags), dreamer.initial_state(n)
    spread = {m: dreamer.act(step, state, m).action.std(0).max().item() for m in Mode}
    assert spread[Mode.TRAIN] == pytest.approx(0.3, rel=0.1)
    assert spread[Mode.EVAL] < 0.01
    assert dreamer.act(step, state, Mode.TRAIN).action.abs().max() <= 1


def test_discrete_actions_are_refused_with_advice():
    with pytest.raises(ConfigError, match=r"discrete.*DreamerV2"):
        agent(Spec(VECTOR.obs, ArraySpec((), "int64", classes=3)))
