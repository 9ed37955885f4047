"""TD-MPC2: its layers, sizes, targets and losses, and the search it acts by."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.workflows.tdmpc_by_hand import act, cross_entropy, decoded, joined, objective, over_time
from torch.nn import functional as F

from dreamlab.accel.bf16_weights import Bf16Weights
from dreamlab.accel.cuda_graphs import lay_out
from dreamlab.accel.first_update import compare_with_reference, move_off_zero, undone
from dreamlab.components.latent_planning import draw_noise
from dreamlab.components.tdmpc2_options import DiscountConfig
from dreamlab.components.world_models.latent_encoder import PAD, moved
from dreamlab.components.world_models.latent_mlp import TaskLatent
from dreamlab.core.config import load
from dreamlab.core.errors import ConfigError, LabError
from dreamlab.core.phase import Phase
from dreamlab.core.types import ArraySpec, Batch, Mode, Spec, TaskSpec
from dreamlab.nn.normed import EnsembleNormedMLP, NormedMLP, SimNorm
from dreamlab.ops.even_bins import EvenBins
from dreamlab.ops.planning import shifted
from dreamlab.ops.scaling import update_spread
from dreamlab.workflows.tdmpc2 import TDMPC2, TDMPC2Config

ACTION = ArraySpec((2,), low=-1.0, high=1.0)
VECTOR = Spec({"b": ArraySpec((3,)), "a": ArraySpec(())}, ACTION, episode_length=500)
IMAGE = Spec({"image": ArraySpec((64, 64, 9), "uint8")}, ACTION, episode_length=100)
TASKS = Spec(
    {"state": ArraySpec((4,)), "task": ArraySpec((), "int64", classes=3)},
    ACTION,
    tasks=(TaskSpec("x", 2, 500), TaskSpec("y", 1, 100), TaskSpec("z", 2, 1000)),
)
PHASE = Phase("learn", ("collect", "update_agent"), duration_steps=1)
SMALL = load(TDMPC2Config, {**TDMPC2.tiny, "gamma": None}, "")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def agent(spec: Spec = VECTOR, **options) -> TDMPC2:
    torch.manual_seed(0)
    made = TDMPC2(load(TDMPC2Config, options, "", SMALL), spec)
    with torch.no_grad():  # nothing at zero that would hide an error
        for p in made.parameters():
            p.add_(0.1 * torch.randn_like(p))
    made.target.load_state_dict(made.critics.state_dict())
    return made


def obs_of(spec: Spec, *lead: int) -> dict[str, torch.Tensor]:
    out = {}
    for name, s in spec.obs.items():
        if s.is_image:
            out[name] = torch.randint(0, 256, (*lead, *s.shape), dtype=torch.uint8)
        elif isinstance(s.classes, int):
            out[name] = torch.randint(0, s.classes, lead)
        else:
            out[name] = torch.randn(*lead, *s.shape)
    return out


def batch_of(spec: Spec, b: int = 5, t: int = 4) -> Batch:
    torch.manual_seed(1)
    obs, no = obs_of(spec, b, t), torch.zeros(b, t, dtype=torch.bool)
    if spec.tasks:
        obs["task"] = obs["task"][:, :1].expand(b, t)
    action, reward = torch.rand(b, t, 2) * 2 - 1, torch.randn(b, t)
    ends = no.clone()
    ends[0, -1] = True
    return Batch(obs, action, reward, no, ends, ends)


# -- layers ---------------------------------------------------------------------------------------


def test_groups_of_a_latent_are_simplices():
    z = SimNorm(4)(torch.randn(3, 12) * 5)
    assert torch.allclose(z.view(3, 3, 4).sum(-1), torch.ones(3, 3))
    assert (z >= 0).all()


def test_members_of_an_ensemble_are_what_single_networks_are():
    torch.manual_seed(0)
    net, x = EnsembleNormedMLP(3, [4, 8, 8], 5, dropout=0.5), torch.randn(2, 6, 4)
    for p in net.parameters():
        torch.nn.init.normal_(p)
    found = net(x)
    for i in range(3):
        y = x
        for k, layer in enumerate(net.linears):
            y = y @ layer.weight[i] + layer.bias[i, 0]
            if k < 2:
                norm = net.norms[k]
                scale, shift = norm.scale.view(3, -1)[i], norm.shift.view(3, -1)[i]
                y = F.mish(F.layer_norm(y, (8,), scale, shift))
        assert torch.allclose(found[i], y, atol=1e-5)
    pair = torch.tensor([2, 0])
    assert torch.equal(net(x, pair), found[pair])


def test_dropout_is_before_the_norm_and_differs_between_members():
    torch.manual_seed(0)
    net, x = EnsembleNormedMLP(2, [4, 64, 8], 5, dropout=0.5), torch.randn(1, 4)
    seen = []
    plain = F.layer_norm

    def spy(y, *rest, **more):
        seen.append(y)
        return plain(y, *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "layer_norm", spy)
        net(x, drop=True)
    first, second = seen
    assert (first == 0).any()
    assert not torch.equal(first[0] == 0, first[1] == 0)
    assert not (second == 0).any()


def test_nothing_learns_where_it_is_not_asked_to():
    net, x = EnsembleNormedMLP(2, [4, 8], 5, 0.0), torch.randn(3, 4, requires_grad=True)
    torch.nn.init.normal_(net.linears[-1].weight)
    net(x, learn=False).sum().backward()
    assert x.grad is not None
    assert all(p.grad is None for p in net.parameters())


def test_bins_hold_numbers_of_any_size():
    bins = EvenBins()
    x = torch.tensor([-2e4, -30.0, -1.0, -1e-3, 0.0, 0.5, 7.0, 2e4])
    soft = bins.two_hot(x)
    assert torch.allclose(soft.sum(-1), torch.ones(8))
    assert torch.allclose(bins.decode(soft.clamp(min=1e-30).log(), bins.tensor()), x, rtol=1e-4)
    assert float(bins.two_hot(torch.tensor([1e9]))[0, -1]) == 1.0
    logits = torch.randn(8, 101)
    expected = -(soft * torch.log_softmax(logits, -1)).sum(-1)
    assert torch.allclose(bins.loss(logits, x), expected, atol=1e-5)


def test_a_number_is_symexp_of_the_mean_not_the_mean_of_symexp():
    bins = EvenBins(num=3, low=-2.0, high=2.0)
    logits = torch.tensor([[0.0, 0.5, 0.5]]).clamp(min=1e-30).log()
    assert float(bins.decode(logits, bins.tensor())) == pytest.approx(math.e - 1)


def test_what_is_not_learnt_yet_is_exactly_zero():
    fresh = TDMPC2(SMALL, VECTOR)
    obs = obs_of(VECTOR, 4)
    assert torch.equal(fresh.expected_return(obs)[0], torch.zeros(4))
    latent = fresh.model.advance(fresh.model.initial(4, "cpu"), torch.zeros(4, 2))
    assert torch.equal(latent.reward, torch.zeros(4))


def test_the_range_of_values_is_followed_from_one_and_never_below():
    spread, marks = torch.ones(()), torch.tensor([0.05, 0.95])
    x = torch.randn(256)
    assert float(update_spread(x * 0.01, marks, spread, 0.5)) == 1.0
    low, high = np.percentile(x.numpy() * 100, [5, 95])
    found = update_spread(x * 100, marks, spread, 0.5)
    assert float(found) == pytest.approx(0.5 + 0.5 * (high - low), rel=1e-5)
    assert float(spread) == float(found)


def test_images_move_by_whole_pixels_and_their_edges_are_repeated():
    image = torch.randint(0, 256, (2, 10, 12, 3), dtype=torch.uint8)
    assert torch.equal(moved(image, torch.full((2, 2), PAD)), image)
    there = moved(image, torch.tensor([[PAD + 2, PAD], [PAD, 0]]))
    assert torch.equal(there[0, :8], image[0, 2:])
    assert torch.equal(there[0, 8], image[0, 9])
    assert torch.equal(there[1, :, 3:], image[1, :, :9])
    assert torch.equal(there[1, :, 0], image[1, :, 0])


# -- sizes ----------------------------------------------------------------------------------------

WALKER = Spec({"state": ArraySpec((24,))}, ArraySpec((6,), low=-1.0, high=1.0), episode_length=500)
MANY = {name: Spec(
    {"state": ArraySpec((obs,)), "task": ArraySpec((), "int64", classes=tasks)},
    WALKER.action, tasks=tuple(TaskSpec(str(i), 6, 100) for i in range(tasks)),
) for name, obs, tasks in (("mt80", 39, 80), ("mt30", 24, 30))}  # fmt: skip
COUNTS = [
    (WALKER, "1m", {}, 1.215e6), (WALKER, "5m", {}, 4_960_618), (WALKER, "19m", {}, 18.06e6),
    (WALKER, "48m", {}, 47.21e6), (WALKER, "317m", {}, 312.6e6),
    (MANY["mt80"], "1m", {}, 1.435e6), (MANY["mt80"], "5m", {}, 5.390e6),
    (MANY["mt80"], "19m", {}, 18.970e6), (MANY["mt80"], "48m", {}, 48.791e6),
    (MANY["mt80"], "317m", {}, 317_383_129),
    (MANY["mt30"], "1m", {}, 1.426e6), (MANY["mt30"], "5m", {"task_dim": 64}, 5.241e6),
    (MANY["mt30"], "19m", {"task_dim": 64, "latent_dim": 512}, 16.031e6),
    (MANY["mt30"], "48m", {"task_dim": 64}, 48.242e6), (MANY["mt30"], "317m", {}, 317.317e6),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "size", "more", "wanted"), COUNTS)
def test_sizes_have_the_originals_parameters(spec, size, more, wanted):
    with torch.device("meta"):
        made = TDMPC2(load(TDMPC2Config, {"size": size, **more}, ""), spec)
    found = sum(p.numel() for p in made.parameters() if p.requires_grad)
    if isinstance(wanted, int):
        assert found == wanted
    else:  # the table has four digits
        assert found == pytest.approx(wanted, rel=5e-4)


def test_weights_begin_as_the_original_has_them():
    made = TDMPC2(load(TDMPC2Config, {"size": "1m"}, ""), WALKER)
    for net in (made.model.dynamics, made.critics):
        weights = [p for p in net.parameters() if p.ndim > 1 and p.any()]
        assert len(weights) == (3 if net is made.model.dynamics else 2)
        assert all(float(p.detach().std()) == pytest.approx(0.02, rel=0.05) for p in weights)
    assert not made.model.reward.out.weight.any()
    assert not made.critics.linears[-1].weight.any()
    assert isinstance(made.prior.net, NormedMLP)
    assert made.prior.net.out.weight.any()


# -- discount -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "gamma"), [(500, 0.99), (100, 0.95), (1000, 0.995), (20, 0.95)])
def test_the_discount_follows_from_the_length_of_episodes(length, gamma):
    assert DiscountConfig().of(length) == pytest.approx(gamma)
    made = agent(replace(VECTOR, episode_length=length))
    assert made.model.discounts.tolist() == pytest.approx([gamma])


def test_without_a_length_the_discount_must_be_given():
    with pytest.raises(ConfigError, match=r"workflow\.gamma.*env.time_limit"):
        agent(replace(VECTOR, episode_length=None))
    given = agent(replace(VECTOR, episode_length=None), gamma=0.9)
    assert given.model.discounts.tolist() == pytest.approx([0.9])


# -- an update ------------------------------------------------------------------------------------


def test_targets_take_the_smaller_of_two_critics_and_stop_at_the_end():
    a = agent()
    w = a.window(batch_of(VECTOR))
    noise, pair = torch.randn(3, 5, 2), torch.tensor([2, 0])
    next_z, target = a.td_target(w, noise, pair, None)
    z = a.model.encode({k: v[1:] for k, v in w.obs.items()}, w.task.expand(3, 5))
    assert torch.equal(next_z, z)
    values = a.target.values(torch.cat([z, a.prior.act(z, noise)], -1))
    expected = w.reward + 0.99 * (1 - w.terminal) * torch.minimum(values[2], values[0])
    assert torch.allclose(target, expected)
    assert float(target[-1, 0]) == pytest.approx(float(w.reward[-1, 0]))


def test_losses_are_those_of_the_original_step_by_step():
    a = agent(episodic=True, dropout=0.0)
    w = a.window(batch_of(VECTOR))
    next_z, target = torch.rand(3, 5, 16), torch.randn(3, 5)
    total, zs, metrics = a.model_loss(w, next_z, target, None)
    z = a.model.encode({k: v[0] for k, v in w.obs.items()}, w.task)
    consistency = reward = value = 0.0
    for t in range(3):
        x = torch.cat([z, w.action[t]], -1)
        logits = a.model.reward(x)
        reward += 0.5**t * a.config.bins.loss(logits, w.reward[t]).mean() / 3
        for head in a.critics(x):
            value += 0.5**t * a.config.bins.loss(head, target[t]).mean() / 9
        z = a.model.dynamics(x)
        consistency += 0.5**t * F.mse_loss(z, next_z[t]) / 3
    ends = F.binary_cross_entropy_with_logits(a.model.ends(zs[1:], w.task), w.terminal)
    for name, wanted in {"consistency": consistency, "reward": reward, "value": value}.items():
        assert torch.allclose(metrics[f"loss/{name}"], wanted, rtol=1e-4), name
    assert torch.allclose(total, 20 * consistency + 0.1 * (reward + value) + ends, rtol=1e-4)


def test_the_policys_loss_moves_the_policy_alone():
    a = agent()
    w = a.window(batch_of(VECTOR))
    loss, _ = a.policy_loss(torch.rand(4, 5, 16), w, torch.randn(4, 5, 2), torch.tensor([0, 1]))
    loss.backward()
    assert all(p.grad is not None for p in a.prior.parameters())
    assert all(p.grad is None for m in (a.model, a.critics, a.target) for p in m.parameters())


def test_the_encoder_learns_at_three_tenths_of_the_rate():
    a = agent()
    rates = {g.scale: len(g.index) for g in a.opt.inner.groups}
    assert rates[0.3] == len(list(a.model.encoder.parameters()))
    assert a.policy_opt.config.eps == 1e-5


def apart(a: TDMPC2, width: float = 3.0) -> TDMPC2:
    """Let critics, targets and rewards say different things, further apart with `width`."""
    with torch.no_grad():
        for net in (a.critics.linears[-1], a.target.linears[-1], a.model.reward.out):
            net.weight.copy_(width * torch.randn_like(net.weight))
    return a


@pytest.mark.parametrize("spec", [VECTOR, TASKS], ids=["vector", "tasks"])
@pytest.mark.parametrize("width", [0.1, 3.0], ids=["floor", "range"])
@pytest.mark.parametrize("entropy", [None, 0.3])
def test_the_policys_loss_is_that_of_the_formula(spec, width, entropy):
    """Mean over H + 1 states of rho^t (-q / S + 1e-4 A log pi), q the mean of two critics."""
    options = {} if entropy is None else {"entropy": entropy}
    a = apart(agent(spec, dropout=0.0, **options), width)
    a.value_scale.fill_(3.0)
    w = a.window(batch_of(spec))
    zs, noise = torch.rand(4, 5, 16), torch.randn(4, 5, 2)
    found, metrics = a.policy_loss(zs, w, noise, torch.tensor([2, 0]))
    by_hand = objective(a, a.critics, zs, w.task, noise, [2, 0], 3.0)
    coef = 1e-4 if entropy is None else entropy
    wanted = over_time(-by_hand.q / by_hand.scale + coef * by_hand.log_prob)
    assert (by_hand.scale > 3.0) == (width > 1)  # else the range is below its floor of 1
    assert float(a.value_scale) == pytest.approx(by_hand.scale, rel=1e-5)
    assert float(metrics["value_scale"]) == float(a.value_scale)
    assert found.item() == pytest.approx(wanted.item(), rel=2e-5)
    params = list(a.prior.parameters())
    ours, theirs = (torch.autograd.grad(loss, params) for loss in (found, wanted))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-5)


def test_the_models_loss_is_that_of_the_formula_and_goes_back_through_time():
    a = apart(agent(episodic=True, dropout=0.0))
    w = a.window(batch_of(VECTOR))
    next_z, target = torch.rand(3, 5, 16), 5 * torch.randn(3, 5)
    found, zs, metrics = a.model_loss(w, next_z, target, None)
    z = a.model.encoder({k: v[0] for k, v in w.obs.items()}, None)
    gap, reward, value, ends = [], [], [], []
    for t in range(3):
        x = torch.cat([z, w.action[t]], -1)
        reward.append(cross_entropy(a.model.reward(x), w.reward[t]))
        value.append(sum(cross_entropy(q, target[t]) for q in a.critics(x)) / 3)
        z = a.model.dynamics(x)
        gap.append((z - next_z[t]).pow(2).mean(-1))
        logit, over = a.model.termination(z)[:, 0].double(), w.terminal[t]
        ends.append(-over * logit.sigmoid().log() - (1 - over) * (-logit).sigmoid().log())
        torch.testing.assert_close(zs[t + 1], z)
    losses = {k: over_time(torch.stack(v)) for k, v in
              (("consistency", gap), ("reward", reward), ("value", value))}  # fmt: skip
    losses["termination"] = torch.stack(ends).mean()
    for name, wanted in losses.items():
        assert metrics[f"loss/{name}"].item() == pytest.approx(wanted.item(), rel=1e-4), name
    scales = {"consistency": 20, "reward": 0.1, "value": 0.1, "termination": 1}
    wanted = sum(scales[k] * v for k, v in losses.items())
    assert found.item() == pytest.approx(wanted.item(), rel=1e-4)
    params = [*a.model.parameters(), *a.critics.parameters()]
    ours, theirs = (torch.autograd.grad(loss, params) for loss in (found, wanted))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("spec", [VECTOR, TASKS], ids=["vector", "tasks"])
def test_targets_are_those_of_the_slow_critics(spec):
    a = apart(agent(spec))
    w = a.window(batch_of(spec))
    noise = torch.randn(3, 5, 2)
    next_z, target = a.td_target(w, noise, torch.tensor([1, 2]), None)
    obs = {k: v[1:] for k, v in w.obs.items()}
    known = a.model.tasks(w.task.expand(3, 5)) if spec.tasks else None
    torch.testing.assert_close(next_z, a.model.encoder(obs, known))
    action = act(a, next_z, w.task, noise).action.float()
    first, second = (decoded(q) for q in a.target(joined(a, w.task, next_z, action))[1:])
    gamma = torch.tensor([0.99, 0.95, 0.995])[w.task]
    wanted = w.reward + gamma * (1 - w.terminal) * torch.minimum(first, second)
    assert not torch.allclose(first, second)
    torch.testing.assert_close(target, wanted.float(), rtol=1e-4, atol=1e-4)


def certain(**options) -> TDMPC2:
    """Return an agent without chance: two critics, hardly any noise, no dropout."""
    a = apart(agent(num_q=2, dropout=0.0, entropy=0.0, **options), 1.0)
    with torch.no_grad():
        a.prior.net.out.bias[2:] = -100.0  # of the log-deviations
    return a


def stepped(net: torch.nn.Module, old: torch.nn.Module, loss: torch.Tensor, rate: float) -> None:
    """Check that Adam made its first step down this loss: its rate against each entry's sign."""
    grads = torch.autograd.grad(loss, list(old.parameters()), retain_graph=True)
    for now, was, grad in zip(net.parameters(), old.parameters(), grads, strict=True):
        known = grad.abs() > 1e-2  # beside epsilon and clipping
        wanted = -rate * grad.sign()[known]
        torch.testing.assert_close((now - was).detach()[known], wanted, rtol=0.05, atol=1e-6)


def test_an_update_learns_from_its_targets_then_the_policy_then_moves_the_slow_critics():
    a, old, batch = certain(), certain(), batch_of(VECTOR)
    metrics = a.update_agent(batch, phase=PHASE)
    w, still = old.window(batch), torch.zeros(4, 5, 2)
    next_z, target = old.td_target(w, still[:3], torch.tensor([0, 1]), None)
    loss, zs, _ = old.model_loss(w, next_z, target, None)
    assert metrics["loss"].item() == pytest.approx(loss.item(), rel=1e-3)
    # the policy is judged by critics that have made their step
    by_hand = objective(old, a.critics, zs.detach(), w.task, still, [0, 1], 1.0)
    before = objective(old, old.critics, zs.detach(), w.task, still, [0, 1], 1.0)
    wanted, other = (over_time(-x.q / x.scale) for x in (by_hand, before))
    assert metrics["loss/policy"].item() == pytest.approx(wanted.item(), rel=1e-4)
    assert wanted.item() != pytest.approx(other.item(), rel=1e-3)
    stepped(a.model.encoder, old.model.encoder, loss, 0.3 * 3e-4)
    stepped(a.model.dynamics, old.model.dynamics, loss, 3e-4)
    stepped(a.critics, old.critics, loss, 3e-4)
    stepped(a.prior, old.prior, wanted, 3e-4)
    slow = zip(a.target.parameters(), old.target.parameters(), a.critics.parameters(), strict=True)
    for now, was, online in slow:
        torch.testing.assert_close(now, 0.99 * was + 0.01 * online.detach())


@pytest.mark.parametrize("spec", [VECTOR, IMAGE, TASKS], ids=["vector", "image", "tasks"])
def test_updates_change_every_part_and_targets_follow(spec):
    options = {"latent_dim": 512} if spec is IMAGE else {}
    a = agent(spec, **options)
    before = {k: v.clone() for k, v in a.named_parameters()}
    for _ in range(2):
        metrics = a.update_agent(batch_of(spec), phase=PHASE)
    assert all(torch.isfinite(v) for v in metrics.values())
    assert not [k for k, v in a.named_parameters() if torch.equal(v, before[k])]


def test_a_first_fast_update_can_be_told_from_a_wrong_one():
    a = TDMPC2(load(TDMPC2Config, {"dropout": 0.0}, "", SMALL), VECTOR)
    batch = batch_of(VECTOR, b=32)
    with undone(a):
        move_off_zero(a)  # every member of an ensemble prefers the middle of its bins
        ends = a.critics.linears[-1].bias[:, 0]
        assert (ends[:, 0] == ends[:, -1]).all()
        assert (ends.amax(1) > ends[:, 0] + 20).all()
    compare_with_reference(a, torch.float32, lambda: a.update(batch), lambda: a.update(batch))

    def wrong() -> Any:
        return a.update(replace(batch, reward=-batch.reward))

    with pytest.raises(LabError, match="not that of the reference"):
        compare_with_reference(a, torch.float32, lambda: a.update(batch), wrong)


# -- acting ---------------------------------------------------------------------------------------


@torch.no_grad()
def test_plans_are_scored_by_their_rewards_and_the_value_of_where_they_end():
    a, plans = agent(), torch.rand(2, 6, 3, 2) * 2 - 1
    z = a.model.encode(obs_of(VECTOR, 2), torch.zeros(2, dtype=torch.long))
    task, last, pair = torch.zeros(2, dtype=torch.long), torch.randn(2, 6, 2), torch.tensor([1, 2])
    found = a.score_plans(z, task, plans, last, pair)
    for n in range(2):
        for k in range(6):
            state, total = z[n : n + 1], 0.0
            for t in range(3):
                x = torch.cat([state, plans[n, k, t][None]], -1)
                total += 0.99**t * a.model.decode(a.model.reward(x))
                state = a.model.dynamics(x)
            x = torch.cat([state, a.prior.act(state, last[n, k][None])], -1)
            total += 0.99**3 * a.critics.values(x)[1:3].mean(0)
            assert torch.allclose(found[n, k], total[0], rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_nothing_counts_after_a_step_that_ends_the_episode():
    a, plans = agent(episodic=True), torch.rand(1, 4, 3, 2)
    z, task = torch.rand(1, 16), torch.zeros(1, dtype=torch.long)
    args = (z, task, plans, torch.randn(1, 4, 2), torch.tensor([0, 1]))
    torch.nn.init.zeros_(a.model.termination.out.weight)
    torch.nn.init.constant_(a.model.termination.out.bias, 1.0)
    first = a.model.decode(
        a.model.reward(torch.cat([z[:, None].expand(1, 4, 16), plans[:, :, 0]], -1))
    )
    assert torch.allclose(a.score_plans(*args), first)
    torch.nn.init.constant_(a.model.termination.out.bias, -1.0)
    assert not torch.allclose(a.score_plans(*args), first)


def test_a_plan_begins_where_the_last_one_was_and_at_nothing_in_a_new_episode():
    a, starts = agent(), []
    plain = a.plan
    object.__setattr__(
        a, "plan", lambda z, task, mean, noise: starts.append(mean) or plain(z, task, mean, noise)
    )
    state = a.initial_state(2)
    state["mean"] = torch.rand(2, 3, 2)
    a.decide(obs_of(VECTOR, 2), torch.tensor([True, False]), state, Mode.EVAL)
    assert not starts[0][0].any()
    assert torch.equal(starts[0][1], shifted(state["mean"])[1])
    assert not starts[0][1, -1].any()


def test_environments_are_planned_for_in_one_batch_as_they_are_alone():
    a, obs = agent(), obs_of(VECTOR, 3)
    with torch.no_grad():
        together = a.decide(obs, torch.ones(3, dtype=torch.bool), a.initial_state(3), Mode.FIXED)
        for i in range(3):
            one = {k: v[i : i + 1] for k, v in obs.items()}
            alone = a.decide(one, torch.ones(1, dtype=torch.bool), a.initial_state(1), Mode.FIXED)
            assert torch.allclose(together.action[i], alone.action[0], atol=1e-5)


def test_training_adds_noise_and_evaluation_takes_an_elite():
    a, obs = agent(), obs_of(VECTOR, 3)
    first, state = torch.ones(3, dtype=torch.bool), a.initial_state(3)
    with torch.no_grad():
        z = a.model.encode(obs, a.model.task_of(obs))
        torch.manual_seed(5)
        noise = draw_noise(a.sizes, 3, torch.device("cpu"))
        plan = a.plan(z, a.model.task_of(obs), state["mean"], noise)
        torch.manual_seed(5)
        calm = a.decide(obs, first, state, Mode.EVAL)
        torch.manual_seed(5)
        noisy = a.decide(obs, first, state, Mode.TRAIN)
    elites = plan.elites[:, :, 0]
    assert (calm.action[:, None] == elites).all(-1).any(-1).all()
    expected = (calm.action + plan.std[:, 0] * noise.action).clamp(-1, 1)
    assert torch.allclose(noisy.action, expected)
    assert torch.equal(calm.state["mean"], plan.mean)


def test_without_planning_the_policy_acts():
    a, obs = agent(mpc=False), obs_of(VECTOR, 3)
    first, state = torch.ones(3, dtype=torch.bool), a.initial_state(3)
    mean, _ = a.prior(a.model.encode(obs, a.model.task_of(obs)))
    with torch.no_grad():
        assert torch.allclose(a.decide(obs, first, state, Mode.EVAL).action, mean.tanh())
        planner = agent()
        assert torch.allclose(planner.decide(obs, first, state, Mode.POLICY).action, mean.tanh())


def test_actions_of_many_entries_get_more_iterations():
    many = replace(VECTOR, action=ArraySpec((20,), low=-1.0, high=1.0))
    assert agent(many).planner.config.iterations == agent().planner.config.iterations + 2


def test_random_filling_does_not_plan():
    a = agent()
    object.__setattr__(a, "plan", lambda *_: pytest.fail("it planned"))
    step = type("S", (), {"is_first": np.ones(2, bool)})()
    decision = a.fill(step, a.initial_state(2))
    assert decision.action.shape == (2, 2)


def test_vectors_are_read_in_the_order_asked_for():
    a = agent(obs_order=("b",))
    assert list(a.model.encoder.obs) == ["b", "a"]
    with pytest.raises(ConfigError, match="obs_order"):
        agent(obs_order=("c",))


def test_images_give_latents_of_their_own_size():
    with pytest.raises(ConfigError, match=r"workflow\.latent_dim.*512"):
        agent(IMAGE)


# -- several tasks --------------------------------------------------------------------------------


@pytest.mark.parametrize("mpc", [True, False])
def test_a_task_has_its_own_discount_and_mask(mpc):
    a = agent(TASKS, mpc=mpc)
    assert a.model.discounts.tolist() == pytest.approx([0.99, 0.95, 0.995])
    obs = obs_of(TASKS, 3)
    obs["task"] = torch.tensor([0, 1, 2])
    for mode in (Mode.TRAIN, Mode.EVAL, Mode.POLICY, Mode.FIXED):
        with torch.no_grad():
            action = a.decide(obs, torch.ones(3, dtype=torch.bool), a.initial_state(3), mode).action
        assert action[1, 1] == 0
        assert action[0].all()
        assert action[2].all()


def test_dreams_of_a_task_are_discounted_as_that_task_is():
    a, batch = agent(TASKS, episodic=True), batch_of(TASKS, 2, 8)
    batch.obs["task"] = torch.tensor([1, 2])[:, None].expand(2, 8)  # 0.95 and 0.995
    batch.reward.fill_(1.0)
    batch.is_terminal.fill_(False)
    with torch.no_grad():
        for p in a.model.termination.parameters():
            p.zero_()
        a.model.termination.out.bias.fill_(-100.0)  # nothing ever ends
        latent, _ = a.model.imagine(a.model.initial(2, "cpu")._replace(task=torch.tensor([1, 2])),
                                    a.policy, 1)  # fmt: skip
        seen = a.view(TaskLatent(*(x[:, 1] for x in latent)))
    assert seen["cont"].tolist() == pytest.approx([1.0, 1.0])
    found = a.report(batch).metrics
    assert float(found["openloop/cont_bias"]) == pytest.approx(0.0, abs=1e-6)
    assert float(found["openloop/cont_brier"]) == pytest.approx(0.0, abs=1e-6)
    sums = [sum(gamma**i for i in range(4)) for gamma in (0.95, 0.995)]
    assert float(found["real_return"]) == pytest.approx(np.mean(sums), rel=1e-5)


def test_entries_that_a_task_does_not_have_are_not_learnt_from():
    """Random actions fill all of them, plans leave them 0."""
    a, batch = agent(TASKS), batch_of(TASKS, 3, 4)
    batch.obs["task"] = torch.tensor([0, 1, 2])[:, None].expand(3, 4)
    batch.action.fill_(0.5)
    action = a.window(batch).action
    assert (action[:, 1, 1] == 0).all()
    assert action[:, [0, 2]].all()
    assert action[:, 1, 0].all()


def test_what_tells_a_task_is_never_longer_than_one():
    a = agent(TASKS)
    with torch.no_grad():
        a.model.tasks.weight.copy_(torch.tensor([[3.0, 4, 0, 0], [0.1, 0, 0, 0], [0, 2, 0, 0]]))
    a.model.limit_tasks()
    assert torch.allclose(
        a.model.tasks.weight, torch.tensor([[0.6, 0.8, 0, 0], [0.1, 0, 0, 0], [0, 1.0, 0, 0]])
    )


def long_tasks(a: TDMPC2, rate: float = 0.05) -> None:
    """Let task embeddings be as long as they may be, and a gradient step large."""
    a.opt.set_lr(rate)
    with torch.no_grad():
        a.model.tasks.weight.copy_(torch.tensor([[0.5] * 4, [-0.5] * 4, [0.5, -0.5, 0.5, -0.5]]))


@pytest.mark.parametrize("bf16", [False, True])
def test_tasks_are_limited_in_the_weights_that_are_kept(bf16):
    """A GPU computes with copies in bfloat16, which the policy's loss takes once more."""
    a, batch = agent(TASKS), batch_of(TASKS)
    long_tasks(a)
    low = Bf16Weights(a, lay_out(a, bf16=True)).swapped_in() if bf16 else nullcontext()
    weight, read = a.model.tasks.weight, []
    inner = a.policy_loss

    def heard(*args: Any) -> Any:
        read.append(a.model.tasks.weight.detach().clone())
        return inner(*args)

    a.policy_loss = heard
    with low, torch.autocast("cpu", torch.bfloat16, bf16, cache_enabled=False):
        a.update(batch)
    norm = weight.norm(dim=1)
    assert (norm <= 1 + 1e-6).all()
    assert norm.max() > 0.999, "the limit was never met"
    assert torch.equal(read[0], weight.to(read[0].dtype))
    assert read[0].dtype == (torch.bfloat16 if bf16 else torch.float32)


def test_the_limit_of_tasks_is_no_fault_of_the_first_update():
    a, batch = agent(TASKS), batch_of(TASKS)
    long_tasks(a)
    before = a.model.tasks.weight.detach().clone()
    update = lambda: a.update(batch)  # noqa: E731
    compare_with_reference(a, torch.float32, update, update)
    assert not torch.equal(before, a.model.tasks.weight)
